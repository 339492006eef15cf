"""Measure by how much losses of a job differ from those of one process, in float32 and float64.

    python benchmarks/rounding.py

No race: sums over trainers add the same terms in another order, and each order rounds otherwise.
A network of two layers with Momentum is trained on the same batches in one process, on 2 and 4
ranks, and on 2 servers + 2 trainers. Printed is the largest relative difference of a loss so far.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
from rounds import FROM_CHECKOUT, HERE, run_text
from vs_fluid import LIMIT_S, MPI_ENVIRONMENT, mpirun

LAYOUTS = {"2 ranks": (2, 0), "4 ranks": (4, 0), "2 servers + 2 trainers": (2, 2)}
AFTER = (1, 10, 100, 1000)  # steps
DTYPES = ("float32", "float64")


def train(dtype: str) -> None:
    """Print the loss of every step."""
    import hpcdist as fluid

    layers = fluid.layers
    x, y = fluid.data("x", [None, 13], dtype), fluid.data("y", [None, 1], dtype)
    hidden = layers.fc(x, 32, act="tanh")
    loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
    fluid.optimizer.Momentum(0.05, 0.9).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    random, losses = np.random.RandomState(1), []
    for _ in range(AFTER[-1]):
        rows = random.rand(24, 13).astype(dtype)
        feed = {"x": rows, "y": rows[:, :1] * rows[:, 1:2]}
        losses.append(float(exe.run(feed=feed, fetch_list=[loss])[0].item()))
    if fluid.is_first():
        print(json.dumps(losses))
    exe.close()


def run(dtype: str, trainers: int = 1, servers: int = 0) -> np.ndarray:
    """Return the losses of a job of its own."""
    command: list[str] = [] if trainers == 1 else [mpirun(), "-n", str(trainers + servers)]
    command += [sys.executable, "-m", "hpcdist", "--quiet"]
    command += ["--pservers", str(servers)] if servers else []
    command += [str(HERE / "rounding.py"), "--train", dtype]
    printed = run_text(command, MPI_ENVIRONMENT | FROM_CHECKOUT, LIMIT_S)
    return np.array(json.loads(printed.splitlines()[-1]))


def main() -> None:
    """Train everywhere, and print a row for each layout and element type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", choices=DTYPES, help="in this process")
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    print("| | " + " | ".join(f"{n} step{'s' * (n > 1)}" for n in AFTER) + " |")
    print("|---|" + "---|" * len(AFTER))
    for dtype in DTYPES:
        alone = run(dtype)
        for layout, ranks in LAYOUTS.items():
            differences = np.abs(run(dtype, *ranks) - alone) / np.abs(alone)
            largest = (f"{differences[:n].max():.0e}" for n in AFTER)
            print(f"| {dtype}, {layout} | " + " | ".join(largest) + " |")


if __name__ == "__main__":
    main()
