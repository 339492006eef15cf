"""Checks before a job starts: every rank looks for problems, and one error names them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcdist.base import hdf5, settings
from hpcdist.base.errors import LaunchError, SettingError
from hpcdist.base.extras import install_command
from hpcdist.base.hidden import hidden_module
from hpcdist.base.nearest import did_you_mean
from hpcdist.fluid.compat.fluid_names import ROOT
from hpcdist.launch import (
    logs,
    status_writer,
)
from hpcdist.launch.commands import COMMANDS
from hpcdist.launch.options import Options, names
from hpcdist.launch.roles import RankFacts

LOOKED_AT = 2**16  # bytes of a script


def local_facts(options: Options) -> RankFacts:
    """Return this rank's facts that all must know before roles are given, and its problem."""
    problem = _problem_with(options) or _problem_with_settings() or _problem_with_torch(options)
    if not problem and options.log_dir is not None:
        problem = logs.problem_with("log directory", options.log_dir)
    if not problem and options.trace is not None:
        problem = logs.problem_with("directory of the trace", options.trace)
    problem = problem or status_writer.problem_with(options)
    if not problem and (trouble := hdf5.problem()):
        problem = f"h5py {trouble}: {hdf5.ADVICE}"
    environment = settings.role_variables() | role_from_options(options)
    return RankFacts(
        host=socket.gethostname(),
        pid=os.getpid(),
        pservers=options.pservers,
        role_map=options.role_map,
        env=environment,
        begun_ns=time.time_ns(),
        problem=problem,
        cores=sorted(os.sched_getaffinity(0)),
    )


def _problem_with_torch(options: Options) -> str:
    """Return why a script of torch's cannot run here, or an empty string."""
    if not options.as_torchrun or importlib.util.find_spec("torch"):
        return ""
    return f"--as-torchrun: torch is not installed: {install_command('torch')}"


def role_from_options(options: Options) -> dict[str, str]:
    """Return --role as the variable of the environment that says the same."""
    return {} if options.role is None else {"PADDLE_TRAINING_ROLE": options.role.upper()}


def _problem_with(options: Options) -> str:
    """Return why the script cannot be read here, or an empty string."""
    if options.module:
        return _problem_with_module(options.script, options.as_paddle)
    if options.script.endswith(".ipynb"):
        return f"{options.script} is a notebook: jupyter nbconvert --to script makes a script of it"
    try:
        with open(options.script, "rb") as file:
            begin = file.read(LOOKED_AT)
    except OSError as error:
        problem = f"cannot read the script {options.script!r} in {os.getcwd()}: {error.strerror}"
        return problem + _near(options.script)
    if b"\0" in begin:
        return f"{options.script} is no text in UTF-8: a program, or saved as UTF-16; save it anew"
    first = begin.partition(b"\n")[0].decode(errors="replace").strip()
    if first.startswith("#!") and "python" not in first:
        return f"{options.script} is no script of Python, it begins with {first}: name the script"
    return hidden_module(str(Path(options.script).resolve().parent))


def _problem_with_module(name: str, as_paddle: bool) -> str:
    """Return why there cannot be such a module here; below its package only running it tells."""
    top, here = name.partition(".")[0], os.getcwd()
    if (as_paddle and top == ROOT) or top in sys.modules:
        return ""
    if importlib.machinery.PathFinder.find_spec(top, [here]) or importlib.util.find_spec(top):
        return ""
    meant = did_you_mean(top, [p.stem for p in Path(here).iterdir() if p.suffix in ("", ".py")])
    return f"-m {name}: there is no module {top!r} in {here}, and none is installed{meant}"


def _near(script: str) -> str:
    """Ask whether a command, or another script of that directory, is meant."""
    path = Path(script)
    if Path(f"{script}.py").is_file():
        return f"; did you mean '{script}.py'?"
    if hint := did_you_mean(script, COMMANDS):
        return hint.replace("mean", "mean the command", 1)
    if path.is_dir():
        inside = sorted(path.glob("*.py"))
        return f": name the script in it, such as {inside[0] if inside else path / 'train.py'}"
    if hint := did_you_mean(script.partition("=")[0], names(), cutoff=0.75):
        return hint
    try:
        beside = [str(path.with_name(name)) for name in os.listdir(path.parent)]
    except OSError:
        return ""
    return did_you_mean(script, beside, cutoff=0.75)


def _problem_with_settings() -> str:
    """Return the problem with a setting in this rank's environment, or an empty string."""
    try:
        settings.check()
    except SettingError as error:
        return str(error)
    return ""


def refuse_problems(ranks: Sequence[RankFacts]) -> None:
    """Raise LaunchError with the first problem, and the ranks that have one."""
    troubled = [i for i, facts in enumerate(ranks) if facts.problem]
    if troubled:
        first = ranks[troubled[0]]
        raise LaunchError(
            f"{first.problem} (ranks {troubled}; rank {troubled[0]} is on {first.host})"
        )
