"""Race one process: hpcdist's Executor against PyTorch eager, on one thread, the same network.

    python benchmarks/local_step.py --torch-python /path/to/python

Both run in turn, several rounds, each as a child process; the result is the median of steps per
second after a warm-up, every step fetching the loss. Their losses must agree. Run it with the
Python that has hpcdist; PyTorch may be in another (default: this one).
"""

from __future__ import annotations

import sys

from cases import CASES
from rounds import FROM_CHECKOUT, HERE, Target, arguments, command, finish, race

TOLERANCE = 1e-4  # float32 sums in different orders
STEPS = {"linreg": (1000, 20000), "mlp": (10, 150)}  # (warm-up, timed)
TARGET = Target("hpcdist", "torch", 0.9)


def main() -> None:
    """Race the cases asked for; exit 1 if the target is missed."""
    parser = arguments(__doc__, 7)
    parser.add_argument("--torch-python", default=sys.executable, help="the Python with torch")
    parser.add_argument("--case", choices=sorted(CASES), action="append", help="default: mlp")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    options = parser.parse_args()
    rows = []
    for case in options.case or ["mlp"]:
        warmup, steps = (max(10, round(n * options.scale)) for n in STEPS[case])
        counts = ["--case", case, "--warmup", str(warmup), "--steps", str(steps)]
        contenders = [
            command(
                "torch", [options.torch_python, HERE / "torch_step.py", *counts], FROM_CHECKOUT
            ),
            command("hpcdist", [sys.executable, HERE / "train.py", *counts], FROM_CHECKOUT),
        ]
        title = f"{CASES[case].title}, one process, one thread"
        rows.append(race(case, title, contenders, options.rounds, [TARGET], TOLERANCE))
    finish(rows)


if __name__ == "__main__":
    main()
