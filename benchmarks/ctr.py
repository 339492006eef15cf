"""Click-through rates on 2 servers and 2 trainers: examples per second, beside the real Fluid's.

    python benchmarks/ctr.py --fluid-python /path/to/python3.7/bin/python

Wide and deep, 26 slots of Zipf ids, rows of 16, batches of 512 per trainer, synchronous. hpcdist's
tables are distributed (any id, rows made on first touch); Fluid's are its is_sparse path, arrays of
1,040,000 rows cut over the servers, because Fluid 1.8.5 cannot run is_distributed. All rows begin
alike, so the losses must agree. In `hybrid` the servers keep the tables only, and the trainers sum
dense gradients. `bare_ctr.py` is the same job by hand, a measure of what is possible.
Without --fluid-python that column is left out.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import ctr_train
import vs_fluid
from rounds import (
    BARE,
    CONSOLE,
    FROM_CHECKOUT,
    HERE,
    Contender,
    Target,
    arguments,
    json_line,
    race,
    run_child,
    say,
)

LEAST = 12_000  # examples per second, both trainers together
TOLERANCE = 2e-3  # ids that repeat are added up in another order
STEPS = {
    "fluid": (10, 60),
    "hpcdist": (20, 300),
    "hybrid": (20, 300),
    BARE: (20, 300),
}  # warm-up, timed


def counts(name: str, scale: float) -> list[str]:
    """Return the options that say how many steps a contender makes."""
    warmup, steps = (max(5, round(n * scale)) for n in STEPS[name])
    return ["--warmup", str(warmup), "--steps", str(steps)]


def run_hpcdist(scale: float, name: str = "hpcdist") -> dict[str, Any]:
    """Run the script under hpcdist on 4 ranks."""
    ranks = str(vs_fluid.SERVERS + vs_fluid.TRAINERS)
    command = [vs_fluid.mpirun(), "-n", ranks, sys.executable, "-m", "hpcdist", "--pservers"]
    command += [str(vs_fluid.SERVERS), "--dense", "collective" if name == "hybrid" else "pserver"]
    command += [str(HERE / "ctr_train.py"), *counts(name, scale)]
    return run_child(command, vs_fluid.MPI_ENVIRONMENT | FROM_CHECKOUT, vs_fluid.LIMIT_S)


def run_bare(scale: float) -> dict[str, Any]:
    """Run the job by hand on 4 ranks."""
    ranks = str(vs_fluid.SERVERS + vs_fluid.TRAINERS)
    command = [vs_fluid.mpirun(), "-n", ranks, sys.executable, HERE / "bare_ctr.py"]
    return run_child(
        [*command, *counts(BARE, scale)],
        vs_fluid.MPI_ENVIRONMENT | FROM_CHECKOUT,
        vs_fluid.LIMIT_S,
    )


def run_fluid(python: str | None, scale: float) -> dict[str, Any]:
    """Run the script under the real Fluid: 4 processes that talk gRPC."""
    command = [str(HERE / "ctr_train.py"), *counts("fluid", scale)]
    return json_line(vs_fluid.run_roles(python, command, vs_fluid.roles()))


def main() -> None:
    """Run the race; exit 1 if a target is missed."""
    parser = arguments(__doc__, 3)
    parser.add_argument("--fluid-python", help="the Python that has paddlepaddle==1.8.5")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    options = parser.parse_args()
    contenders = [
        Contender(name, functools.partial(run_hpcdist, options.scale, name))
        for name in ("hpcdist", "hybrid")
    ]
    contenders.append(Contender(BARE, functools.partial(run_bare, options.scale)))
    if options.fluid_python is None:
        CONSOLE.print("no --fluid-python given: hpcdist runs alone")
    else:
        fluid = functools.partial(run_fluid, options.fluid_python, options.scale)
        contenders.insert(0, Contender("fluid", fluid))
    title = "wide and deep, 26 slots, 16 columns, 512 examples per step and trainer"
    targets = [Target("hpcdist", "fluid", 2.0), Target("hpcdist", BARE, 0.6)]
    row = race("ctr", title, contenders, options.rounds, targets, TOLERANCE)
    if "hpcdist" not in row["steps_per_s"]:
        sys.exit(1)
    row["examples_per_s"] = {
        name: found * vs_fluid.TRAINERS * ctr_train.BATCH
        for name, found in row["steps_per_s"].items()
    }
    reached = row["examples_per_s"]["hpcdist"] >= LEAST
    for name, found in row["examples_per_s"].items():
        CONSOLE.print(f"{name}: {found:,.0f} examples/s")
    CONSOLE.print(f"target {LEAST:,} examples/s: {'reached' if reached else 'MISSED'}")
    say([row])
    missed = any(value["ratio"] < value["target"] for value in row["ratios"].values())
    sys.exit(missed or not reached)


if __name__ == "__main__":
    main()
