"""``python -m hpcdist data verify DIR``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hpcdist.base.errors import DataError
from hpcdist.data.columnar.verify import verify
from hpcdist.launch.command_line import Parser
from hpcdist.launch.words import printable

DESCRIPTION = """\
Verify that a job used each row exactly once.

  python -m hpcdist data verify certificates/

DIR holds the certificates of data.read(..., certificate=DIR). The exit code is 0 if every row was
used exactly once, up to the last step of the job; otherwise it is 1, and the rows are listed."""


def parser() -> argparse.ArgumentParser:
    """Declare the command line of ``data``."""
    declared = Parser("data", description=DESCRIPTION)
    declared.add_argument("action", choices=("verify",), help="what to do")
    declared.add_argument("directory", type=Path, metavar="DIR", help="the certificates")
    return declared


def main(argv: Sequence[str]) -> None:
    """Say whether every row was used exactly once; exits with 1 if not."""
    arguments = parser().parse_args(argv)
    try:
        exact = _verify(arguments.directory)
    except DataError as error:
        print(printable(f"not verified: {error}"))
        exact = False
    if not exact:
        raise SystemExit(1)


def _verify(directory: Path) -> bool:
    verdicts = verify(directory)
    for verdict in verdicts:
        total = sum(size for _, blocks in verdict.files for size in blocks)
        print(
            f"{len(verdict.files)} files, {total} rows; runs of this job: {verdict.runs}; "
            f"rows undone by a restore: {verdict.rolled_back}"
        )
        if verdict.others:
            print(f"  {verdict.others} runs ignored: of other jobs, or undone by a restore")
        for epoch in verdict.epochs:
            state = "" if epoch.complete else ", under way"
            result = "each row once" if epoch.exact else "NOT each row once"
            bad = f", {epoch.skipped} left out as bad" if epoch.skipped else ""
            print(
                f"  epoch {epoch.number}{state}: {epoch.used} of {epoch.rows} rows{bad}: {result}"
            )
            for word, rows in (
                ("not used", epoch.missing),
                ("used twice or more", epoch.repeated),
                ("in flight when a trainer ended", epoch.in_flight),
            ):
                if rows:
                    print(f"    {word}: {len(rows)} rows")
                    for words in verdict.named(rows):
                        print(f"      {printable(words)}")
        for words in dict.fromkeys(verdict.left_out):
            print(f"  left out: {printable(words)}")
        for words in verdict.damage:
            print(f"  damaged: {printable(words)}")
    exact = all(verdict.exact for verdict in verdicts)
    print("every row exactly once" if exact else "not every row exactly once")
    return exact
