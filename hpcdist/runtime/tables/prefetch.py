"""Prefetch: rows of the next batch are pulled while this one computes, in asynchronous mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

Feed = TypeVar("Feed", bound=Mapping[str, Any])

_coming: Mapping[str, Any] | None = None


def rows_ahead(feeds: Iterable[Feed]) -> Iterator[Feed]:
    """Yield feeds, each when the one after it is known too; feed them to `Executor.run` in turn.

    A trainer in asynchronous mode then asks for the next batch's rows of distributed tables as soon
    as it has this batch's, so that they travel while it computes. They miss what this step does to
    them: updates are one step more delayed. Elsewhere this changes nothing.
    """
    global _coming
    remaining = iter(feeds)
    feed = next(remaining, None)
    try:
        while feed is not None:
            following = next(remaining, None)
            _coming = following
            yield feed
            feed = following
    finally:
        _coming = None


def coming(names: Iterable[str]) -> list[np.ndarray] | None:
    """Return the flat values of these variables in the next feed; None if it is not known."""
    if _coming is None:
        return None
    values = [_coming.get(name) for name in names]
    if not all(isinstance(value, np.ndarray) for value in values):
        return None
    return [np.ascontiguousarray(value).reshape(-1) for value in values]
