"""Clicks on advertisements: Criteo's own files, as they are, into tables of any hexadecimal id.

    python -m hpcdist examples/criteo.py --train 'day_[0-9].gz' --test day_23.gz
    mpirun -n 4 python -m hpcdist --pservers 2 examples/criteo.py --train train.txt --test valid.txt

Lines hold a label, 13 counts and 26 ids of 8 hexadecimal digits, with tabs between them; any of the
last 39 may be empty, and no line has names. Without --train a small sample in this format is
generated into --directory. It needs pyarrow: pip install hpcdist[data].
"""

import argparse
import contextlib
import gzip
import os
import tempfile
from pathlib import Path

import numpy as np

import hpcdist as fluid

COUNTS = [f"I{k}" for k in range(1, 14)]
IDS = [f"C{k}" for k in range(1, 27)]


def write_sample(path, rows, seed):
    """Generate clicks in Criteo's format; the first rank makes the file for all of them."""
    random = np.random.RandomState(seed)
    counts = random.exponential(20, (rows, len(COUNTS))).astype(int) - 1
    ids = random.zipf(1.3, (rows, len(IDS))) % 200
    score = (
        2 * (np.log1p(np.maximum(counts[:, 0], 0)) - 2.5)
        + (ids[:, 0] % 3 - 1)
        + (ids[:, 1] % 2 - 0.5)
    )
    clicked = random.rand(rows) < 1 / (1 + np.exp(-score))
    lines = []
    for label, numbers, words in zip(clicked, counts, ids):
        values = [str(number) for number in numbers]
        values += [
            f"{word * 2654435761 + k * 40503 & 0xFFFFFFFF:08x}" for k, word in enumerate(words)
        ]
        values = ["" if gone else value for value, gone in zip(values, random.rand(39) < 0.1)]
        lines.append("\t".join([str(int(label)), *values]) + "\n")
    with tempfile.NamedTemporaryFile(dir=path.parent) as new:
        new.write(gzip.compress("".join(lines).encode()))
        new.flush()
        with contextlib.suppress(FileExistsError):
            os.link(new.name, path)


def network(width):
    """Return the input variables, the loss and the chances of a small wide and deep model."""
    counts = fluid.data("counts", [None, len(COUNTS)], "float32")
    ids = [fluid.data(name, [None, 1], "int64") for name in IDS]
    label = fluid.data("label", [None, 1], "int64")
    logs = fluid.layers.log(fluid.layers.relu(counts) + 1.0)
    rows = [
        fluid.embedding(
            fluid.layers.squeeze(i, [1]), [-1, width], is_sparse=True, is_distributed=True
        )
        for i in ids
    ]
    hidden = fluid.layers.fc(fluid.layers.concat([logs, *rows], axis=1), 16, act="relu")
    chances = fluid.layers.fc(hidden, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(chances, label))
    return [counts, *ids, label], loss, chances


def read(files, inputs, batch, **how):
    """Read files of Criteo's format: ids are the numbers that their digits are, empty ones -1."""
    return fluid.data.read(
        files,
        {"counts": COUNTS},
        feed_list=inputs,
        batch=batch,
        delimiter="\t",
        names=["label", *COUNTS, *IDS],
        types=dict.fromkeys(IDS, "hex"),
        nulls=dict.fromkeys(COUNTS, 0) | dict.fromkeys(IDS, -1),
        **how,
    )


def main():
    """Train, and print the losses and the area under the ROC curve of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("criteo"))
    parser.add_argument("--train", nargs="+", help="files, or patterns")
    parser.add_argument("--test", nargs="+")
    parser.add_argument("--samples", type=int, default=8000, help="rows of the generated sample")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100, help="rows, over all trainers")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()
    if not options.train:
        options.directory.mkdir(parents=True, exist_ok=True)
        for seed, name in enumerate(("day_0.gz", "day_1.gz", "day_2.gz")):
            write_sample(options.directory / name, options.samples // 3, seed)
        days = [str(options.directory / f"day_{k}.gz") for k in range(3)]
        options.train, options.test = days[:2], days[2:]

    inputs, loss, chances = network(width=4)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(0.01).minimize(loss)
    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())

    rows = read(options.train, inputs, options.batch_size, shuffle=7)
    test = read(options.test or options.train, inputs, options.batch_size)
    for epoch in range(options.epochs):
        losses = [exe.run(feed=batch, fetch_list=[loss])[0].item() for batch in rows()]
        area, test_losses = fluid.metrics.Auc("area"), []
        for batch in test():
            value, found = exe.run(test_program, feed=batch, fetch_list=[loss, chances])
            area.update(found, batch["label"])
            test_losses.append(value.item())
        print(
            f"epoch {epoch}  train loss {np.mean(losses):.6f}  "
            f"test loss {np.mean(test_losses):.6f}  AUC {area.eval():.4f}"
        )
    exe.close()


if __name__ == "__main__":
    main()
