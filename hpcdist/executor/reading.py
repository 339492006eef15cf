"""Batches that a run takes from started readers, in place of a feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import EOFException, FeedError
from hpcdist.base.trace.position import here
from hpcdist.executor.backend import Backend
from hpcdist.executor.fed import plain
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.graph.variable import BatchSource, Variable

_data: ProgramCache[list[Variable]] = ProgramCache()


def sources(program: Program) -> Sequence[BatchSource]:
    """Return the readers of a Program, in the order in which its variables were made."""
    data = _data.get(program)
    if data is None:
        variables = program.global_block().vars.values()
        data = _data.put(program, [v for v in variables if v.is_data or v.source is not None])
    # A loader may have been made since the Program ran last.
    return list({id(v.source): v.source for v in data if v.source is not None}.values())


def with_read(program: Program, feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the feed with the next batch of every reader of a Program.

    Raises EOFException if one has no more, FeedError if its variables are fed as well.
    """
    for source in sources(program):
        batch = _next(source)
        if twice := sorted(batch.keys() & feed.keys()):
            raise FeedError(
                f"feed {', '.join(map(repr, twice))}: the program reads it from {source.name}; "
                "leave it out of the feed, or make the loader with iterable=True"
            )
        feed = {**feed, **batch}
    return feed


def feed_ahead(program: Program, feeds: Sequence[tuple[str, Any]], backend: Backend) -> None:
    """Begin to copy to a GPU what readers of a Program have ready for its next step.

    ``feeds``: what this step was fed, by name, and where it lies.
    """
    for source in sources(program):
        batch = source.peek() or {}
        for name, buffer in feeds:
            value = plain(batch.get(name))
            if buffer is not None and type(value) is np.ndarray:
                backend.feed_ahead(name, value)


def parts_read(program: Program, feed: object, devices: int) -> Any:
    """Return the feeds of a Program on several devices: each gets a batch of every reader.

    At the end there may be fewer, if no reader leaves them out (``drop_last``).
    """
    loaders = sources(program)
    if not loaders:
        return feed
    if feed:
        raise FeedError(
            f"feed: on {devices} devices a program that reads from {loaders[0].name} takes no feed "
            "besides; read all of it, or make the loader with iterable=True"
        )
    parts: list[Mapping[str, Any]] = []
    try:
        for _ in range(devices):
            parts.append(with_read(program, {}))
    except EOFException:
        if not parts or any(source.drop_last for source in loaders):
            raise
    return parts


def _next(source: BatchSource) -> dict[str, Any]:
    here.doing = f"waiting for a batch of {source.name}"
    try:
        return source.read()
    finally:
        here.doing = ""
