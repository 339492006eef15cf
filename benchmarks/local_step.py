"""Race one process: hpcdist's Executor against PyTorch eager, on one thread, the same network.

    python benchmarks/local_step.py --torch-python /path/to/python

Both run in turn, several rounds, each as a child process; the result is the median of steps per
second after a warm-up, every step fetching the loss. Their losses must agree. Run it with the
Python that has hpcdist; PyTorch may be in another (default: this one).
"""

from __future__ import annotations

import argparse
import functools
import sys

from cases import CASES
from rich.console import Console
from rounds import (
    FROM_CHECKOUT,
    HERE,
    Contender,
    Target,
    check_losses,
    interleave,
    report,
    run_child,
    say,
)

LIMIT_S = 300.0
TOLERANCE = 1e-4  # float32 sums in different orders
STEPS = {"linreg": (1000, 20000), "mlp": (10, 150)}  # (warm-up, timed)
TARGET = Target("hpcdist", "torch", 0.9)


def main() -> None:
    """Race the cases asked for; exit 1 if the target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-python", default=sys.executable, help="the Python with torch")
    parser.add_argument("--case", choices=sorted(CASES), action="append", help="default: mlp")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    options = parser.parse_args()
    console = Console(stderr=True)
    rows = []
    for case in options.case or ["mlp"]:
        warmup, steps = (max(10, round(n * options.scale)) for n in STEPS[case])
        counts = ["--case", case, "--warmup", str(warmup), "--steps", str(steps)]

        def race(name: str, python: str, script: str, counts: list[str] = counts) -> Contender:
            command = [python, str(HERE / script), *counts]
            return Contender(name, functools.partial(run_child, command, FROM_CHECKOUT, LIMIT_S))

        contenders = [
            race("torch", options.torch_python, "torch_step.py"),
            race("hpcdist", sys.executable, "train.py"),
        ]
        title = f"{CASES[case].title}, one process, one thread"
        results = interleave(title, contenders, options.rounds, console)
        check_losses(results, TOLERANCE)
        rows.append(report(case, title, results, [TARGET], console))
    say(rows)
    sys.exit(any(v["ratio"] < v["target"] for row in rows for v in row["ratios"].values()))


if __name__ == "__main__":
    main()
