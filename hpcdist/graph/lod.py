"""Lod: how the rows of a value group into sequences (Fluid's level of detail)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError

Offsets = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Lod:
    """Sequences of ``level`` levels, the outermost first.

    ``offsets[k]`` (int64, one longer than there are items) ascends from 0: item i of level k
    consists of items offsets[k][i]:offsets[k][i + 1] of the next level; those of the last level
    are rows. While a Program is built, only the number of levels is known.
    """

    level: int
    offsets: tuple[Offsets, ...] = ()

    @staticmethod
    def of_offsets(levels: Sequence[Sequence[int] | Offsets]) -> Lod:
        """Make a Lod of offsets; FeedError if they do not ascend from 0 or levels do not fit."""
        arrays = tuple(np.array(level, np.int64) for level in levels)
        for k, array in enumerate(arrays):
            if array.ndim != 1 or not array.size or array[0] != 0 or (np.diff(array) < 0).any():
                raise FeedError(
                    f"level {k} of a lod: offsets must ascend from 0, got {array.tolist()}"
                )
        for k, (outer, inner) in enumerate(itertools.pairwise(arrays)):
            if outer[-1] != len(inner) - 1:
                raise FeedError(
                    f"level {k} of a lod ends at {outer[-1]}, but the next level has "
                    f"{len(inner) - 1} sequences"
                )
        return Lod(len(arrays), arrays)

    @staticmethod
    def of_lengths(levels: Sequence[Sequence[int] | Offsets]) -> Lod:
        """Make a Lod of the lengths of its sequences, level by level."""
        zero = np.zeros(1, np.int64)
        return Lod.of_offsets([np.concatenate([zero, np.cumsum(n)]) for n in levels])

    @property
    def known(self) -> bool:
        """Return whether the offsets are there."""
        return bool(self.offsets)

    @property
    def last(self) -> Offsets:
        """Offsets of the last level: where each sequence's rows begin and end."""
        return self.offsets[-1]

    @property
    def lengths(self) -> Offsets:
        """Numbers of rows of the last level's sequences."""
        return np.diff(self.last)

    @property
    def sequences(self) -> int:
        """Number of sequences of the last level, -1 if not known."""
        return len(self.last) - 1 if self.known else -1

    @property
    def rows(self) -> int:
        """Number of rows, -1 if not known."""
        return int(self.last[-1]) if self.known else -1

    @property
    def outer(self) -> Lod | None:
        """The levels above the last: what is left when each sequence becomes one row."""
        return Lod(self.level - 1, self.offsets[:-1]) if self.level > 1 else None

    @staticmethod
    def joined(lods: Sequence[Lod]) -> Lod:
        """Return the sequences of all, of as many levels each, one after the other."""
        levels = zip(*(lod.offsets for lod in lods))
        return Lod.of_lengths([np.concatenate([np.diff(a) for a in level]) for level in levels])

    def same(self, other: Lod | None) -> bool:
        """Return whether another Lod has the same offsets."""
        if self is other:
            return True
        return (
            other is not None
            and self.level == other.level
            and len(self.offsets) == len(other.offsets)
            and all(map(np.array_equal, self.offsets, other.offsets))
        )

    def cut(self, begin: int, end: int) -> tuple[Lod, int, int]:
        """Return the outermost sequences ``begin:end``, and the range of rows they have."""
        cut = []
        for offsets in self.offsets:
            part = offsets[begin : end + 1]
            cut.append(part - part[0])
            begin, end = int(part[0]), int(part[-1])
        return Lod(self.level, tuple(cut)), begin, end
