"""Values whose shapes are known only in the step: results of loops and branches, and arrays.

An operator whose results' shapes follow from its operands' values has ``values`` in its definition
(`registry.OpDef`): a function of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import INTEGERS, MOST_NUMBERS, Meta

ARRAY = "LOD_TENSOR_ARRAY"
RANK_TABLE = "LOD_RANK_TABLE"


@dataclass(eq=False)
class Value:
    """An array, and how its rows group into sequences. Its numbers never change."""

    array: Any
    lod: Lod | None = None

    @cached_property
    def meta(self) -> Meta:
        """What shape rules see of it."""
        shape, dtype = tuple(self.array.shape), np.dtype(self.array.dtype).name
        few = dtype in INTEGERS and self.array.size <= MOST_NUMBERS
        numbers = tuple(self.array.reshape(-1).tolist()) if few else None
        return Meta(shape, dtype, lod=self.lod, numbers=numbers)

    @property
    def number(self) -> Any:
        """Its only element: an index, or a condition."""
        return self.array.reshape(-1)[0].item()


class TensorArray(list[Any]):
    """A list of Values, with None where nothing was written; changed by being made anew."""


@dataclass(frozen=True, eq=False)
class RankTable:
    """Sequences of one level of a value, those of the most items first: numbers and lengths.

    Items of the last level are rows, those of other levels are sequences themselves.
    """

    lod: Lod
    level: int
    order: Any
    lengths: Any = field(repr=False)

    @staticmethod
    def of(lod: Lod, level: int) -> RankTable:
        """Sort sequences; of equally long ones the first comes first."""
        lengths = np.diff(lod.offsets[level])
        order = np.argsort(-lengths, kind="stable")
        return RankTable(lod, level, order, lengths[order])

    @property
    def of_items(self) -> Lod:
        """How items, one row each, group into sequences."""
        return Lod(self.level + 1, self.lod.offsets[: self.level + 1])

    def longer(self, step: int) -> int:
        """Return how many sequences have an item at this step."""
        return int((self.lengths > step).sum())

    def items(self, step: int) -> Any:
        """Return the items of a step."""
        return self.lod.offsets[self.level][:-1][self.order[: self.longer(step)]] + step

    def rows(self, step: int) -> tuple[Any, Lod | None]:
        """Return the rows of a step, and how they group where its items are sequences."""
        return rows_of(self.items(step), self.lod.offsets[self.level + 1 :])


def rows_of(items: object, levels: Sequence[Any]) -> tuple[Any, Lod | None]:
    """Return the rows of some sequences of the first of these levels, and how they group then."""
    lengths = []
    for offsets in levels:
        starts, counts = offsets[:-1][items], np.diff(offsets)[items]
        lengths.append(counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        items = np.repeat(starts, counts) + within
    return items, Lod.of_lengths(lengths) if lengths else None
