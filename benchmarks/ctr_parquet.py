"""Feed the click-through model of ctr.py from Parquet while it trains, and from memory.

    python benchmarks/ctr_parquet.py

2 servers and 2 trainers, batches of 512 rows for each trainer, shuffled; both see the same batches,
so the losses are the same. The one fed from memory reads the whole file before its first step.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path
from typing import Any

import ctr_train
import vs_fluid
from rounds import FROM_CHECKOUT, HERE, Contender, Target, arguments, finish, race, run_child

WARMUP = 20
TARGET = Target("parquet", "memory", 0.95)


def run(path: str, steps: int, *more: str) -> dict[str, Any]:
    """Run a job of 4 ranks."""
    ranks = str(vs_fluid.SERVERS + vs_fluid.TRAINERS)
    command = [vs_fluid.mpirun(), "-n", ranks, sys.executable, "-m", "hpcdist", "--pservers"]
    command += [str(vs_fluid.SERVERS), str(HERE / "ctr_train.py"), "--parquet", path, *more]
    command += ["--warmup", str(WARMUP), "--steps", str(steps)]
    return run_child(command, vs_fluid.MPI_ENVIRONMENT | FROM_CHECKOUT, vs_fluid.LIMIT_S)


def main() -> None:
    """Race; exit 1 if the target is missed."""
    parser = arguments(__doc__, 5)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory, "clicks.parquet"))
        ctr_train.written(path, WARMUP + options.steps)
        contenders = [
            Contender("memory", functools.partial(run, path, options.steps, "--keep")),
            Contender("parquet", functools.partial(run, path, options.steps)),
        ]
        title = "wide and deep, 26 slots, 512 rows per step and trainer, from Parquet"
        row = race("ctr_parquet", title, contenders, options.rounds, [TARGET], 1e-6)
    finish([row])


if __name__ == "__main__":
    main()
