"""Clicks on advertisements, read from Parquet files; an interrupted job resumes where it was.

    python -m hpcdist examples/clicks_from_parquet.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/clicks_from_parquet.py
    python -m hpcdist data verify clicks/rows        # was every row used exactly once?

It needs pyarrow: pip install hpcdist[data]. The files are generated, in Criteo's shape, and kept in
--directory with checkpoints and certificates.
"""

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hpcdist as fluid

NUMBERS = [f"I{k}" for k in range(fluid.dataset.clicks.number_num)]
SLOTS = fluid.dataset.clicks.category_sizes()


def write(path, samples):
    """Write samples as a table; the first rank makes the file for all of them."""
    if path.exists():
        return
    numbers, ids, clicked = zip(*samples())
    columns = dict(zip(NUMBERS, np.stack(numbers, axis=1)))
    columns |= {f"C{k}": column for k, column in enumerate(np.stack(ids, axis=1))}
    table = pa.table({**columns, "click": np.array(clicked)})
    with tempfile.NamedTemporaryFile(dir=path.parent) as new:
        pq.write_table(table, new, row_group_size=2000)
        new.flush()
        with contextlib.suppress(FileExistsError):
            os.link(new.name, path)


def network(width):
    """Return the input variables, the loss and the accuracy of a small wide and deep model."""
    dense = fluid.data("dense", [None, len(NUMBERS)], "float32")
    slots = [fluid.data(f"C{k}", [None, 1], "int64") for k in range(len(SLOTS))]
    click = fluid.data("click", [None, 1], "int64")
    parts = [fluid.layers.embedding(ids, [size, width]) for ids, size in zip(slots, SLOTS)]
    hidden = fluid.layers.fc(fluid.layers.concat([dense, *parts], axis=1), 16, act="relu")
    chances = fluid.layers.fc(hidden, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(chances, click))
    return [dense, *slots, click], loss, fluid.layers.accuracy(chances, click)


def main():
    """Train, and print the losses and the accuracy of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("clicks"))
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=250, help="rows, over all trainers")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    options.directory.mkdir(parents=True, exist_ok=True)
    clicks = fluid.dataset.clicks
    write(options.directory / "train.parquet", clicks.train(options.samples))
    write(options.directory / "test.parquet", clicks.test(options.samples // 5))

    inputs, loss, accuracy = network(width=4)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(0.003).minimize(loss)
    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())

    def read(file, **how):
        size = options.batch_size
        path = options.directory / file
        return fluid.data.read(path, {"dense": NUMBERS}, feed_list=inputs, batch=size, **how)

    rows = read("train.parquet", shuffle=7, window=8000, certificate=options.directory / "rows")
    test = read("test.parquet")
    saver = fluid.checkpoint.Saver(exe, options.directory / "saved", every=100, reader=rows)
    with saver:
        saver.restore()
        while rows.epoch < options.epochs:
            epoch, losses = rows.epoch, []
            for batch in rows():
                losses.append(exe.run(feed=batch, fetch_list=[loss])[0].item())
                saver.after_step()
            found = [exe.run(test_program, feed=b, fetch_list=[loss, accuracy]) for b in test()]
            test_loss, right = np.mean([[value.item() for value in pair] for pair in found], axis=0)
            print(
                f"epoch {epoch}  train loss {np.mean(losses):.6f}  "
                f"test loss {test_loss:.6f}  accuracy {right:.4f}"
            )
    exe.close()


if __name__ == "__main__":
    main()
