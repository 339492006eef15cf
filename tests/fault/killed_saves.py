"""Saves, killed at random moments: run as a script, it forks once for every kill.

After every kill there must be a checkpoint that loads, and not an older one than was promised.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

import numpy as np

import hpcdist as fluid
from hpcdist.checkpoint import Checkpoint, latest, restore, save, wait

WIDTH = 300_000  # floats: two chunks a variable


def build():
    w = fluid.layers.create_parameter([WIDTH], "float32", name="w")
    b = fluid.layers.create_parameter([3], "float32", name="b")
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    return exe, w, b


def values_of(step):
    return np.full(WIDTH, step, np.float32), np.full(3, -step, np.float32)


def save_until_killed(exe, root, first, promises, asynchronous):
    """Save step after step; tell through the pipe which steps are safe, the first one at once."""
    scope = fluid.global_scope()
    step = first
    os.write(promises, struct.pack("<q", first))
    while True:
        step += 1
        for name, value in zip("wb", values_of(step)):
            scope.find_var(name).get_tensor().set(value)
        save(exe, root, step, keep=2, asynchronous=asynchronous)
        if asynchronous:
            wait()
        os.write(promises, struct.pack("<q", step))


def main():
    root, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    luck = random.Random(seed)
    exe, _, _ = build()
    save(exe, root, 0)
    promised, moments = 0, []
    for kill in range(kills):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            save_until_killed(exe, root, promised, write, asynchronous=kill % 2 == 1)
        os.close(write)
        told = os.read(read, 8)  # it has begun
        time.sleep(luck.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read, "rb") as pipe:
            told += pipe.read()
        promised = max([promised, *(s for (s,) in struct.iter_unpack("<q", told))])
        left = [p.name for d in root.glob("step-*") for p in d.iterdir()]
        moments.append(any(name.endswith(".tmp") for name in left))
        found = latest(root)
        assert found is not None, f"kill {kill}: no checkpoint is left"
        restored = restore(exe, root)
        assert restored.step >= promised, f"kill {kill}: {restored.step} < {promised}"
        if restored.step:
            for name, value in zip("wb", values_of(restored.step)):
                got = np.array(fluid.global_scope().find_var(name).get_tensor())
                assert (got == value).all(), f"kill {kill}: wrong values of {name}"
        with Checkpoint(found) as checkpoint:
            checkpoint.check_data()
        promised = restored.step
    print(f"{kills} kills, {sum(moments)} of them in the middle of a file; step {promised}")


if __name__ == "__main__":
    main()
