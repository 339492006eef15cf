"""What a room asks of a higher one, which says here how to load it: so not all processes do."""

from __future__ import annotations

from collections.abc import Callable

_loaders: list[Callable[[], object]] = []


def expect(load: Callable[[], object]) -> None:
    """Call this before the executor asks for the first time what acts in this process."""
    _loaders.append(load)


def load() -> None:
    """Load what is expected, in the thread that asks first; others wait for it."""
    if _loaders:
        for loader in _loaders:
            loader()
        _loaders.clear()
