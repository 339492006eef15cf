"""Measure what memory_optimize saves: an MLP of 8 layers of 1024, batch 256, SGD.

    python benchmarks/memory.py

Four child processes: alone and as a trainer (with one server), without and with memory_optimize.
Each tells, in MiB: the pool of temporaries; gradients that are sent, which keep their memory from
step to step; how much the process grew at its peak, as the system sees it. Losses must agree bit
for bit. The exit status is 1 if they do not, or if nothing was saved.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

WIDTH, DEPTH, ROWS, STEPS = 1024, 8, 256, 5
MIB = 2**20
LAUNCH = {
    "alone": [sys.executable],
    "trainer": ["mpirun", "-n", "2", sys.executable, "-m", "hpcdist", "--quiet", "--pservers", "1"],
}
COLUMNS = {"pool": "pool", "sent": "gradients to send", "grown": "growth of the process"}


def main() -> None:
    """Print the table; as a child, one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--child", choices=["plain", "saving"], help=argparse.SUPPRESS)
    parser.add_argument("--place", choices=sorted(LAUNCH), default="alone", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.place, options.child == "saving")), flush=True)
        return
    print("| | | " + " | ".join(COLUMNS.values()) + " |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    good = True
    for place in LAUNCH:
        plain, saving = (run_child(place, how) for how in ("plain", "saving"))
        for how, told in (("", plain), ("memory_optimize", saving)):
            print(f"| {place} | {how} | " + " | ".join(f"{told[c]:.1f}" for c in COLUMNS) + " |")
        good &= plain["losses"] == saving["losses"] and saving["pool"] < plain["pool"]
    raise SystemExit(not good)


def run_child(place: str, how: str) -> dict:
    """Run one contender; return what it measured."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [*LAUNCH[place], __file__, "--child", how, "--place", place]
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, text=True, timeout=300, check=True
    )
    return json.loads(next(x for x in done.stdout.splitlines() if x.startswith("{")))


def measure(place: str, saves: bool) -> dict:
    """Train some steps; return sizes in MiB and the losses. A server ends inside."""
    import numpy as np

    import hpcdist as fluid

    x, y = fluid.layers.data("x", [WIDTH]), fluid.layers.data("y", [1])
    hidden = x
    for _ in range(DEPTH):
        hidden = fluid.layers.fc(hidden, WIDTH, act="relu")
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
    fluid.optimizer.SGD(0.001).minimize(loss)
    program = fluid.default_main_program()
    if saves:
        fluid.memory_optimize(program, skip_grads=place == "trainer")
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    rng = np.random.default_rng(0)
    feed = {"x": rng.random((ROWS, WIDTH), np.float32), "y": rng.random((ROWS, 1), np.float32)}
    before, losses = resident(), []
    for _ in range(STEPS):
        losses += exe.run(program, feed, [loss])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    compiled = exe.forms()[-1].compiled
    sent = {name for op in compiled.ops if op.type == "send" for name in op.input("X")}
    exe.close()
    return {
        "pool": compiled.pool_bytes / MIB,
        "sent": sum(compiled.arrays[name].nbytes for name in sent) / MIB,
        "grown": (peak - before) / MIB,
        "losses": [float(value[0]) for value in losses],
    }


def resident() -> int:
    """Return the bytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
