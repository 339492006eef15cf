"""Campaigns: many jobs with troubles that are drawn, and what became of them."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

AS_PROMISED = "as promised"
# What is broken, by words of the failure; whatever else fails is "wrong".
BROKEN = {
    "hang": ("has not ended within", "late:"),
    "unnamed": ("silent:", "no rank:"),
    "left over": ("left behind", "left over"),
}


class Drawn(Protocol):
    """A job of a campaign."""

    @property
    def deaths(self) -> Sized: ...


Some = TypeVar("Some", bound=Drawn)


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    job: str
    deaths: int
    seconds: float
    verdict: str  # AS_PROMISED, a key of BROKEN, or "wrong"
    words: str

    def __str__(self) -> str:
        return f"({self.seconds:.1f} s) {self.job}: {self.verdict}, {self.words}"


def attempt(kill: Some, run: Callable[[Some, Path], str]) -> Outcome:
    """Run a job in a directory of its own, which is kept if anything goes wrong."""
    directory = Path(tempfile.mkdtemp(prefix="kill-"))
    begin = time.monotonic()
    try:
        words = f"told by {run(kill, directory)}"
        _refuse_left_over(directory)
        shutil.rmtree(directory)
        verdict = AS_PROMISED
    except pytest.xfail.Exception as error:  # a fault of others that faults.md tells of
        verdict, words = AS_PROMISED, f"but {error}"
    except (Exception, pytest.fail.Exception) as error:
        text = str(error)
        kinds = (kind for kind, signs in BROKEN.items() if any(sign in text for sign in signs))
        verdict = next(kinds, "wrong")
        words = f"in {directory}: {type(error).__name__}: {text}"
    return Outcome(str(kill), len(kill.deaths), time.monotonic() - begin, verdict, words)


def _refuse_left_over(directory: Path, within_s: float = 10.0) -> None:
    """AssertionError if a process of a job, of any kind, is still there."""
    late = time.monotonic() + within_s
    while (left := _processes_in(directory)) and time.monotonic() < late:
        time.sleep(0.1)
    assert not left, f"left over: {left}"


def _processes_in(directory: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == directory:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def campaign(draw: Callable[[int], Some], run: Callable[[Some, Path], str]) -> None:
    """Run as many jobs as the first argument says, from the seed in the second on.

    Exits with 1 if any went wrong.
    """
    count, first = int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
    verdicts: Counter[str] = Counter()
    deaths = 0
    for seed in range(first, first + count):
        outcome = attempt(draw(seed), run)
        verdicts[outcome.verdict] += 1
        deaths += outcome.deaths
        print(f"{seed} {outcome}", flush=True)
    print(f"{deaths} deaths in {count} jobs: {dict(verdicts)}")
    sys.exit(verdicts.total() > verdicts[AS_PROMISED])
