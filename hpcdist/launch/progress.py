"""A progress bar on rank 0, and only where somebody looks at a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yield ``items``; on rank 0, with a terminal on stderr, a bar shows how far that is."""
    if os.environ.get("HPCDIST_RANK", "0") != "0" or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description="", total=total, console=Console(stderr=True))
