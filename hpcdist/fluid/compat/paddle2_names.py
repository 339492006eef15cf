"""The names of Paddle 2.6.2, and what to use instead of those that hpcdist does not have.

``paddle2_names.txt`` lists the names of each module that users meet, whether hpcdist has them or
not, and, in its section ``modules``, all modules.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from hpcdist.base import text_tables
from hpcdist.base.nearest import did_you_mean
from hpcdist.fluid.compat.instead import PADDLE, instead


@functools.cache
def table() -> dict[str, frozenset[str]]:
    """Return the names of each of Paddle's modules."""
    sections = text_tables.sections(__package__, "paddle2_names.txt").items()
    return {module: frozenset(" ".join(names).split()) for module, names in sections}


def is_known(module: str, name: str) -> bool:
    """Return whether a module of Paddle 2.6.2 has this name, or is one above such a module."""
    return name in table().get(module, ()) or f"{module}.{name}" in table()["modules"]


def describe_missing(module: str, name: str, names: Iterable[str]) -> str:
    """Say why a module has no such name; ``names`` are those that it has."""
    full = f"{module}.{name}"
    hint = did_you_mean(name, [n for n in names if not n.startswith("_")], most=3)
    if not is_known(module, name):
        there = ", neither here nor in Paddle 2.6.2" if module in table() else " in hpcdist"
        return f"{module} has no {name!r}{there}{hint}"
    found = instead(PADDLE, full) or f"docs/paddle2.md says what is{hint}"
    return f"{full} of Paddle 2.6.2 is not in hpcdist: {found}"
