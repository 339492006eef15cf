"""Race passes over Parquet of Criteo's shape: pyarrow alone, `data.read` in order and shuffled.

    python benchmarks/columnar.py

Two files of uneven sizes, which one pass brings into memory before the measured one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from columnar_pass import write
from rounds import FROM_CHECKOUT, HERE, Target, arguments, command, finish, race

TARGETS = [Target("sequential", "scan", 0.8), Target("shuffled", "scan", 0.5)]


def main() -> None:
    """Race; exit 1 if a target is missed."""
    parser = arguments(__doc__, 5)
    parser.add_argument("--rows", type=int, default=400_000, help="of the larger file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        files = [
            str(write(Path(directory, "a.parquet"), options.rows, 1, 1 << 16)),
            str(write(Path(directory, "b.parquet"), options.rows * 3 // 4, 2, 50_000)),
        ]
        contenders = []
        for how in ("scan", "sequential", "shuffled"):
            words = [sys.executable, HERE / "columnar_pass.py", how, *files]
            contenders.append(command(how, words, FROM_CHECKOUT))
        title = f"{options.rows * 7 // 4} rows of 13 floats, 26 ids and a label (1000 rows/s)"
        row = race("columnar", title, contenders, options.rounds, TARGETS, 1e-9)
    finish([row])


if __name__ == "__main__":
    main()
