"""Memory of values: offsets of temporaries (shared if lifetimes do not overlap), arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from hpcdist.base.division import round_up
from hpcdist.executor.backend import Backend
from hpcdist.executor.scope import Scope
from hpcdist.graph.registry import Meta
from hpcdist.ops.embedding.selected_rows import SelectedRows

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
    placed = np.empty((4, len(lifetimes)), np.int64)  # sorted by the first row
    total = 0
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, i))
    for count, index in enumerate(order):
        life = lifetimes[index]
        size = aligned(life.nbytes)
        begins, ends, firsts, lasts = placed[:, :count]
        beside = (firsts <= life.last) & (lasts >= life.first)
        # Below which offsets all is taken, before each neighbour and behind the last one.
        taken = np.maximum.accumulate(np.concatenate(([0], ends[beside])))
        fits = np.flatnonzero(begins[beside] - taken[:-1] >= size)
        offsets[index] = offset = int(taken[fits[0] if len(fits) else -1])
        total = max(total, offset + size)
        place = int(np.searchsorted(begins, offset, side="right"))
        placed[:, place + 1 : count + 1] = placed[:, place:count]
        placed[:, place] = offset, offset + size, life.first, life.last
    return offsets, total


def nbytes_of(meta: Meta) -> int:
    """Return the bytes that a value needs; of SelectedRows the row numbers lie before the rows."""
    item = np.dtype(meta.dtype).itemsize
    if meta.type != "SELECTED_ROWS":
        return math.prod(meta.shape) * item
    return aligned(meta.rows * 8) + meta.rows * math.prod(meta.shape[1:]) * item


def adjacent(arrays: Sequence[Any], backend: Backend) -> bool:
    """Return whether a backend's arrays are contiguous in its memory, each aligned."""
    if any(a is None or backend.adopt(a) is not a for a in arrays):
        return False
    starts = [backend.address(a) for a in arrays]
    ends = [start + a.nbytes for start, a in zip(starts, arrays)]
    return [aligned(end, backend.alignment) for end in ends[:-1]] == starts[1:]


def meta_of(value: Any) -> Meta:
    """Return shape, element type and kind of a value."""
    if isinstance(value, SelectedRows):
        shape = (value.height, *value.value.shape[1:])
        return Meta(shape, value.value.dtype.name, "SELECTED_ROWS", len(value.rows))
    return Meta(tuple(value.shape), value.dtype.name)


def carve(memory: Any, offset: int, meta: Meta) -> Any:
    """Return a value that lies ``offset`` bytes into memory, an array of uint8."""

    def piece(start: int, shape: tuple[int, ...], dtype: str) -> Any:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return memory[start : start + size].view(dtype).reshape(shape)

    if meta.type != "SELECTED_ROWS":
        return piece(offset, meta.shape, meta.dtype)
    rows = piece(offset, (meta.rows,), "int64")
    values = piece(offset + aligned(rows.nbytes), (meta.rows, *meta.shape[1:]), meta.dtype)
    return SelectedRows(rows, values, meta.shape[0])


def new_value(meta: Meta, backend: Backend) -> Any:
    """Return a value of zeros in separate memory; of SelectedRows without present rows, if -1."""
    if meta.type == "SELECTED_ROWS":
        rows = max(meta.rows, 0)
        value = backend.xp.zeros((rows, *meta.shape[1:]), meta.dtype)
        return SelectedRows(backend.xp.zeros(rows, "int64"), value, meta.shape[0])
    return carve(backend.bytes(nbytes_of(meta)), 0, meta)


def adopted(value: object, backend: Backend) -> Any:
    """Return a value in a backend's memory: itself, unless it is in another's."""
    if not isinstance(value, SelectedRows):
        return backend.adopt(value)
    rows = backend.adopt(value.rows)
    if rows is value.rows:
        return value
    return replace(value, rows=rows, value=backend.adopt(value.value))


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Return the least multiple of ``alignment`` that is not below ``nbytes``."""
    return round_up(nbytes, alignment)


def lay_contiguous(
    groups: Sequence[Sequence[str]],
    metas: Mapping[str, Meta],
    scope: Scope,
    backend: Backend,
    memory_of: Callable[[int, Backend], Any],
) -> None:
    """Move the kept values of each group one after the other, unless they lie so.

    ``memory_of(nbytes, backend)`` gives the memory for a group.
    """
    for group in groups:
        variables = [scope.var_or_new(n) for n in group]
        if adjacent([h.value for h in variables], backend):
            for var in variables:
                var.laid = True
            continue
        offsets, nbytes = aligned_offsets([metas[n] for n in group], backend.alignment)
        memory = memory_of(nbytes, backend)
        if backend.alignment > 1:
            memory.fill(0)  # what lies between values is summed with them
        for name, var, offset in zip(group, variables, offsets):
            array = carve(memory, offset, metas[name])
            if var.value is not None:
                array[...] = backend.adopt(var.value)
            var.hold(array)
            var.laid = True


def aligned_offsets(metas: Sequence[Meta], alignment: int) -> tuple[list[int], int]:
    """Return where values begin that are contiguous, and the bytes of all of them."""
    sizes = [aligned(nbytes_of(meta), alignment) for meta in metas]
    *offsets, total = accumulate(sizes, initial=0)
    return offsets, total
