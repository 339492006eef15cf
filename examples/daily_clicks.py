"""Clicks that come day after day: scored, trained, saved, published; started again, it goes on.

    python examples/daily_clicks.py
    mpirun -n 3 python -m hpcdist --pservers 1 examples/daily_clicks.py

The days are made up, from a seed. Everything is in the directory daily_clicks, which all ranks see:
run it again with more --days, or after a kill.
"""

import argparse
import datetime
import os

import numpy as np

import hpcdist as fluid
from hpcdist import online

FIRST = datetime.date(2026, 11, 30)
USERS, ITEMS = 300, 100


def write_day(directory, number, rows):
    """Write the two passes of a day as multi-slot text, unless they are there."""
    random = np.random.RandomState(number)
    tastes = np.random.RandomState(0)
    of_user, of_item = 2 * tastes.randn(USERS), 2 * tastes.randn(ITEMS)
    for split in ("0000", "1200"):
        path = os.path.join(directory, f"{day_of(number)}", split)
        if os.path.exists(os.path.join(path, "data.done")):
            continue
        os.makedirs(path, exist_ok=True)
        lines = []
        for _ in range(rows):
            user, item = random.randint(USERS), random.randint(ITEMS)
            chance = 1 / (1 + np.exp(-of_user[user] - of_item[item]))
            lines.append(f"1 {user} 1 {item} 1 {int(random.rand() < chance)}\n")
        with open(os.path.join(path, "part-0"), "w") as file:
            file.writelines(lines)
        open(os.path.join(path, "data.done"), "w").close()


def day_of(number):
    """Return the name of a day, 0 is the first."""
    return f"{FIRST + datetime.timedelta(number):%Y%m%d}"


def network():
    """Return the inputs and the chance of a click; rows not looked up for a week expire."""
    user, item, click = (fluid.data(name, [None, 1], "int64") for name in ("user", "item", "click"))
    week = fluid.RowPolicy(expire_days=7)
    rows = [
        fluid.layers.embedding(
            ids,
            [-1, 8],
            is_sparse=True,
            is_distributed=True,
            param_attr=fluid.ParamAttr(f"{ids.name}s", row_policy=week),
        )
        for ids in (user, item)
    ]
    hidden = fluid.layers.fc(rows, 16, act="relu")
    chance = fluid.layers.fc(hidden, 1, act="sigmoid")
    loss = fluid.layers.mean(fluid.layers.log_loss(chance, fluid.layers.cast(click, "float32")))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return [user, item, click], chance


def main(directory, days, rows, place):
    """Make the days, and train them."""
    fluid.default_startup_program().random_seed = 1
    inputs, chance = network()
    exe = fluid.Executor(place)
    exe.run(fluid.default_startup_program())
    clicks = os.path.join(directory, "clicks")
    if fluid.is_first():
        for number in range(days):
            write_day(clicks, number, rows)
    os.makedirs(clicks, exist_ok=True)
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var(inputs)
    dataset.set_batch_size(50)
    saver = fluid.checkpoint.Saver(
        exe,
        os.path.join(directory, "checkpoints"),
        every=1,
        publish=os.path.join(directory, "published"),
        publish_every=1,
    )
    online.train(
        clicks,
        day_of(0),
        online.of_dataset(exe, dataset, chance, inputs[-1]),
        saver,
        last=day_of(days - 1),
        passes=["0000", "1200"],
        poll_s=0.1,
        shrink=fluid.checkpoint.shrink_tables,
        after_pass=lambda report: print(report) if fluid.is_first() else None,
    )
    exe.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2000, help="of a pass")
    parser.add_argument("--directory", default="daily_clicks")
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()
    main(options.directory, options.days, options.rows, options.place)
