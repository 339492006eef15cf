"""``paddle.distributed``'s entries: which ids of a sparse table get a row, and what counts them."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.ps.row_policy import ClickScore, RowPolicy

__all__ = ["CountFilterEntry", "ProbabilityEntry", "ShowClickEntry"]


class EntryAttr:
    """Base of the entries."""

    _fields: tuple[Any, ...] = ()
    policy = RowPolicy()  # what it says, in our words

    def _to_attr(self) -> str:
        """Return the entry as Paddle's text."""
        return ":".join(map(str, self._fields))


class ProbabilityEntry(EntryAttr):
    """Gives a new id a row with a probability, a float between 0 and 1."""

    def __init__(self, probability: float) -> None:
        if not isinstance(probability, float) or not 0 < probability < 1:
            raise GraphError(f"probability: expected a float in (0, 1), got {probability!r}")
        self._fields = ("probability_entry", probability)
        self.policy = RowPolicy(admit_probability=probability)


class CountFilterEntry(EntryAttr):
    """Gives an id a row when it has come ``count_filter`` times."""

    def __init__(self, count_filter: int) -> None:
        whole = isinstance(count_filter, Integral) and not isinstance(count_filter, bool)
        if not whole or count_filter < 0:
            raise GraphError(f"count_filter: expected an integer, 0 or more, got {count_filter!r}")
        self._fields = ("count_filter_entry", int(count_filter))
        self.policy = RowPolicy(admit_after=max(1, int(count_filter)))


class ShowClickEntry(EntryAttr):
    """Counts shows and clicks of each row, which two variables [batch, 1] of these names say."""

    def __init__(self, show_name: str, click_name: str) -> None:
        if not isinstance(show_name, str) or not isinstance(click_name, str):
            raise GraphError(
                "ShowClickEntry: expected the names of two variables, got "
                f"{show_name!r} and {click_name!r}"
            )
        self._fields = ("show_click_entry", show_name, click_name)
        # What 2.6.2 takes where a strategy says nothing: only rows that are not seen expire.
        score = ClickScore(show_click_decay_rate=1.0, delete_threshold=0.0)
        self.policy = RowPolicy(score=score, shows=(show_name, click_name))
