"""Click-through rates in Paddle 2's words, for Paddle 2.6.2 and for hpcdist: wide and deep.

Started by ctr_paddle2.py as every role of a job; `ctr_train.py` has the same network in Fluid's
words. Trainer 0 prints one JSON line: steps per second after the warm-up, and losses unless it
trains from files (``--files``).
"""

import argparse
import itertools
import json
import tempfile
import time

import numpy as np
import paddle
import paddle.distributed.fleet as fleet

SLOTS, NUMBERS, WIDTH, BATCH = 26, 13, 16, 512
IDS = 40000  # per slot
HIDDEN = (128, 64, 32)


def rows(ids, width, name):
    """Return the rows of one slot, of a table on the servers."""
    attr = paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Constant(0.01))
    return paddle.static.nn.sparse_embedding(ids, [SLOTS * IDS, width], param_attr=attr)


def network():
    """Return the loss, cross entropy of clicked or not."""
    numbers = paddle.static.data("numbers", [None, NUMBERS], "float32")
    clicked = paddle.static.data("clicked", [None, 1], "int64")
    slots = [paddle.static.data(f"slot{i}", [None, 1], "int64") for i in range(SLOTS)]
    hidden = paddle.concat([numbers, *(rows(ids, WIDTH, "deep") for ids in slots)], axis=1)
    for width in HIDDEN:
        hidden = paddle.static.nn.fc(hidden, width, activation="relu")
    wide = paddle.concat([rows(ids, 1, "wide") for ids in slots], axis=1)
    scores = paddle.static.nn.fc(paddle.concat([hidden, wide], axis=1), 2)
    return paddle.mean(paddle.nn.functional.cross_entropy(scores, clicked))


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


def fed(exe, loss, warmup, steps):
    """Return the steps per second of ``exe.run``, and losses."""
    feeds = itertools.cycle(batches(fleet.worker_index(), 50))
    program, losses = paddle.static.default_main_program(), []
    for step in range(warmup + steps):
        if step == warmup:
            begin = time.perf_counter()
        (value,) = exe.run(program, feed=next(feeds), fetch_list=[loss])
        losses.append(float(np.ravel(value)[0]))
    return {"steps_per_s": steps / (time.perf_counter() - begin), "losses": losses[:50]}


def from_files(exe, trainer, warmup, steps):
    """Return the steps per second of ``train_from_dataset``, files of a QueueDataset."""
    block = paddle.static.default_main_program().global_block()
    names = [f"slot{slot}" for slot in range(SLOTS)] + ["numbers", "clicked"]
    lines = [
        " ".join(f"{len(value)} {' '.join(map(str, value))}" for value in example)
        for feed in batches(trainer, 50)
        for example in zip(*(feed[name] for name in names))
    ]
    with tempfile.NamedTemporaryFile("w", prefix="ctr_") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        dataset = paddle.distributed.QueueDataset()
        inputs = [block.var(name) for name in names]
        dataset.init(batch_size=BATCH, thread_num=1, use_var=inputs, pipe_command="cat")
        for count in (warmup, steps):
            dataset.set_filelist([file.name] * max(1, count // 50))
            begin = time.perf_counter()
            exe.train_from_dataset(paddle.static.default_main_program(), dataset)
        return max(1, steps // 50) * 50 / (time.perf_counter() - begin)


def main():
    """Serve, or train and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("sync", "async"), default="async")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--files", action="store_true", help="train_from_dataset, in 50s of steps")
    options = parser.parse_args()
    paddle.enable_static()
    fleet.init()
    loss = network()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = options.mode == "async"
    fleet.distributed_optimizer(paddle.optimizer.SGD(0.05), strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    if options.files:
        speed = from_files(exe, fleet.worker_index(), options.warmup, options.steps)
        found = {"steps_per_s": speed, "losses": []}
    else:
        found = fed(exe, loss, options.warmup, options.steps)
    if fleet.worker_index() == 0:
        print(json.dumps(found), flush=True)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
