"""The order of the rows of an epoch: a function of sizes, seed and epoch alone. Pure.

Files are read by *blocks* (a row group, say), so a shuffle that drew rows one by one would decode
one block for each. Instead blocks are permuted, concatenated, and cut into
*windows* of about ``window`` rows, which are permuted by row. That reads every block once, holds
one window in memory, and needs some numbers for each block, none for each row.

Permutations are bijections of [0, n) that are computed, not drawn: four pairs of Feistel rounds on
two digits whose product covers n, repeated where a number falls outside. They do not depend on the
version of numpy.

Blocks of a file that can only be read from its beginning to its end keep their order: they are a
*run*, and runs are permuted.

*Lanes* are for trainers that each read only their rows of every batch: the sequence of windows is
cut into equal parts, and every batch takes an equal chunk of each. So a trainer whose share of a
batch is some of these chunks reads only these parts of the files. Lanes are part of the order: the
batches are the same for any number of trainers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hpcdist.base.division import equal_part

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_ROUNDS = 4  # pairs of Feistel rounds
_WORD = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


def permuted(places: Numbers, count: int, key: int) -> Numbers:
    """Return where a permutation of [0, ``count``), chosen by ``key``, has each of ``places``."""
    side = max(int(np.ceil(np.sqrt(count))), 1)
    while side * side < count:  # the root of a large number may have been rounded down
        side += 1
    values = places.astype(np.uint64)
    outside = np.ones(len(values), bool)
    while outside.any():
        values[outside] = _rounds(values[outside], np.uint64(side), key)
        outside = values >= np.uint64(count)
    return values.astype(np.int64)


def _rounds(values: Any, side: Any, key: int) -> Any:
    left, right = values // side, values % side
    for number in range(_ROUNDS):
        left = _added(left, _mixed(right, key, 2 * number), side)
        right = _added(right, _mixed(left, key, 2 * number + 1), side)
    return left * side + right


def _added(digit: Any, bits: Any, side: Any) -> Any:
    """Add 32 random bits, scaled to [0, side), modulo ``side``."""
    total = digit + ((bits * side) >> np.uint64(32))
    return np.minimum(total, total - side)  # the difference of the smaller ones wraps around


def _mixed(values: Any, key: int, number: int) -> Any:
    """Return 32 bits of each value, mixed with the key (the finalizer of SplitMix64)."""
    z = values + np.uint64((key + (number + 1) * _ODD) & _WORD)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    z >>= np.uint64(32)
    return z


def key_of(*numbers: int) -> int:
    """Return 64 bits that follow from integers."""
    key = 0
    for number in numbers:
        key = (key ^ (number & _WORD)) * _ODD & _WORD
        key ^= key >> 29
        key = key * 0xBF58476D1CE4E5B9 & _WORD
        key ^= key >> 32
    return key


@dataclass(frozen=True)
class Shuffle:
    """How rows are shuffled; without a seed they keep the order of the files."""

    seed: int | None = None
    window: int = 1 << 17  # rows
    lanes: int = 1
    chunk: int = 1  # consecutive rows that a lane gives
    runs: tuple[int, ...] = ()  # numbers of blocks that keep their order; empty: each is alone


@dataclass(frozen=True)
class BlockRows:
    """Consecutive rows of a block."""

    block: int
    begin: int
    end: int


@dataclass(frozen=True)
class Window:
    """Rows that are read together, and permuted among themselves."""

    lane: int
    begin: int  # in its lane
    rows: int
    pieces: tuple[BlockRows, ...]
    key: int | None

    def places(self) -> Numbers | None:
        """Return which row of the pieces comes first, second, ...; None: as they are."""
        return None if self.key is None else permuted(np.arange(self.rows), self.rows, self.key)


@dataclass(frozen=True)
class Run:
    """Consecutive rows of a window."""

    window: Window
    begin: int
    end: int


class Order:
    """The order of one epoch, over blocks of ``sizes`` rows.

    A *position* is a number from 0 to ``rows``: how many rows of the epoch have been used, by all
    trainers together.
    """

    def __init__(self, sizes: Sequence[int], shuffle: Shuffle, epoch: int) -> None:
        self.shuffle = shuffle
        self.epoch = epoch
        self._sizes = np.asarray(sizes, np.int64)
        self._firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._sizes)])
        self.rows = int(self._firsts[-1])
        lanes, chunk = shuffle.lanes, shuffle.chunk
        self._lane_rows = self.rows // (lanes * chunk) * chunk
        if sum(shuffle.runs) not in (0, len(self._sizes)):
            raise ValueError(f"runs of {sum(shuffle.runs)} blocks, there are {len(self._sizes)}")

    @cached_property
    def _blocks(self) -> Numbers:
        """Blocks as they follow each other."""
        count = len(self._sizes)
        if self.shuffle.seed is None:
            return np.arange(count)
        runs = np.asarray(self.shuffle.runs or np.ones(count), np.int64)
        places = np.arange(len(runs))
        chosen = permuted(places, len(runs), key_of(self.shuffle.seed, self.epoch, 0))
        firsts = np.cumsum(runs) - runs
        parts = [np.arange(firsts[run], firsts[run] + runs[run]) for run in chosen]
        return np.concatenate([np.empty(0, np.int64), *parts])

    @cached_property
    def _lanes(self) -> list[list[Window]]:
        """Windows of every lane; after the last lane, those of the rows that are left over."""
        cuts = [lane * self._lane_rows for lane in range(self.shuffle.lanes + 1)] + [self.rows]
        ends = np.cumsum(self._sizes[self._blocks])
        return [
            list(self._windows(lane, begin, end, ends))
            for lane, (begin, end) in enumerate(pairwise(cuts))
        ]

    def _windows(self, lane: int, begin: int, end: int, ends: Numbers) -> Iterator[Window]:
        """Cut ``begin:end`` of the permuted blocks, which end at ``ends``, into windows."""
        least = max(self.shuffle.window // self.shuffle.lanes, 1)
        seed = self.shuffle.seed
        pieces: list[BlockRows] = []
        rows, first = 0, 0
        number = int(np.searchsorted(ends, begin, "right"))
        at = begin
        while at < end:
            block = int(self._blocks[number])
            block_begin = int(ends[number] - self._sizes[block])
            upto = min(int(ends[number]), end)
            if upto > at:
                pieces.append(BlockRows(block, at - block_begin, upto - block_begin))
                rows += upto - at
            at, number = upto, number + 1
            if pieces and (rows >= least or seed is None or at == end):
                key = None if seed is None else key_of(seed, self.epoch, 1, lane, first)
                yield Window(lane, first, rows, tuple(pieces), key)
                first, rows, pieces = first + rows, 0, []

    @cached_property
    def _begins(self) -> list[list[int]]:
        return [[window.begin for window in lane] for lane in self._lanes]

    def runs(self, begin: int, end: int) -> Iterator[Run]:
        """Yield the rows of positions ``begin:end``, in order."""
        at = begin
        while at < end:
            lane, place, left = self._place(at)
            window = self._lanes[lane][bisect_right(self._begins[lane], place) - 1]
            first = place - window.begin
            count = min(end - at, left, window.rows - first)
            yield Run(window, first, first + count)
            at += count

    def _place(self, position: int) -> tuple[int, int, int]:
        """Return lane, place in it, and how many rows of it follow each other from there."""
        lanes, chunk = self.shuffle.lanes, self.shuffle.chunk
        if position >= lanes * self._lane_rows:
            return lanes, position - lanes * self._lane_rows, self.rows - position
        if lanes == 1:
            return 0, position, self._lane_rows - position
        number, within = divmod(position, chunk)
        return number % lanes, number // lanes * chunk + within, chunk - within

    def row_numbers(self, window: Window, places: Numbers | None) -> Numbers:
        """Return the rows of a window in the order of ``places``, counted through all blocks."""
        first = self._firsts
        numbers = np.concatenate(
            [np.arange(first[p.block] + p.begin, first[p.block] + p.end) for p in window.pieces]
        )
        return numbers if places is None else numbers[places]


def share(begin: int, end: int, trainer: int, trainers: int) -> tuple[int, int]:
    """Return the positions that one trainer has of a batch ``begin:end``: as feeds are divided."""
    first, last = equal_part(end - begin, trainer, trainers)
    return begin + first, begin + last
