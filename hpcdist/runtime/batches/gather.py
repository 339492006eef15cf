"""Combines values of trainers that share a batch into the value of the whole batch. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.graph.lod import Lod
from hpcdist.graph.lod_tensor import LoDTensor, concatenated
from hpcdist.graph.rows import How, OfRows
from hpcdist.runtime.batches.scatter import (
    Division,
    Share,
)

Value = np.ndarray | LoDTensor


def pack(values: Sequence[Value], ofs: Sequence[OfRows], share: Share) -> bytes:
    """Pack a trainer's values for the others.

    If its rows do not count, these are only values that it keeps from other batches.
    """
    sent = {How.COUNTS} if not share.counted else set(How) - {How.SAME}
    return b"".join(_packed(v, of.how) for v, of in zip(values, ofs) if of.how in sent)


def _packed(value: Value, how: How) -> bytes:
    """Numbers of rows, and lengths of sequences level by level, stand before ragged rows."""
    array = np.asarray(value)
    if how is not How.RAGGED:
        return array.tobytes()
    levels = value.recursive_sequence_lengths() if isinstance(value, LoDTensor) else []
    facts = [len(array), *itertools.chain(*([len(level), *level] for level in levels))]
    return np.array(facts, np.int64).tobytes() + array.tobytes()


class _Reader:
    """Reads what one trainer packed."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._start = 0

    def read(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return the next array."""
        array = np.frombuffer(self._packed, dtype, math.prod(shape), self._start)
        self._start += array.nbytes
        return array.reshape(shape)

    def read_ragged(self, like: Value) -> LoDTensor:
        """Return the next rows of sequences, with as many levels as this trainer's own."""
        (rows,) = self.read([1], np.int64)
        levels = len(like.lod()) if isinstance(like, LoDTensor) else 0
        lengths = [self.read([int(self.read([1], np.int64)[0])], np.int64) for _ in range(levels)]
        local = np.asarray(like)
        array = self.read([rows, *local.shape[1:]], local.dtype)
        return LoDTensor(array, Lod.of_lengths(lengths) if levels else None)


def unpack(
    packed: Sequence[bytes | None],
    values: Sequence[Value],
    ofs: Sequence[OfRows],
    division: Division,
) -> list[Value]:
    """Return the values of the whole batch from what all trainers packed; ``values`` are its own.

    ``division`` says which rows each of the trainers that packed had.

    Everything is combined in trainer order, so all trainers get the same bits. The rows of a
    trainer that has died before it gave its values (None) are left out.
    """
    living = [(k, _Reader(data)) for k, data in enumerate(packed) if data is not None]
    samples = division.counts[""]
    readers = [(k, reader) for k, reader in living if samples[k]]
    if not readers:
        return list(values)
    joined: list[Value] = []
    for value, of in zip(values, ofs):
        if of.how is How.SAME:
            joined.append(value)
            continue
        if of.how is How.RAGGED:
            joined.append(concatenated([reader.read_ragged(value) for _, reader in readers]))
            continue
        local = np.asarray(value)
        of_sample = division.share.end - division.share.begin
        per_row = len(local) // of_sample if of.how is How.ROWS else 0
        if of.how is How.COUNTS:
            joined.append(np.sum([r.read(local.shape, local.dtype) for _, r in living], axis=0))
            continue
        parts = []
        for k, reader in readers:
            shape = local.shape
            if of.how is How.ROWS and not division.why_whole:
                shape = (per_row * samples[k], *shape[1:])
            parts.append(reader.read(shape, local.dtype))
        weights = row_weights(of, division)
        counts = [weights[k] for k, _ in readers]
        array = _joined(parts, counts, of.how).astype(local.dtype, copy=False)
        if division.why_whole and isinstance(value, LoDTensor):  # all trainers have these
            joined.append(LoDTensor(array, value.sequences))
            continue
        joined.append(array)
    return joined


def join_rows(rows: np.ndarray, of: OfRows, division: Division) -> np.ndarray:
    """Return a value of the whole batch from every trainer's, [trainers, *shape].

    It is a mean, sum, maximum or minimum; the bits are those of `unpack`.
    """
    weights = row_weights(of, division)
    with_rows = [k for k, counted in enumerate(division.counts[""]) if counted]
    joined = _joined([rows[k] for k in with_rows], [weights[k] for k in with_rows], of.how)
    return joined.astype(rows.dtype, copy=False)


def row_weights(of: OfRows, division: Division) -> Sequence[int]:
    """Return how many rows of a batch the value of each trainer stands for."""
    return division.counts[of.sequences if of.how is How.MEAN else ""]


def _joined(parts: Sequence[np.ndarray], counts: Sequence[int], how: How) -> np.ndarray:
    if len(parts) == 1:
        return parts[0].copy()  # not a view of a buffer that the next step writes
    if how is How.ROWS:
        return np.concatenate(parts)
    if how is How.MAX:
        return np.max(parts, axis=0)
    if how is How.MIN:
        return np.min(parts, axis=0)
    wide = np.stack(parts).astype("float64" if parts[0].dtype.kind == "f" else parts[0].dtype)
    if how is How.SUM:
        return wide.sum(axis=0)
    return np.average(wide, axis=0, weights=counts)
