"""The question "did you mean ...?" at the end of messages about names that do not exist. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Ask for the most similar of ``names``, or return an empty string if none is similar.

    Surrounding blanks do not count, nor does case, except between names that differ only in case:
    of those the more similar one is offered. ``most`` is the largest number of names to offer,
    ``cutoff`` the least similarity of an offer, from 0 to 1 (that of `difflib.get_close_matches`).

    >>> did_you_mean("learning_rat", ["size", "learning_rate"])
    "; did you mean 'learning_rate'?"
    >>> did_you_mean("Excutor", ["Executor", "executor"])
    "; did you mean 'Executor'?"
    >>> did_you_mean("x", ["size", "learning_rate"])
    ''
    """
    by_case: dict[str, list[str]] = {}
    for other in names:
        by_case.setdefault(other.strip().casefold(), []).append(other)
    near = difflib.get_close_matches(name.strip().casefold(), by_case, most, cutoff)
    best = (difflib.get_close_matches(name, by_case[folded], 1, 0.0)[0] for folded in near)
    offered = " or ".join(map(repr, best))
    return f"; did you mean {offered}?" if offered else ""
