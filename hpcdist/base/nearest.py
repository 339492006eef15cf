"""The question "did you mean ...?" at the end of messages about names that do not exist. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """Ask for the most similar of ``names``, or return an empty string if none is similar.

    Surrounding blanks do not count, nor does case, except between names that differ only in case:
    of those the more similar one is offered. Where none is similar, names that go on behind it are
    offered. ``most`` is the largest number of names to offer, ``cutoff`` the least similarity of an
    offer, from 0 to 1 (that of `difflib.get_close_matches`).

    >>> did_you_mean("learning_rat", ["size", "learning_rate"])
    "; did you mean 'learning_rate'?"
    >>> did_you_mean("Excutor", ["Executor", "executor"])
    "; did you mean 'Executor'?"
    >>> did_you_mean("mse", ["mse_loss", "mean"], cutoff=0.7)
    "; did you mean 'mse_loss'?"
    >>> did_you_mean("x", ["size", "learning_rate"])
    ''
    """
    import difflib  # which only errors need

    by_case: dict[str, list[str]] = {}
    for other in names:
        by_case.setdefault(other.strip().casefold(), []).append(other)
    folded = name.strip().casefold()
    longer = (other for other in by_case if folded and other.startswith(f"{folded}_"))
    near = difflib.get_close_matches(folded, by_case, most, cutoff) or [*longer][:most]
    best = (difflib.get_close_matches(name, by_case[found], 1, 0.0)[0] for found in near)
    offered = " or ".join(map(repr, best))
    return f"; did you mean {offered}?" if offered else ""
