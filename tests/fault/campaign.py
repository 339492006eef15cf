"""Campaigns: many jobs with troubles that are drawn, and what became of them."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Protocol, TypeVar

import pytest


class Drawn(Protocol):
    """A job of a campaign."""

    deaths: Sized


Some = TypeVar("Some", bound=Drawn)


def campaign(draw: Callable[[int], Some], run: Callable[[Some, Path], str]) -> None:
    """Run as many jobs as the first argument says, from the seed in the second on.

    Exits with 1 if any went wrong.
    """
    count, first = int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])
    wrong: Counter[str] = Counter()
    deaths = 0
    for seed in range(first, first + count):
        kill, directory = draw(seed), Path(tempfile.mkdtemp(prefix=f"kill-{seed}-"))
        begin = time.monotonic()
        try:
            words = f"ok, told by {run(kill, directory)}"
            shutil.rmtree(directory)
        except (Exception, pytest.fail.Exception) as error:
            kind = "hang" if "has not ended within" in str(error) else str(error).split(":")[0]
            wrong[kind] += 1
            words = f"WRONG in {directory}: {type(error).__name__}: {error}"
        deaths += len(kill.deaths)
        print(f"{seed} ({time.monotonic() - begin:.1f} s) {kill}: {words}", flush=True)
    print(f"{count - wrong.total()} of {count} as promised, {deaths} deaths; wrong: {dict(wrong)}")
    sys.exit(bool(wrong))
