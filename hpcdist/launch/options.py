"""The command line of ``python -m hpcdist``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base import settings
from hpcdist.base.setting import Setting, Word
from hpcdist.fluid.compat import fluid_options
from hpcdist.launch.command_line import Parser, argument
from hpcdist.runtime.job.failure_policy import OnFailure

DESCRIPTION = """\
Run a training script in one process, or as one of the ranks that mpirun or srun starts.

  python -m hpcdist train.py
  mpirun -n 4 python -m hpcdist --pservers 2 train.py
  srun -n 4 python -m hpcdist --pservers 2 -m package.train --epochs 3"""

EPILOG = """\
The options of Fluid's launchers, such as --worker_num and --gpus, are understood too; variables of
the environment set options, such as HPCDIST_PSERVERS: see docs/launch.md."""


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    pservers: int | None
    pservers_per_node: int | None
    role: str | None
    role_map: str | None
    log_dir: str | None
    trace: str | None
    metrics: str | None
    metrics_also: tuple[str, ...]
    prometheus: str | None
    all_output: bool
    quiet: bool
    verbose: bool
    as_paddle: bool
    as_torchrun: bool
    feed: str
    dense: str
    seed: int
    deadline: int | None
    on_failure: OnFailure | None
    on_nan: str
    umask: int | None
    worker_num: int | None
    nproc_per_node: int | None
    log_level: int | None
    module: bool
    script: str  # a module's name, if ``module``
    script_args: tuple[str, ...]


def parse(argv: Sequence[str] | None = None) -> Options:
    """Return the options in ``argv`` (default: the process's own).

    SettingError for a wrong value of a variable that sets an option.
    """
    declared = parser()
    options = vars(declared.parse_args(sys.argv[1:] if argv is None else argv))
    options = fluid_options.settle(declared, options)
    if options["quiet"] and options["verbose"]:
        declared.error("--quiet and --verbose: give one of them")
    if options["pservers_per_node"] is not None:
        if options["role_map"] is not None:
            declared.error("--pservers-per-node K is the role map node:*=K: give one of them")
        options["role_map"] = f"node:*={options['pservers_per_node']}"
    options["all_output"] |= options["as_torchrun"]  # torchrun shows what all ranks print
    return Options(**options | {"script_args": tuple(options["script_args"])})


def names() -> list[str]:
    """List all options, as --name."""
    return [name for action in parser()._actions for name in action.option_strings]


def parser(**changed: Any) -> argparse.ArgumentParser:
    """Declare the command line of ``run``; ``changed`` settings are argparse's."""
    usage = "%(prog)s [options] script.py|-m module [its arguments]"
    settled = {"description": DESCRIPTION, "epilog": EPILOG, "usage": usage, **changed}
    declared = Parser("run", **settled)
    _add_options(declared)
    add_script(declared)
    return declared


def options_only() -> argparse.ArgumentParser:
    """Declare the options of ``run`` without its script."""
    declared = Parser(add_help=False)
    _add_options(declared)
    return declared


def _add_options(declared: argparse.ArgumentParser) -> None:
    roles = declared.add_argument_group("roles of the ranks")
    _add(roles, settings.PSERVERS, "P", "number of ranks that are servers, the last P")
    _add(roles, settings.PSERVERS_PER_NODE, "K", "number of servers on each node, its last ranks")
    _add(roles, settings.ROLE_MAP, "MAP", "which ranks serve: servers-first, t,t,s,s, node:*=1")
    roles.add_argument(
        "--role",
        type=argument(Word("trainer", "pserver")),
        metavar="ROLE",
        help="trainer or pserver: the ranks of this command, of several that make a job",
    )
    scripts = declared.add_argument_group("scripts")
    scripts.add_argument(
        "--as-paddle", action="store_true", help="`import paddle` in the script imports hpcdist"
    )
    scripts.add_argument(
        "--as-torchrun", action="store_true", help="the script is PyTorch's, written for torchrun"
    )
    _add(
        scripts,
        settings.FEED,
        "WHAT",
        "what each feeds: whole (default), or local: its rows",
    )
    _add(
        scripts,
        settings.DENSE,
        "WHERE",
        "where parameters outside tables live: pserver (default), or collective",
    )
    scripts.add_argument(
        "--seed",
        type=argument(settings.SEED.kind),
        default=settings.SEED.default,
        metavar="N",
        help="seed of random numbers (default 0)",
    )
    shown = declared.add_argument_group("what is shown and written")
    shown.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    shown.add_argument(
        "--verbose", action="store_true", help="print all options and variables at the start"
    )
    shown.add_argument("--all-output", action="store_true", help="show the stdout of every rank")
    shown.add_argument("--log-dir", metavar="DIR", help="a file for the output of each rank")
    shown.add_argument("--trace", metavar="DIR", help="record every operator and message")
    _add(shown, settings.METRICS, "DIR", "progress and metrics of each rank, for top and report")
    _add(shown, settings.METRICS_ALSO, "FORMATS", "metrics as csv, tensorboard, or both, too")
    _add(shown, settings.PROMETHEUS, "DIR", "progress for Prometheus's textfile collector")
    _add(shown, settings.UMASK, "OCTAL", "umask of all files; 077 lets only their owner read them")
    failures = declared.add_argument_group("failures")
    failures.add_argument(
        "--deadline",
        type=argument(settings.RPC_DEADLINE.kind),
        metavar="MS",
        help="longest wait for a message (FLAGS_rpc_deadline, 180000; with --as-torchrun 1800000)",
    )
    _add(failures, settings.ON_FAILURE, "WHAT", "after the death of a trainer: end, or continue")
    _add(failures, settings.ON_NAN, "WHAT", "at the first NaN: warn (default), or end")
    fluid_options.add(declared)


def add_script(declared: argparse.ArgumentParser) -> None:
    """Declare what is run: a script or a module, and its arguments."""
    declared.add_argument(
        "-m", "--module", action="store_true", help="the script is a module: -m package.train"
    )
    declared.add_argument("script", help="the training script")
    arguments = declared.add_argument(
        "script_args", nargs=argparse.REMAINDER, help="everything after it is passed to it"
    )
    arguments.required = False  # argparse would ask for them where the script is missing


def _add(
    group: argparse._ActionsContainer, setting: Setting[Any], metavar: str, help_text: str
) -> None:
    """Add an option that an environment variable can set, too."""
    name = setting.name.removeprefix("HPCDIST_").lower().replace("_", "-")
    group.add_argument(
        f"--{name}",
        type=argument(setting.kind),
        metavar=metavar,
        default=setting.read(),
        help=help_text,
    )
