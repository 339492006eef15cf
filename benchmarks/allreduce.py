"""Race the sums of gradients: fused against one raw MPI_Allreduce, and against not fusing; and a
training step of two ranks against PyTorch's DistributedDataParallel over gloo.

    python benchmarks/allreduce.py --torch-python /path/to/python

Needs mpirun on PATH (Open MPI or MPICH). Every round measures all contenders one after the other;
the result is the median of the rounds, ratios are of neighbours in time. The losses of trainings
must agree. PyTorch may be in another Python (default: this one); if it fails it is left out.
"""

from __future__ import annotations

import sys
from typing import Any

from cases import CASES
from rounds import (
    FROM_CHECKOUT,
    HERE,
    LIMIT_S,
    Failed,
    Target,
    arguments,
    check_losses,
    command,
    finish,
    interleave,
    report,
    run_child,
)

TOLERANCE = 1e-3  # float32 sums in different orders, over many steps
TITLES = {
    "resnet50": "161 gradients of ResNet-50, 25.6 M floats, {} ranks",
    "small": "1,000 gradients of 4 KB, {} ranks",
}
TARGETS = {
    "resnet50": [Target("fused", "raw", 0.9)],
    "small": [Target("fused", "unfused", 5.0), Target("fused", "calls", 5.0)],
    "mlp": [Target("hpcdist", "torch", 1.0)],
}


def mpirun(ranks: int) -> list[str]:
    """Return how to start so many ranks, more than there are cores if need be."""
    return ["mpirun", "-n", str(ranks)]


def sums(case: str, ranks: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Return the results by contender; each round is one job that measures them all."""
    command = [*mpirun(ranks), sys.executable, str(HERE / "sum_step.py"), "--case", case]
    results: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        found = run_child(command, FROM_CHECKOUT, LIMIT_S)["steps_per_s"]
        for name, per_s in found.items():
            results.setdefault(name, []).append({"steps_per_s": per_s, "losses": []})
    return results


def trainings(python: str, rounds: int, scale: float) -> dict[str, list[dict[str, Any]]]:
    """Return the results of both trainings of the same network, 2 ranks, one thread each."""
    steps = max(10, round(100 * scale))
    counts = ["--case", "mlp", "--warmup", "10", "--steps", str(steps)]
    ours = [*mpirun(2), sys.executable, "-m", "hpcdist", "--quiet"]
    commands = {
        "torch": [python, str(HERE / "torch_ddp.py"), "--ranks", "2", *counts],
        "hpcdist": [*ours, str(HERE / "train_sums.py"), *counts],
    }
    contenders = [command(name, words, FROM_CHECKOUT) for name, words in commands.items()]
    return interleave(CASES["mlp"].title, contenders, rounds)


def main() -> None:
    """Race the cases asked for; exit 1 if a target is missed."""
    parser = arguments(__doc__, 5)
    parser.add_argument("--torch-python", default=sys.executable, help="the Python with torch")
    parser.add_argument("--case", choices=sorted(TARGETS), action="append", help="default: all")
    parser.add_argument("--ranks", type=int, default=2, help="of the sums; trainings have 2")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    options = parser.parse_args()
    rows = []
    for case in options.case or list(TARGETS):
        if case == "mlp":
            title = f"{CASES[case].title}, 2 ranks, one thread each"
            results = trainings(options.torch_python, options.rounds, options.scale)
            check_losses(results, TOLERANCE)
        else:
            title = TITLES[case].format(options.ranks)
            try:
                results = sums(case, options.ranks, options.rounds)
            except Failed as reason:
                raise SystemExit(f"{title}: {reason}") from None
        rows.append(report(case, title, results, TARGETS[case]))
    finish(rows)


if __name__ == "__main__":
    main()
