"""SelectedRows: the gradient of a table of which only some rows were touched."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcdist.base import device
from hpcdist.ops.embedding.run_kernels import add_runs
from hpcdist.ops.types import Array, ArrayModule


@dataclass
class SelectedRows:
    """Rows of a table [height, ...]: ``value[i]`` belongs to row ``rows[i]``; the rest is zero.

    ``rows`` (int64 [n]) may repeat an index: its values add up. The arrays are numpy's or cupy's.
    ``beside_rows``: this is a part of a gradient, and another part of it has rows.
    """

    rows: Array
    value: Array
    height: int
    beside_rows: bool = False

    @property
    def moves(self) -> bool:
        """Whether the whole gradient has rows: if not, no optimizer changes anything."""
        return self.beside_rows or len(self.rows) > 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole table."""
        return (self.height, *self.value.shape[1:])

    @property
    def dtype(self) -> Array:
        """The element type of the values."""
        return self.value.dtype

    def copy(self) -> SelectedRows:
        """Return a copy that shares no memory with this one."""
        return replace(self, rows=self.rows.copy(), value=self.value.copy())

    def get(self) -> SelectedRows:
        """Return a copy in host memory of rows on a GPU."""
        return replace(self, rows=device.download(self.rows), value=device.download(self.value))

    def merged(self) -> SelectedRows:
        """Return the same rows, each once, ascending; the values of repeats are summed."""
        if not isinstance(self.rows, np.ndarray):
            totals = self.totals()
            first = _begins(library_of(self.rows), totals.rows)
            return SelectedRows(totals.rows[first], totals.value[first], self.height)
        if len(self.rows) == 0:
            return self.copy()
        order = np.argsort(self.rows, kind="stable")
        sorted_rows = self.rows[order]
        first = _begins(np, sorted_rows)
        rows = sorted_rows[first]
        if len(rows) == len(order):
            return SelectedRows(rows, self.value[order], self.height)
        value = np.add.reduceat(self.value[order], np.flatnonzero(first), axis=0)
        return SelectedRows(rows, value, self.height)

    def totals(self, again: bool = True) -> SelectedRows:
        """Return the rows ascending, each with the sum of its repeats.

        On a GPU only, which alone knows how many there are, repeats stay, with the sum too or,
        without ``again``, with zeros: what sets rows, or adds up all values, need not wait for it.
        """
        if isinstance(self.rows, np.ndarray):
            return self.merged()
        xp = library_of(self.rows)
        order = xp.argsort(self.rows)  # cupy's is stable
        rows = xp.take(self.rows, order)
        flat = self.value.reshape(len(self.rows), math.prod(self.value.shape[1:]))
        total = xp.empty(flat.shape, flat.dtype)
        add_runs(xp, rows, order, flat, total, again)
        return SelectedRows(rows, total.reshape(self.value.shape), self.height)

    def fit(self, other: SelectedRows) -> None:
        """Make room for the rows of another: in new memory if trainers have gathered others."""
        if len(self.rows) != len(other.rows):
            xp = library_of(other.rows)
            self.rows, self.value = xp.empty_like(other.rows), xp.empty_like(other.value)

    def take(self, other: SelectedRows, change: Callable[[Array, Array], object]) -> None:
        """Become the rows of another, with the values that ``change`` makes of its values."""
        self.fit(other)
        self.rows[...] = other.rows
        change(other.value, self.value)

    def add_to(self, dense) -> None:
        """Add the rows to a dense array of the table's shape, in place."""
        totals = self.totals()
        dense[totals.rows] += totals.value

    def to_dense(self) -> Any:
        """Return the whole table as a new dense array."""
        dense = library_of(self.rows).zeros(self.shape, self.value.dtype)
        self.add_to(dense)
        return dense


def library_of(array) -> Array:
    """Return the array library an array belongs to."""
    if isinstance(array, np.ndarray):
        return np
    import cupy  # only there when the array is already on a GPU

    return cupy


def _begins(xp: ArrayModule, rows) -> Array:
    """Return which of the sorted rows are the first of their repeats, bool."""
    first = xp.ones(len(rows), bool)
    xp.not_equal(rows[1:], rows[:-1], out=first[1:])
    return first
