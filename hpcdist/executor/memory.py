"""Where temporaries lie: buffers whose lifetimes do not meet share memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.executor.backend import Backend
from hpcdist.graph.registry import Meta

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


@dataclass(frozen=True)
class Lifetime:
    """A buffer of ``nbytes`` needed from step ``first`` through step ``last``."""

    first: int
    last: int
    nbytes: int


def assign_offsets(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return a byte offset for every buffer, and the size of the pool they need.

    Greedy by size: the largest buffer first, each at the lowest offset where nothing that lives
    at the same time lies (Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net
    Inference", 2020). Offsets are multiples of ALIGNMENT.
    """
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, Lifetime]] = []  # (offset, end, lifetime), sorted by offset
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, i)):
        life = lifetimes[index]
        size = -(-life.nbytes // ALIGNMENT) * ALIGNMENT
        offset = 0
        for begin, end, other in placed:
            if other.last < life.first or life.last < other.first:
                continue
            if begin - offset >= size:
                break
            offset = max(offset, end)
        offsets[index] = offset
        total = max(total, offset + size)
        placed.append((offset, offset + size, life))
        placed.sort(key=lambda entry: entry[0])
    return offsets, total


def nbytes_of(meta: Meta) -> int:
    """Return the bytes that a value needs; of SelectedRows the row numbers lie before the rows."""
    item = np.dtype(meta.dtype).itemsize
    if meta.type != "SELECTED_ROWS":
        return math.prod(meta.shape) * item
    ids = -(-meta.rows * 8 // ALIGNMENT) * ALIGNMENT
    return ids + meta.rows * math.prod(meta.shape[1:]) * item


def adjacent(arrays: Sequence[Any], backend: Backend) -> bool:
    """Tell whether a backend's arrays lie one behind the other in its memory."""
    if any(a is None or backend.adopt(a) is not a for a in arrays):
        return False
    starts = [backend.address(a) for a in arrays]
    ends = [start + a.nbytes for start, a in zip(starts, arrays)]
    return ends[:-1] == starts[1:]
