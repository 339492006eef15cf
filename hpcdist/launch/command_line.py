"""What all command lines of hpcdist share: their parser, and what it says about mistakes."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from hpcdist.base.nearest import did_you_mean
from hpcdist.base.setting import ValueKind, Word
from hpcdist.base.version import version
from hpcdist.comm.process_manager import launched_rank

T = TypeVar("T")
SCREEN = 24, 80  # lines and columns that help has at first
WIDTH = 100  # columns of the help that tells all
# Options of the programs that start the processes of a job, which stand before ours.
_OF_MPIRUN = ("-n", "-np", "-c", "-N", "--np", "--ntasks", "--nodes", "--host", "--hostfile")
_OF_TORCHRUN = ("--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port")


class _Writes(Protocol):
    def write(self, text: str, /) -> object: ...


class _Version(argparse.Action):
    """Shows the version, which is looked up only then."""

    def __call__(
        self, parser: argparse.ArgumentParser, *_: object, option_string: str | None = None
    ) -> None:
        parser._print_message(f"hpcdist {version()}\n", sys.stdout)
        parser.exit()


class _HelpAll(argparse.Action):
    """Shows what every option does, however many there are."""

    def __call__(
        self, parser: argparse.ArgumentParser, *_: object, option_string: str | None = None
    ) -> None:
        parser._print_message(argparse.ArgumentParser.format_help(parser), sys.stdout)
        parser.exit()


class _Format(argparse.RawDescriptionHelpFormatter):
    """Keeps lines of examples, which are indented, as they are, and fills paragraphs."""

    def __init__(self, prog: str, width: int = WIDTH) -> None:
        super().__init__(prog, max_help_position=30, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(p if p.startswith("  ") else textwrap.fill(p, width) for p in paragraphs)


class Parser(argparse.ArgumentParser):
    """A parser of one command, which all tell the version.

    It prints on rank 0 only, since all ranks are given the same command line. An option that does
    not exist is refused before anything else is looked at, with the one that may be meant:
    argparse would take the value of such an option for the script.
    """

    def __init__(self, command: str = "", **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", _Format)
        super().__init__(prog=f"{program()} {command}".rstrip(), **options)
        self._positionals.title = "arguments"
        unset = argparse.SUPPRESS
        self.add_argument(
            "--version",
            action=_Version,
            nargs=0,
            dest=unset,
            default=unset,
            help="show the version",
        )
        if self.add_help:
            self.add_argument(
                "--help-all",
                action=_HelpAll,
                nargs=0,
                dest=unset,
                default=unset,
                help="show what every option does",
            )

    def format_help(self) -> str:
        """Return help of one screen: what every option does, or, if that is longer, their names."""
        lines, columns = SCREEN
        whole, short = _Format(self.prog, columns), _Format(self.prog, columns)
        for formatter in (whole, short):
            formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
            formatter.add_text(self.description)
        for group in self._action_groups:
            whole.start_section(group.title)
            whole.add_arguments(group._group_actions)
            whole.end_section()
        named = [text for text in map(_names_of, self._action_groups) if text]
        short.add_text("\n".join(named))
        short.add_text("--help-all tells what each option does.")
        for formatter in (whole, short):
            formatter.add_text(self.epilog)
        text = whole.format_help()
        return text if text.count("\n") <= lines else short.format_help()

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parse as argparse does, but look for unknown options first."""
        self._refuse_unknown(sys.argv[1:] if args is None else list(args))
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            try:
                Word(*map(str, action.choices)).parse(value)
            except ValueError as error:
                raise argparse.ArgumentError(action, str(error)) from None

    def error(self, message: str) -> NoReturn:
        """Print the usage and what is wrong, and exit with 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"hpcdist: error: {message}\n")

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = self._option_string_actions
        ends_at_first = any(a.nargs == argparse.REMAINDER for a in self._actions)
        skipped = 0  # values of the option before
        for word in words:
            name, gives, _ = word.partition("=")
            if skipped:
                skipped -= 1
            elif word == "--":
                return
            elif name in known:
                takes_none = known[name].nargs == 0
                skipped = 0 if gives or takes_none else 1
                if name == "--help-all" or known[name].dest in ("module", "help", "version"):
                    return
            elif name.startswith("-") and name[:2] not in known and not _is_number(name):
                self.error(unknown_option(name, list(known)))
            elif ends_at_first and not name.startswith("-"):
                return

    def _print_message(self, message: str, file: _Writes | None = None) -> None:
        if launched_rank() == 0:
            super()._print_message(message, file)


def unknown_option(name: str, known: Sequence[str]) -> str:
    """Say that an option does not exist, whose it is, or which one may be meant. Pure."""
    job = "mpirun -n 4 python -m hpcdist"
    if name in _OF_MPIRUN:
        return f"{name} is an option of mpirun or srun, before python: {job} train.py"
    if name in _OF_TORCHRUN:
        return f"{name} is torchrun's; mpirun or srun says this: {job} --as-torchrun train.py"
    meant = did_you_mean(name, known)
    if len(name) == 2 and (begun := [repr(k) for k in known if k.startswith(f"-{name}")]):
        meant = f"; did you mean {' or '.join(begun)}?"
    return f"there is no option {name}{meant}"


def argument(kind: ValueKind[T]) -> Callable[[str], T]:
    """Make an argparse type for values of a setting of this kind."""

    def read(text: str) -> T:
        try:
            return kind.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def program() -> str:
    """Name this program as its user has started it."""
    return "hpcdist" if Path(sys.argv[0]).name == "hpcdist" else "python -m hpcdist"


def _names_of(group: Any) -> str:
    """Name the options of a group, with what they take, as one paragraph of a screen."""
    names = []
    for action in group._group_actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            takes = action.metavar or ("|".join(action.choices) if action.choices else "")
            names.append(" ".join([action.option_strings[0], takes if action.nargs != 0 else ""]))
    text = f"{group.title}: {', '.join(name.rstrip() for name in names)}"
    lines = textwrap.wrap(text, SCREEN[1] - 2, subsequent_indent="    ", break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), "  ") if names else ""


def _is_number(word: str) -> bool:
    return word[1:].replace(".", "", 1).isdigit()
