"""Values of which only the step knows what they are: results of loops and branches, and arrays.

An operator whose results' shapes follow from its operands' values has ``values`` in its definition
(`registry.OpDef`): a function of these.
"""

from __future__ import annotations

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
    """Sequences of a value, the longest first: their numbers and lengths."""

    lod: Lod
    order: Any
    lengths: Any = field(repr=False)

    @staticmethod
    def of(lod: Lod) -> RankTable:
        """Sort sequences; of equally long ones the first comes first."""
        order = np.argsort(-lod.lengths, kind="stable")
        return RankTable(lod, order, lod.lengths[order])

    def longer(self, step: int) -> int:
        """Return how many sequences have a row at this step."""
        return int((self.lengths > step).sum())

    def rows(self, step: int) -> Any:
        """Return the rows of a step."""
        return self.lod.last[:-1][self.order[: self.longer(step)]] + step
