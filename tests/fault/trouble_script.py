"""Trains on batches of its own making; the trouble is in its only argument."""

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import hpcdist as fluid

RANK = int(os.environ.get("HPCDIST_RANK", "0"))
asked = json.loads(sys.argv[1])
AT = asked.get("rank") in (RANK, "all")
SERVES = os.environ.get("PADDLE_TRAINING_ROLE") == "PSERVER"
steps = asked.get("steps", 150)
trouble = asked.get("trouble", "") if AT else ""
after = asked.get("after", 40)


def note(what, value):
    with open(f"new.{what}.{RANK}", "w") as f:
        f.write(str(value))
    os.replace(f.name, f"{what}.{RANK}")


def end_here():
    if trouble == "raise":
        raise ValueError("on purpose")
    if trouble == "exit":
        sys.exit(3)
    if trouble == "_exit":
        os._exit(3)
    if trouble == "out of memory":
        np.ones(2**50)
    if trouble == "hang":
        while True:
            time.sleep(0.1)
    if trouble == "segfault":
        import ctypes

        ctypes.string_at(0)
    if trouble == "deadlock":
        import threading

        lock = threading.Lock()
        with lock:
            lock.acquire()
    if trouble == "a question":
        os.read(os.pipe()[0], 1)
    if trouble == "CPU limit":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
        while True:
            pass
    if trouble == "memory limit":
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (held + 2**26, held + 2**26))
        np.ones(2**25)
    if trouble == "recursion":

        def deeper():
            deeper()

        deeper()
    if trouble in ("SIGKILL", "SIGTERM", "SIGSTOP"):
        os.kill(os.getpid(), getattr(signal, trouble))


note("pid", os.getpid())
progress = os.open(f"step.{RANK}", os.O_CREAT | os.O_WRONLY)
os.pwrite(progress, b"      -1", 0)
if SERVES and trouble in ("SIGKILL", "SIGSTOP"):
    import threading

    def later():
        while not os.path.exists("step.0") or int(Path("step.0").read_text() or 0) < after:
            time.sleep(0.005)
        end_here()

    threading.Thread(target=later, daemon=True).start()
if trouble == "late":
    time.sleep(8)
width, rows = asked.get("width", 256), 48
x = fluid.data(name="x", shape=[None, width], dtype="float32")
y = fluid.data(name="y", shape=[None, 1], dtype="float32")
feeds = [x, y]
hidden = x
if asked.get("log"):
    hidden = fluid.layers.log(hidden)
for _ in range(asked.get("layers", 1)):
    hidden = fluid.layers.fc(hidden, asked.get("hidden", 256), act="tanh")
if asked.get("sparse"):
    ids = fluid.data(name="ids", shape=[None, 1], dtype="int64")
    feeds.append(ids)
    row = fluid.layers.embedding(ids, [50, 8], is_sparse=True)
    hidden = fluid.layers.concat([hidden, fluid.layers.sqrt(fluid.layers.abs(row) - 0.0)], 1)
if trouble == "another program":
    hidden = fluid.layers.scale(hidden, 2.0)
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y))
optimizer = fluid.optimizer.SGD(1e-3)
exe = fluid.Executor(fluid.CPUPlace())
main, random = None, np.random.RandomState(3)
if asked.get("mode"):
    config = fluid.DistributeTranspilerConfig()
    mode = asked["mode"]
    config.sync_mode = mode == "sync"
    config.slice_var_up = asked.get("slices", True)
    if "least" in asked:
        config.min_block_size = asked["least"]
    if mode == "communicator":
        config.runtime_split_send_recv = True
    if mode == "geo":
        config.geo_sgd_mode, config.geo_sgd_need_push_nums = True, 5
        t = fluid.transpiler.GeoSgdTranspiler(config)
    else:
        t = fluid.DistributeTranspiler(config)
    optimizer.minimize(loss)
    t.transpile(
        int(os.environ["PADDLE_TRAINER_ID"]),
        pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
        trainers=int(os.environ["PADDLE_TRAINERS"]),
        sync_mode=mode == "sync",
    )
    if SERVES:
        main, startup = t.get_pserver_programs(os.environ["PADDLE_CURRENT_ENDPOINT"])
        exe.run(startup)
        exe.run(main)
        sys.exit()
    main = t.get_trainer_program()
else:
    optimizer.minimize(loss)
exe.run(fluid.default_startup_program())


def made():
    n = rows * asked.get("more", 1) if AT else rows
    fed = {"x": random.rand(n, width).astype("float32") + 0.1, "y": np.ones((n, 1), "float32")}
    if asked.get("sparse"):
        fed["ids"] = random.randint(0, 50, (n, 1)).astype("int64")
    return fed


pool = [made() for _ in range(8)]


def batch(step):
    fed = {name: array.copy() for name, array in pool[step % 8].items()}
    if trouble == "negative" and step == after:
        fed["x"][-1, 0] = -1.0
    if trouble == "infinite" and step == after:
        fed["y"][0, 0] = 3e38
    if trouble == "shape" and step == after:
        fed["x"] = fed["x"][:, 1:]
    return fed


def batches():
    for step in range(steps):
        if trouble == "slow reader":
            time.sleep(asked["seconds"])
        if trouble == "broken reader" and step == after:
            raise OSError("the file is gone")
        yield [batch(step)[v.name] for v in feeds]


if asked.get("loader"):
    loader = fluid.io.DataLoader.from_generator(feed_list=feeds, capacity=4)
    loader.set_batch_generator(batches)
    source = (fed[0] if isinstance(fed, list) else fed for fed in loader())
else:
    source = map(batch, range(steps))
kept = []
gc.freeze()
for step, fed in enumerate(source):
    os.pwrite(progress, b"%8d" % step, 0)
    if step == after:
        end_here()
    if trouble == "slow script" and step % asked.get("each", 1) == 0:
        time.sleep(asked["seconds"])
    if trouble == "ends early" and step == after:
        break
    if trouble == "busy threads" and step == 0:
        import threading

        def busy():
            while True:
                pass

        threading.Thread(target=busy, daemon=True).start()
    if trouble == "garbage":
        cycles = [[] for _ in range(20000)]
        for cycle in cycles:
            cycle.append(cycle)
        del cycles, cycle
        gc.collect()
    if trouble == "leak":
        kept.append(np.ones(asked["bytes"] // 8))
    exe.run(main, feed=fed, fetch_list=[loss])
    if asked.get("every") and step % asked["every"] == 0:
        fluid.checkpoint.save(exe, "saved", step)
exe.close()
