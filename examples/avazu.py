"""Clicks on advertisements: Avazu's own file, as it is, with ids of 64 bits without a sign.

    python -m hpcdist examples/avazu.py --train train.gz
    mpirun -n 4 python -m hpcdist --pservers 2 examples/avazu.py --train train.gz

The first line names the columns. ``id`` has up to 20 digits; ``hour`` is 14102100, for example;
site, app and device are 8 hexadecimal digits, some of which look like numbers; the rest are small
integers. Every column becomes ids of one table, the hour without its day. Without --train a small
sample in this format is generated into --directory. It needs pyarrow: pip install hpcdist[data].
"""

import argparse
import contextlib
import gzip
import os
import tempfile
from pathlib import Path

import numpy as np

import hpcdist as fluid

SITES = [f"{kind}_{part}" for kind in ("site", "app") for part in ("id", "domain", "category")]
HEX = [*SITES, "device_id", "device_ip", "device_model"]
CODES = ["C1", "banner_pos", "device_type", "device_conn_type", *(f"C{k}" for k in range(14, 22))]
HEADER = ["id", "click", "hour", "C1", "banner_pos", *HEX, *CODES[2:]]


def write_sample(path, rows, seed):
    """Generate clicks in Avazu's format; the first rank makes the file for all of them."""
    random = np.random.RandomState(seed)
    numbers = random.randint(0, 2**64, rows, np.uint64)
    codes = random.zipf(1.4, (rows, len(CODES))) % 50 - 1
    words = random.zipf(1.4, (rows, len(HEX))) % 50
    score = 2.0 * (words[:, 0] % 3 - 1) + (words[:, 1] % 2 - 0.5) + (codes[:, 1] % 2 - 0.5)
    clicked = random.rand(rows) < 1 / (1 + np.exp(-score))
    lines = [",".join(HEADER)]
    for number, label, word, code in zip(numbers, clicked, words, codes):
        ids = [f"{w * 2654435761 + k * 40503 & 0xFFFFFFFF:08x}" for k, w in enumerate(word)]
        values = [number, int(label), 14102100 + number % 24, *code[:2], *ids, *code[2:]]
        lines.append(",".join(map(str, values)))
    with tempfile.NamedTemporaryFile(dir=path.parent) as new:
        new.write(gzip.compress(("\n".join(lines) + "\n").encode()))
        new.flush()
        with contextlib.suppress(FileExistsError):
            os.link(new.name, path)


def network(width):
    """Return the input variables, the loss, and the chances of a click."""
    ids = [fluid.data(name, [None, 1], "int64") for name in ("hour", *HEX, *CODES)]
    click = fluid.data("click", [None, 1], "int64")
    number = fluid.data("id", [None, 1], "int64")  # of the row: not learned from
    rows = [
        fluid.embedding(
            fluid.layers.squeeze(i, [1]), [-1, width], is_sparse=True, is_distributed=True
        )
        for i in (ids[0] % 100, *ids[1:])
    ]
    hidden = fluid.layers.fc(fluid.layers.concat(rows, axis=1), 16, act="relu")
    chances = fluid.layers.fc(hidden, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(chances, click))
    return [*ids, click, number], loss, chances


def read(files, inputs, batch, **how):
    """Read files of Avazu's format; their names need not end in .csv.gz."""
    types = dict.fromkeys(HEX, "hex") | {"id": "uint64"}
    return fluid.data.read(files, feed_list=inputs, batch=batch, format="csv", types=types, **how)


def main():
    """Train, and print the losses and the area under the ROC curve of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("avazu"))
    parser.add_argument("--train", nargs="+", help="files, or patterns")
    parser.add_argument("--test", nargs="+")
    parser.add_argument("--samples", type=int, default=8000, help="rows of the generated sample")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100, help="rows, over all trainers")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()
    if not options.train:
        options.directory.mkdir(parents=True, exist_ok=True)
        made = [options.directory / name for name in ("train.gz", "test.gz")]
        write_sample(made[0], options.samples, 0)
        write_sample(made[1], options.samples // 4, 1)
        options.train, options.test = [[str(path)] for path in made]

    inputs, loss, chances = network(width=4)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adagrad(0.05).minimize(loss)
    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())

    rows = read(options.train, inputs, options.batch_size, shuffle=7)
    test = read(options.test or options.train, inputs, options.batch_size)
    for epoch in range(options.epochs):
        losses = [exe.run(feed=batch, fetch_list=[loss])[0].item() for batch in rows()]
        area, test_losses = fluid.metrics.Auc("area"), []
        for batch in test():
            value, found = exe.run(test_program, feed=batch, fetch_list=[loss, chances])
            area.update(found, batch["click"])
            test_losses.append(value.item())
        print(
            f"epoch {epoch}  train loss {np.mean(losses):.6f}  "
            f"test loss {np.mean(test_losses):.6f}  AUC {area.eval():.4f}"
        )
    exe.close()


if __name__ == "__main__":
    main()
