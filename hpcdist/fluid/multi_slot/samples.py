"""Samples by columns: for each slot the values of all samples, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.errors import DataError
from hpcdist.graph.lod import Lod
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.variable import Variable

DTYPES = ("int64", "float32")
_ID_DTYPE = "uint8"


@dataclass(frozen=True)
class SampleSlot:
    """A field of every sample, for the data variable ``name``.

    ``shape`` is that of one sample's values; None: any number of them, one in each row.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def width(self) -> int:
        """Number of values in each sample; 0: any number."""
        return 0 if self.shape is None else math.prod(self.shape)

    @property
    def is_fed(self) -> bool:
        """Return whether there is a variable for it."""
        return self.dtype != _ID_DTYPE


LINE_ID = SampleSlot("id of the line", _ID_DTYPE, None)  # its bytes, by which samples may be merged


def slot_of(variable: Variable) -> SampleSlot:
    """Return the slot that feeds a data variable; DataError if text cannot."""
    name, shape = variable.name, tuple(variable.shape)
    if variable.dtype not in DTYPES:
        raise DataError(f"set_use_var: {name!r} must be of {' or '.join(DTYPES)}")
    if variable.lod_level > 1:
        raise DataError(f"set_use_var: {name!r} has lod_level {variable.lod_level}, at most 1")
    if not shape or shape[0] != -1 or any(extent < 1 for extent in shape[1:]):
        raise DataError(f"set_use_var: {name!r} must have the shape [-1, known, ...], got {shape}")
    if not variable.lod_level:
        return SampleSlot(name, variable.dtype, shape[1:])
    if math.prod(shape[1:]) != 1:
        raise DataError(f"set_use_var: {name!r} is ragged, so one value a row, got {shape}")
    return SampleSlot(name, variable.dtype, None)


@dataclass(frozen=True)
class Column:
    """The values of a slot, and where each sample's begin and end: int64 [samples + 1]."""

    values: np.ndarray
    offsets: np.ndarray


@dataclass(frozen=True)
class Samples:
    """Some samples; all columns have as many."""

    slots: Sequence[SampleSlot]
    columns: list[Column]

    def __len__(self) -> int:
        return len(self.columns[0].offsets) - 1

    @property
    def nbytes(self) -> int:
        """Memory of the values and offsets."""
        return sum(column.values.nbytes + column.offsets.nbytes for column in self.columns)

    def part(self, begin: int, end: int) -> Samples:
        """Return the samples ``begin:end``; no copy of values."""
        columns = []
        for values, offsets in ((c.values, c.offsets[begin : end + 1]) for c in self.columns):
            columns.append(Column(values[offsets[0] : offsets[-1]], offsets - offsets[0]))
        return Samples(self.slots, columns)

    def feed(self) -> dict[str, LoDTensor | np.ndarray]:
        """Return the feed of these samples, by variables: of ragged slots LoDTensors."""
        fed: dict[str, LoDTensor | np.ndarray] = {}
        for slot, column in zip(self.slots, self.columns):
            if not slot.is_fed:
                continue
            if slot.shape is None:
                rows = column.values.reshape(-1, 1)
                fed[slot.name] = LoDTensor(rows, Lod(1, (column.offsets,)))
            else:
                fed[slot.name] = column.values.reshape(len(self), *slot.shape)
        return fed

    def without_zeros(self) -> Samples:
        """Return the samples without the zeros of ragged slots; one is left where all are zero."""
        from hpcdist.fluid.multi_slot import kernels  # numba takes 0.3 s to import

        return Samples(
            self.slots,
            [
                Column(*kernels.without_zeros(c.values, c.offsets))
                if slot.is_fed and slot.shape is None
                else c
                for slot, c in zip(self.slots, self.columns)
            ],
        )


def permutation(count: int, random: np.random.Generator) -> np.ndarray:
    """Return 0, 1, ... in a random order, in half the memory that numpy's takes."""
    order = np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
    random.shuffle(order)
    return order


def shuffled(samples: Samples, random: np.random.Generator) -> Samples:
    """Return the samples in a random order; ``samples`` is used up, column by column."""
    return arranged(samples, permutation(len(samples), random))


def arranged(samples: Samples, order: np.ndarray) -> Samples:
    """Return the samples ``order``; ``samples`` is used up, column by column."""
    columns = []
    while samples.columns:
        columns.append(taken(samples.columns.pop(0), order))
    return Samples(samples.slots, columns)


def slots_shuffled(samples: Samples, random: np.random.Generator, names: Set[str]) -> Samples:
    """Return the samples, with those of some slots in a random order, the same for these."""
    order = permutation(len(samples), random)
    columns = [
        taken(column, order) if slot.name in names else column
        for slot, column in zip(samples.slots, samples.columns)
    ]
    return Samples(samples.slots, columns)


def taken(column: Column, order: np.ndarray) -> Column:
    """Return the values of samples in another order."""
    from hpcdist.fluid.multi_slot.kernels import take_values  # numba takes 0.3 s to import

    offsets = np.zeros(len(order) + 1, np.int64)
    np.cumsum((column.offsets[1:] - column.offsets[:-1])[order], out=offsets[1:])
    values = np.empty(offsets[-1], column.values.dtype)
    take_values(column.values, column.offsets, order, values, offsets)
    return Column(values, offsets)


def joined(columns: Sequence[Column]) -> Column:
    """Return the samples of several columns of one slot, one after the other."""
    if len(columns) == 1:
        return columns[0]
    begins = np.cumsum([0, *(c.offsets[-1] for c in columns)])
    offsets = [c.offsets[:-1] + begin for c, begin in zip(columns, begins)]
    return Column(
        np.concatenate([c.values for c in columns]), np.concatenate([*offsets, begins[-1:]])
    )


def concatenated(pieces: Sequence[Samples]) -> Samples:
    """Return the samples of all pieces, at least one."""
    if len(pieces) == 1:
        return pieces[0]
    columns = [joined(of_slot) for of_slot in zip(*(piece.columns for piece in pieces))]
    return Samples(pieces[0].slots, columns)


def no_samples(slots: Sequence[SampleSlot]) -> Samples:
    """Return none at all."""
    offsets = np.zeros(1, np.int64)
    return Samples(slots, [Column(np.empty(0, slot.dtype), offsets) for slot in slots])


def with_as_many_batches(samples: Samples, size: int, least: int) -> list[tuple[Samples, int]]:
    """Return the samples in parts, with their batches' size: as many as ``least`` samples fill.

    Trainers that share all samples equally have some one more: where that would be a batch more,
    the last one is in the batch before.
    """
    count = len(samples)
    if not least or -(-count // size) <= -(-least // size):
        return [(samples, size)]
    last = count - size - 1
    return [(samples.part(0, last), size), (samples.part(last, count), size + 1)]


def batches(
    pieces: Iterator[Samples], size: int, drop_last: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield what batches of ``size`` samples are fed as; ``drop_last``: not a last, short one."""
    remainder: list[Samples] = []  # fewer than `size` samples
    count = 0
    for piece in pieces:
        begin = 0
        while count + len(piece) - begin >= size:
            end = begin + size - count
            yield concatenated([*remainder, piece.part(begin, end)]).feed()
            remainder, count, begin = [], 0, end
        if begin < len(piece):
            remainder.append(piece.part(begin, len(piece)))
            count += len(piece) - begin
    if remainder and not drop_last:
        yield concatenated(remainder).feed()
