"""The commands of hpcdist, and the page that ``hpcdist --help`` shows.

A command is a module with `parser()`, which declares its command line, and `main(words)`. It is
imported when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from hpcdist.base.errors import LaunchError
from hpcdist.base.extras import install_command
from hpcdist.launch import options
from hpcdist.launch.command_line import Parser, program

_OVERVIEW = """\
usage: {program} [options] script.py [arguments of the script]
       {program} COMMAND ...

Train one script on many ranks: in one process, or as one of the ranks that
mpirun or srun starts. Options come before the script.

  python -m hpcdist train.py                            in one process
  mpirun -n 4 python -m hpcdist --pservers 2 train.py   on 2 trainers, 2 servers
  srun python -m hpcdist --as-paddle train.py           under Slurm, from Paddle
  mpirun -n 4 python -m hpcdist --as-torchrun train.py  a script for torchrun

commands:
{commands}

`{program} run --help` has all options, `... COMMAND --help` its own."""


@dataclass(frozen=True)
class Command:
    """A command: the module that does it, and one line about it."""

    module: str
    summary: str

    def load(self) -> ModuleType:
        """Import the module."""
        return importlib.import_module(f"hpcdist.launch.{self.module}")


RUN = "run"
COMMANDS = {
    RUN: Command("options", "run a script; the word may be left out"),
    "slurm": Command("slurm", "write a batch script for Slurm"),
    "top": Command("top", "show the progress of a running job in the terminal"),
    "report": Command("job_report", "write an HTML page about a job"),
    "doctor": Command("doctor.command", "check the machines of a job, and the links between them"),
    "checkpoint": Command("checkpoints", "show what checkpoints hold, or verify every byte"),
    "table": Command("tables", "show the rows of tables: statistics, the largest, differences"),
    "data": Command("data", "verify that a job used each row exactly once"),
    "settings": Command("settings_page", "list all environment variables"),
    "completion": Command("commands", "print the completion of this command line for a shell"),
}


def overview() -> str:
    """Describe the program on one screen."""
    listed = "\n".join(f"  {name:<12}{command.summary}" for name, command in COMMANDS.items())
    return _OVERVIEW.format(program=program(), commands=listed)


def do(words: Sequence[str]) -> None:
    """Carry out the command that the first of ``words`` names, and may exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names that its encoding lacks are no error
            stream.reconfigure(errors="backslashreplace")
    if words[0] == "completion":
        main(words[1:])
    else:
        COMMANDS[words[0]].load().main(words[1:])


# -- completion ------------------------------------------------------------------------------------
def parser() -> argparse.ArgumentParser:
    """Declare the command line of ``completion``."""
    declared = Parser(
        "completion",
        description="Print the completion of hpcdist's command line for a shell (needs shtab).\n\n"
        "  hpcdist completion bash >> ~/.bash_completion\n"
        '  hpcdist completion zsh > "${fpath[1]}/_hpcdist"',
    )
    declared.add_argument("shell", choices=("bash", "zsh"), help="the shell")
    return declared


def main(argv: Sequence[str]) -> None:
    """Print the completion; LaunchError if shtab is not installed."""
    shell = parser().parse_args(argv).shell
    try:
        import shtab
    except ImportError:
        raise LaunchError(f"completion needs shtab: {install_command('completion')}") from None
    print(shtab.complete(_whole(), shell=shell))


def _whole() -> argparse.ArgumentParser:
    """Put all commands, and the options of running a script, into one parser."""
    whole = argparse.ArgumentParser(prog="hpcdist", parents=[options.options_only()])
    below = whole.add_subparsers()
    for name, command in COMMANDS.items():
        declared = command.load().parser()
        below.add_parser(name, help=command.summary, parents=[declared], add_help=False)
    return whole
