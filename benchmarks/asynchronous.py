"""Race asynchronous training: the real Fluid's fleet communicator, hpcdist, a loop by hand.

    python benchmarks/asynchronous.py --fluid-python /path/to/python3.7/bin/python

Each job is 2 parameter servers and 2 trainers on this machine, linear regression; figures are the
steps per second of both trainers together. The second race makes trainer 1 slow and compares
hpcdist with itself, asynchronous against synchronous, where every step waits for the slow one.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rounds import (
    BARE,
    FROM_CHECKOUT,
    HERE,
    Contender,
    Failed,
    Target,
    arguments,
    environment,
    finish,
    race,
    run_child,
)
from vs_fluid import LIMIT_S, MPI_ENVIRONMENT, SERVERS, TRAINERS, free_port, mpirun, run_roles

SCRIPT = str(HERE / "train_async.py")
CASE = "linreg"
# Steps that take a few seconds here; (warm-up, timed).
STEPS = {"fluid": (50, 500), "hpcdist": (2000, 20000), BARE: (2000, 20000)}
SLOW_MS, SLOW_S = 5.0, 4.0  # trainer 1 sleeps in each step; the race takes so many seconds
TARGETS = (Target("hpcdist", "fluid", 20.0), Target("hpcdist", BARE, 0.2))
SLOW_TARGETS = (Target("async", "sync", 2.0),)


def counts(name: str, scale: float) -> list[str]:
    """Return the options that say how many steps a contender makes."""
    warmup, steps = (max(10, round(n * scale)) for n in STEPS[name])
    return ["--warmup", str(warmup), "--steps", str(steps)]


def together(folder: str) -> dict[str, Any]:
    """Return the steps per second of all trainers, from the files they wrote."""
    found = [json.loads(path.read_text()) for path in Path(folder).glob("trainer_*.json")]
    if len(found) != TRAINERS:
        raise Failed(f"expected results of {TRAINERS} trainers, got {len(found)}")
    for result in found:
        first, last = result["losses"]
        if not last < first:
            raise Failed(f"did not learn: the loss went from {first:g} to {last:g}")
    return {"steps_per_s": sum(result["steps_per_s"] for result in found)}


def run_hpcdist(*options: str) -> dict[str, Any]:
    """Run the fleet script under hpcdist on 4 ranks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [mpirun(), "-n", str(SERVERS + TRAINERS), sys.executable, "-m", "hpcdist"]
        command += ["--quiet", "--as-paddle", "--pservers", str(SERVERS), SCRIPT]
        done = subprocess.run(
            [*command, "--results", folder, *options],
            env=environment(MPI_ENVIRONMENT | FROM_CHECKOUT),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise Failed(f"exit status {done.returncode}:\n{done.stderr[-2000:]}")
        return together(folder)


def run_bare(scale: float) -> dict[str, Any]:
    """Run the loop by hand on 4 ranks; its trainers are equally fast."""
    command = [mpirun(), "-n", str(SERVERS + TRAINERS), sys.executable, HERE / "bare_mpi.py"]
    command += ["--asynchronous", *counts(BARE, scale)]
    result = run_child(command, MPI_ENVIRONMENT, LIMIT_S)
    return {"steps_per_s": TRAINERS * result["steps_per_s"]}


def run_fluid(python: str | None, scale: float) -> dict[str, Any]:
    """Run the fleet script under the real Fluid: 4 processes that talk gRPC."""
    hosts = [f"127.0.0.{i + 1}" for i in range(SERVERS)]
    port = str(free_port(hosts))
    common = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(f"{host}:{port}" for host in hosts),
        "PADDLE_TRAINERS_NUM": str(TRAINERS),
        "PADDLE_PORT": port,
    }
    roles = [common | {"TRAINING_ROLE": "PSERVER", "POD_IP": host} for host in hosts]
    roles += [
        common | {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(i)} for i in range(TRAINERS)
    ]
    with tempfile.TemporaryDirectory() as folder:
        run_roles(python, [SCRIPT, "--results", folder, *counts("fluid", scale)], roles)
        return together(folder)


def main() -> None:
    """Run both races; exit 1 if a target is missed."""
    parser = arguments(__doc__, 5)
    parser.add_argument("--fluid-python", help="the Python that has paddlepaddle==1.8.5")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    options = parser.parse_args()
    scale = options.scale
    contenders = [
        Contender("fluid", functools.partial(run_fluid, options.fluid_python, scale)),
        Contender("hpcdist", functools.partial(run_hpcdist, *counts("hpcdist", scale))),
        Contender(BARE, functools.partial(run_bare, scale)),
    ]
    title = "asynchronous linear regression, both trainers"
    rows = [race(CASE, title, contenders, options.rounds, TARGETS)]
    slow = ["--warmup", "50", "--steps", str(10**9), "--slow-ms", str(SLOW_MS)]
    slow += ["--seconds", str(SLOW_S * scale)]
    modes = [
        Contender(mode, functools.partial(run_hpcdist, *slow, "--strategy", mode))
        for mode in ("async", "sync")
    ]
    title = f"one trainer sleeps {SLOW_MS:g} ms in each step, both trainers"
    rows.append(race("slow", title, modes, options.rounds, SLOW_TARGETS))
    finish(rows)


if __name__ == "__main__":
    main()
