"""Troubles put into jobs and machines on purpose: do the report and the doctor name them?

As a program: ``python -m tests.fault.troubles`` injects all, and looks at healthy jobs and machines
too; ``python -m tests.fault.troubles leak links`` only those with such words in their names. It
prints a table, and exits with 1 if a trouble is not named or a healthy one is.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Case:
    """A trouble, or none, and how to look at the job or the machine that has it."""

    name: str
    by: str  # "report" or "doctor"
    expects: str  # a pattern of what must be said, "" if nothing must be
    look: Callable[[Path], list[str]]  # in a directory; returns what is said, line by line
    missing: Callable[[], str] = str  # what this machine lacks to inject it, or ""


@dataclass(frozen=True)
class Verdict:
    """What was said of a case."""

    named: bool  # the trouble; of a healthy case: nothing was
    said: tuple[str, ...]
    besides: tuple[str, ...]  # that speaks of other troubles


def judge(case: Case, said: list[str]) -> Verdict:
    """Compare what was said with what is expected."""
    # What else runs on this machine is no trouble of the case.
    said = [line for line in said if not re.match("an overloaded machine: |load: ", line)]
    if not case.expects:
        return Verdict(not said, tuple(said), tuple(said))
    named = re.search(case.expects, "\n".join(said), re.MULTILINE) is not None
    besides = [s for s in said if ADVICE.match(s) and not re.search(case.expects, s)]
    return Verdict(named, tuple(said), tuple(besides))


# What begins like this is a finding; the lines of a failed job's message are not.
ADVICE = re.compile(
    r"(a slow (rank|server)|the (reader|script)|placement|small messages|garbage collection|"
    r"checkpoints|memory|launcher|versions|thread level|shared memory|stale files|limits|cores|"
    r"threads of linear algebra|network|clocks|files|HDF5|GPUs|links): "
)


def chosen(words: list[str]) -> list[Case]:
    """Return the cases with one of these words in their names, all without words."""
    from tests.fault import trouble_cases, trouble_machines  # they import this module

    cases = [*trouble_machines.CASES, *trouble_cases.CASES]
    return [case for case in cases if not words or any(word in case.name for word in words)]


def main() -> None:
    """Look at the chosen cases; exits with 1 if one goes wrong."""
    counts: Counter[str] = Counter()
    for case in chosen(sys.argv[1:]):
        kind = "trouble" if case.expects else "healthy"
        if lacking := case.missing():
            print(f"- {case.by} | {case.name} | not tried: {lacking}", flush=True)
            counts[f"{kind} not tried"] += 1
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="trouble-") as directory:
            try:
                verdict = judge(case, case.look(Path(directory)))
            except (Exception, pytest.fail.Exception) as error:
                verdict = Verdict(False, (f"{type(error).__name__}: {error}",), ())
        counts[f"{kind} {'right' if verdict.named else 'WRONG'}"] += 1
        counts["besides"] += bool(case.expects and verdict.besides)
        word = "ok" if verdict.named else "WRONG"
        print(f"{word} | {case.by} | {case.name} | {time.monotonic() - begin:.1f} s", flush=True)
        for line in verdict.said if not verdict.named else verdict.besides:
            print(f"      {line}", flush=True)
    print(dict(sorted(counts.items())))
    sys.exit(any(name.endswith("WRONG") for name in counts))


if __name__ == "__main__":
    main()
