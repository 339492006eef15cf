"""Names that are unique within a scope of counters, and the same in every process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

GRAD_SUFFIX = "@GRAD"
AVERAGED = "@AVERAGES_APPLIED@"  # in a scope: 1 while parameters have their averages there
EMPTY = "@EMPTY@"  # stands in a gradient's slot where nobody wants the value; names no variable


def grad_name(name: str) -> str:
    """Return the name of the gradient of variable ``name``."""
    return name + GRAD_SUFFIX


class UniqueNames:
    """Counters per key: the first ``generate("fc")`` gives ``fc_0``, the next ``fc_1``."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.counts: Counter[str] = Counter()

    def __call__(self, key: str) -> str:
        number = self.counts[key]
        self.counts[key] += 1
        return f"{self.prefix}{key}_{number}"


_current = UniqueNames()


def generate(key: str) -> str:
    """Return ``key_<n>``, n counting the earlier calls with this key."""
    return _current(key)


def switch(
    new_generator: UniqueNames | None = None, new_para_name_checker: None = None
) -> tuple[UniqueNames, None]:
    """Install other counters (fresh ones by default) and return the ones replaced.

    The second of both pairs is Fluid's, for its imperative mode: None.
    """
    return _installed(new_generator), None


def _installed(new: UniqueNames | None) -> UniqueNames:
    global _current
    old, _current = _current, new if new is not None else UniqueNames()
    return old


@contextmanager
def guard(new_generator: str | UniqueNames | None = None) -> Iterator[None]:
    """Count afresh inside the ``with``; a string becomes a prefix of every name."""
    new = UniqueNames(new_generator) if isinstance(new_generator, str) else new_generator
    old = _installed(new)
    try:
        yield
    finally:
        _installed(old)
