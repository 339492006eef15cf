"""Click-through rates in Fluid's words, for the real Fluid and for hpcdist: wide and deep.

Started by ctr.py as every role of a job. 26 categorical slots share two tables, one of 16 columns
for the deep part, one of 1 column for the wide part; 13 numbers join the deep part. Trainer 0
prints one JSON line: steps per second after the warm-up, and losses.
"""

import argparse
import itertools
import json
import os

import numpy as np
from train import of_role, place, train

if os.environ.get("BENCHMARK_API") == "fluid":
    import paddle.fluid as fluid
else:
    import hpcdist as fluid

SLOTS, NUMBERS, WIDTH, BATCH = 26, 13, 16, 512
IDS = 40000  # per slot
HIDDEN = (128, 64, 32)
SEED = 7


def table(ids, width, name, distributed):
    """Return the rows of one slot; hpcdist's tables live on the servers and take any id."""
    return fluid.layers.embedding(
        ids,
        size=[SLOTS * IDS, width],
        is_sparse=True,
        is_distributed=distributed,
        param_attr=fluid.ParamAttr(name=name, initializer=fluid.initializer.Constant(0.01)),
    )


def network(distributed):
    """Return the loss, cross entropy of clicked or not; minimize it with SGD."""
    numbers = fluid.layers.data(name="numbers", shape=[NUMBERS], dtype="float32")
    clicked = fluid.layers.data(name="clicked", shape=[1], dtype="int64")
    slots = [fluid.layers.data(name=f"slot{i}", shape=[1], dtype="int64") for i in range(SLOTS)]
    deep = [table(ids, WIDTH, "deep", distributed) for ids in slots]
    hidden = fluid.layers.concat([numbers, *deep], axis=1)
    for width in HIDDEN:
        hidden = fluid.layers.fc(input=hidden, size=width, act="relu")
    wide = fluid.layers.concat([table(ids, 1, "wide", distributed) for ids in slots], axis=1)
    both = fluid.layers.concat([hidden, wide], axis=1)
    predicted = fluid.layers.fc(input=both, size=2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=predicted, label=clicked))
    fluid.optimizer.SGD(learning_rate=0.05).minimize(loss)
    return loss


def batches(trainer, count):
    """Return feeds: ids of a Zipf distribution, numbers, and clicks that depend on both."""
    rng = np.random.RandomState(100 + trainer)
    found = []
    for _ in range(count):
        ids = np.minimum(rng.zipf(1.2, (BATCH, SLOTS)), IDS) - 1
        numbers = rng.rand(BATCH, NUMBERS).astype("float32")
        chance = 1 / (1 + np.exp(2 - numbers.sum(1) / 4 - (ids % 3 == 0).sum(1) / 13))
        feed = {"numbers": numbers}
        feed["clicked"] = (rng.rand(BATCH) < chance).astype("int64").reshape(-1, 1)
        for slot in range(SLOTS):
            feed[f"slot{slot}"] = (ids[:, slot : slot + 1] + slot * IDS).astype("int64")
        found.append(feed)
    return found


def written(path, count):
    """Write the rows of ``count`` steps of two trainers as Parquet; for hpcdist alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for feed in batches(0, 2 * count):
        for name, values in feed.items():
            for k in range(values.shape[1]):
                columns.setdefault(f"{name}.{k}", []).append(values[:, k])
    arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
    pq.write_table(pa.table(arrays), path, row_group_size=1 << 15)


def rows_of(path):
    """Return this trainer's batches of a file, shuffled."""
    columns = {f"slot{k}": f"slot{k}.0" for k in range(SLOTS)}
    columns["numbers"] = [f"numbers.{k}" for k in range(NUMBERS)]
    columns["clicked"] = "clicked.0"
    trainers = int(os.environ["PADDLE_TRAINERS"])
    block = fluid.default_main_program().global_block()
    inputs = [block.var(name) for name in columns]
    rows = fluid.data.read(
        path,
        columns,
        feed_list=inputs,
        batch=BATCH * trainers,
        shuffle=1,
        window=1 << 15,
        lanes=trainers,
    )
    return rows.shard()


def main():
    """Be the role that the environment names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--place", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--parquet", help="a file that `written` has written: feed from it")
    parser.add_argument("--keep", action="store_true", help="read all of it before the first step")
    options = parser.parse_args()
    fluid.default_startup_program().random_seed = SEED
    loss = network(distributed=os.environ.get("BENCHMARK_API") != "fluid")
    exe = fluid.Executor(place(options.place))
    program, trainer = of_role(exe)
    if program is None:
        return
    exe.run(fluid.default_startup_program())
    if options.parquet:
        feeds = iter(rows_of(options.parquet))
        if options.keep:
            feeds = iter(list(feeds))
    else:
        feeds = itertools.cycle(batches(trainer, 50))
    steps_per_s, losses = train(exe, program, loss, feeds, options.warmup, options.steps)
    exe.close()
    if trainer == 0:
        print(json.dumps({"steps_per_s": steps_per_s, "losses": losses[:50]}), flush=True)


if __name__ == "__main__":
    main()
