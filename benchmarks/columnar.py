"""Race passes over Parquet of Criteo's shape: pyarrow alone, `data.read` in order and shuffled.

    python benchmarks/columnar.py

Two files of uneven sizes, which one pass brings into memory before the measured one.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from pathlib import Path

from columnar_pass import write
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
TARGETS = [Target("sequential", "scan", 0.8), Target("shuffled", "scan", 0.5)]


def main() -> None:
    """Race; exit 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400_000, help="of the larger file")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as directory:
        files = [
            str(write(Path(directory, "a.parquet"), options.rows, 1, 1 << 16)),
            str(write(Path(directory, "b.parquet"), options.rows * 3 // 4, 2, 50_000)),
        ]
        contenders = []
        for how in ("scan", "sequential", "shuffled"):
            command = [sys.executable, str(HERE / "columnar_pass.py"), how, *files]
            run = functools.partial(run_child, command, FROM_CHECKOUT, LIMIT_S)
            contenders.append(Contender(how, run))
        title = f"{options.rows * 7 // 4} rows of 13 floats, 26 ids and a label (1000 rows/s)"
        results = interleave(title, contenders, options.rounds, console)
        check_losses(results, 1e-9)
    row = report("columnar", title, results, TARGETS, console)
    say([row])
    sys.exit(any(v["ratio"] < v["target"] for v in row["ratios"].values()))


if __name__ == "__main__":
    main()
