"""Rows in which all levels that may meet do, two, three or more at a time.

A covering array that grows row by row, so that what is found out by training one row (these levels
are refused together) holds for the next. allpairspy, which was tried first, ends when a row of its
search meets nothing new: of the triples here it leaves a quarter out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

import numpy as np

Level = tuple[str, str]  # a feature and one of its levels


class Covering:
    """Which ``ways`` levels have not met yet (``open``), and which never can."""

    def __init__(self, features: Mapping[str, Sequence[str]], ways: int, order: random.Random):
        self._features = [[(name, level) for level in levels] for name, levels in features.items()]
        levels = [level for of_feature in self._features for level in of_feature]
        self._levels, self._number = levels, {level: k for k, level in enumerate(levels)}
        self._ways, self._order = ways, order
        self._forbidden: dict[Level, list[frozenset[Level]]] = {level: [] for level in levels}
        self.open = np.ones((len(levels),) * ways, bool)
        for of_feature in self._features:  # no Program has two levels of one feature
            here = [self._number[level] for level in of_feature]
            for i, j, *_ in permutations(range(ways)):
                self._view(i, j)[np.ix_(here, here)] = False

    def forbid(self, levels: Iterable[Level]) -> None:
        """Have no row with all of these."""
        together = frozenset(levels)
        for level in together:
            self._forbidden[level].append(together)
        if len(together) <= self._ways:
            numbers = tuple(self._number[level] for level in together)
            for axes in permutations(range(self._ways), len(numbers)):
                self._view(*axes)[numbers] = False

    def cover(self, row: Mapping[str, str]) -> None:
        """Note that these levels have met; one that is not among the features' met nothing."""
        numbers = [self._number[level] for level in row.items() if level in self._number]
        self.open[np.ix_(*[numbers] * self._ways)] = False

    @property
    def left(self) -> int:
        """How many sets of levels have not met."""
        same = np.prod(range(1, self._ways + 1))
        return int(np.count_nonzero(self.open) // same)

    def row(self) -> dict[str, str] | None:
        """Return a row where levels meet that have not yet, or None if there is none."""
        while (place := self._any_open()) is not None:
            if found := self._completed({self._levels[k] for k in place}):
                row = dict(found)
                return {name: row[name] for ((name, _), *_) in self._features}
        return None

    def _any_open(self) -> tuple[int, ...] | None:
        (places,) = np.nonzero(self.open.reshape(-1))
        if not len(places):
            return None
        chosen = np.unravel_index(places[self._order.randrange(len(places))], self.open.shape)
        return tuple(int(k) for k in chosen)

    def _completed(self, first: set[Level]) -> set[Level] | None:
        """Return a row with these levels: of each feature the one with which most levels meet.

        If none of a feature can join those chosen there is no row, and what kept them apart is
        forbidden from now on: the next try does not come here again.
        """
        row, named = set(first), {name for name, _ in first}
        rest = [levels for levels in self._features if levels[0][0] not in named]
        self._order.shuffle(rest)
        while rest:
            apart = [[self._keeps_out(level, row) for level in levels] for levels in rest]
            free = [sum(one is None for one in of_feature) for of_feature in apart]
            at = min(range(len(rest)), key=lambda k: free[k] > 1)  # what has no choice first
            if not free[at]:
                self.forbid(frozenset().union(*filter(None, apart[at])) - set(rest[at]))
                return None
            levels = rest.pop(at)
            row.add(self._best([v for v, one in zip(levels, apart[at]) if one is None], row))
        return row

    def _best(self, levels: list[Level], chosen: set[Level]) -> Level:
        here = [self._number[level] for level in levels]
        there = [self._number[level] for level in chosen]
        met = self.open[np.ix_(here, *[there] * (self._ways - 1))]
        chances = [(int(of.sum()), self._order.random()) for of in met]
        return levels[max(range(len(levels)), key=chances.__getitem__)]

    def _keeps_out(self, level: Level, row: set[Level]) -> frozenset[Level] | None:
        """Return what is forbidden if a level joins a row."""
        joined = row | {level}
        return next((one for one in self._forbidden[level] if one <= joined), None)

    def _view(self, *axes: int) -> np.ndarray:
        """Return the open sets with these axes first."""
        return np.moveaxis(self.open, axes, range(len(axes)))
