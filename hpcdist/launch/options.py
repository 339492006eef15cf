"""The command line of ``python -m hpcdist``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hpcdist.launch import fluid_options, role_map
from hpcdist.launch.guard import launched_rank
from hpcdist.runtime.survival import OnFailure

DESCRIPTION = """\
Run a training script on one process or on many ranks.

  python -m hpcdist train.py                             alone, in this process
  mpirun -n 4 python -m hpcdist --pservers 2 train.py    2 trainers and 2 parameter servers
  srun -n 4 python -m hpcdist --pservers 2 train.py      the same under Slurm
  python -m hpcdist --as-paddle train.py                 a script that says `import paddle.fluid`
  python -m hpcdist checkpoint inspect PATH              what a checkpoint holds (or: verify)
  python -m hpcdist slurm --pservers 2 train.py          a batch script for Slurm

Every rank runs the same script and finds its role in its environment, under Fluid's names:
PADDLE_TRAINING_ROLE, PADDLE_TRAINER_ID, PADDLE_TRAINERS, PADDLE_PSERVER_IPS, PADDLE_PSERVER_PORT,
PADDLE_CURRENT_IP, and those of PaddleCloudRoleMaker. Options stand before the script; all that
follows it is the script's own."""

EPILOG = f"""\
role maps:
{role_map.HELP}

Roles that are already set in the environment of every rank (PADDLE_TRAINING_ROLE) are kept.
If one rank fails or is killed, all end, and one message says which, and where it was. Under
`mpirun --with-ft ulfm` a job can go on without trainers that were killed, see --on-failure."""


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    pservers: int | None
    pservers_per_node: int | None
    role: str | None
    role_map: str | None
    log_dir: str | None
    all_output: bool
    quiet: bool
    as_paddle: bool
    seed: int
    deadline: int | None
    on_failure: OnFailure | None
    worker_num: int | None
    nproc_per_node: int | None
    log_level: int | None
    script: str
    script_args: tuple[str, ...]


class _Writes(Protocol):
    def write(self, text: str, /) -> object: ...


class _Parser(argparse.ArgumentParser):
    """A parser that speaks on one rank only: all ranks are given the same command line."""

    def _print_message(self, message: str, file: _Writes | None = None) -> None:
        if launched_rank(os.environ) == 0:
            super()._print_message(message, file)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Return the options in ``argv`` (default: the process's own)."""
    parser = _Parser(
        prog="python -m hpcdist",
        description=DESCRIPTION,
        epilog=EPILOG,
        usage="%(prog)s [options] script.py [script arguments]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--pservers",
        type=_at_least(0),
        metavar="P",
        default=os.environ.get("HPCDIST_PSERVERS"),
        help="how many of the ranks are parameter servers (or HPCDIST_PSERVERS)",
    )
    parser.add_argument(
        "--pservers-per-node",
        type=_at_least(1),
        metavar="K",
        default=os.environ.get("HPCDIST_PSERVERS_PER_NODE"),
        help="how many ranks of each node are (or HPCDIST_PSERVERS_PER_NODE): role map node:*=K",
    )
    parser.add_argument(
        "--role",
        type=_one_of("trainer", "pserver"),
        metavar="{trainer,pserver}",
        help="what these ranks are, in a job whose parts have command lines of their own: "
        "srun --het-group=0 ... --role trainer T.py : --het-group=1 ... --role pserver T.py",
    )
    parser.add_argument(
        "--role-map",
        metavar="MAP",
        default=os.environ.get("HPCDIST_ROLE_MAP"),
        help="which ranks they are, see below (or HPCDIST_ROLE_MAP)",
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        help="write each rank's output to DIR/workerlog.K or serverlog.K; rank 0's is shown too",
    )
    parser.add_argument(
        "--all-output", action="store_true", help="show every rank's stdout, not only rank 0's"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="no table of the job's environment at the start"
    )
    parser.add_argument(
        "--as-paddle",
        action="store_true",
        help="let `import paddle` and `import paddle.fluid` mean hpcdist",
    )
    parser.add_argument(
        "--seed",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="seed of random and numpy.random, equal on all ranks (default 0)",
    )
    parser.add_argument(
        "--deadline",
        type=_at_least(1),
        metavar="MS",
        help="longest wait for a message, in milliseconds: sets FLAGS_rpc_deadline (180000)",
    )
    parser.add_argument(
        "--on-failure",
        type=_one_of("end", "continue"),
        metavar="{end,continue}",
        default=os.environ.get("HPCDIST_ON_FAILURE"),
        help="what happens when a trainer dies: the job ends, or goes on with the others, which "
        "needs `mpirun --with-ft ulfm` of Open MPI 5; by default asynchronous jobs go on and "
        "synchronous ones end (or HPCDIST_ON_FAILURE)",
    )
    fluid_options.add(parser)
    parser.add_argument("script", help="the training script")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, help="passed on as they are")
    found = vars(parser.parse_args(sys.argv[1:] if argv is None else argv))
    found = fluid_options.settle(parser, found, os.environ)
    if found["pservers_per_node"] is not None:
        if found["role_map"] is not None:
            parser.error("--pservers-per-node K is the role map node:*=K: give one of them")
        found["role_map"] = f"node:*={found['pservers_per_node']}"
    return Options(**found | {"script_args": tuple(found["script_args"])})


class _at_least:
    """An argparse type: an integer not below a bound."""

    def __init__(self, bound: int) -> None:
        self._bound = bound

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = self._bound - 1
        if value < self._bound:
            raise argparse.ArgumentTypeError(f"expected an integer >= {self._bound}, got {text!r}")
        return value


class _one_of:
    """An argparse type: one of some words, also where the default comes from the environment."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def __call__(self, text: str) -> str:
        if text not in self._words:
            raise argparse.ArgumentTypeError(f"expected {' or '.join(self._words)}, got {text!r}")
        return text
