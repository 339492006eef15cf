"""`fluid.progress`: a progress bar on rank 0 in a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from hpcdist.base import settings

T = TypeVar("T")
LINE_S = 10.0  # between lines, where there is no terminal


def progress(items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yield ``items`` and show on rank 0, on stderr, how many have been taken.

    A bar in a terminal or a notebook. Elsewhere, as under mpirun or in a batch job's log, a line
    every ten seconds. ``total``: the number of items, by default ``len(items)`` if there is one.
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    if settings.RANK.read():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        yield from track(items, description="", total=total, console=console)
        return
    yield from _with_lines(items, total)


def _with_lines(items: Iterable[T], total: int | None) -> Iterator[T]:
    begin = last = time.monotonic()
    for count, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now > last + LINE_S:
            last = now
            print(f"hpcdist: {_line(count, total, now - begin)}", file=sys.stderr, flush=True)


def _line(count: int, total: int | None, seconds: float) -> str:
    share = f" of {total} ({count / total:.0%})" if total else ""
    return f"{count}{share}, {count / seconds:.3g} per second"
