"""SelectedRows: the gradient of a table of which only some rows were touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class SelectedRows:
    """Rows of a table [height, ...]: ``value[i]`` belongs to row ``rows[i]``; the rest is zero.

    ``rows`` (int64 [n]) may repeat an index: its values add up. The arrays are numpy's or cupy's.
    """

    rows: Any
    value: Any
    height: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole table."""
        return (self.height, *self.value.shape[1:])

    @property
    def dtype(self) -> Any:
        """The element type of the values."""
        return self.value.dtype

    def copy(self) -> SelectedRows:
        """Return a copy that shares no memory with this one."""
        return SelectedRows(self.rows.copy(), self.value.copy(), self.height)

    def get(self) -> SelectedRows:
        """Return a copy in host memory of rows on a GPU."""
        return SelectedRows(self.rows.get(), self.value.get(), self.height)

    def merged(self) -> SelectedRows:
        """Return the same rows, each once, ascending; the values of repeats are summed."""
        xp = _library(self.rows)
        if len(self.rows) == 0:
            return self.copy()
        order = _stable_order(xp, self.rows)
        sorted_rows = self.rows[order]
        first = xp.ones(len(order), bool)
        xp.not_equal(sorted_rows[1:], sorted_rows[:-1], out=first[1:])
        rows = sorted_rows[first]
        if len(rows) == len(order):
            return SelectedRows(rows, self.value[order], self.height)
        if xp is np:
            value = np.add.reduceat(self.value[order], np.flatnonzero(first), axis=0)
        else:
            value = _added_in_order(xp, self.value[order], xp.flatnonzero(first))
        return SelectedRows(rows, value, self.height)

    def add_to(self, dense: Any) -> None:
        """Add the rows to a dense array of the table's shape, in place."""
        merged = self.merged()
        dense[merged.rows] += merged.value

    def to_dense(self) -> Any:
        """Return the whole table as a new dense array."""
        dense = _library(self.rows).zeros(self.shape, self.value.dtype)
        self.add_to(dense)
        return dense


def _library(array: Any) -> Any:
    """Return the array library an array belongs to."""
    if isinstance(array, np.ndarray):
        return np
    import cupy  # only there when the array is already on a GPU

    return cupy


def _stable_order(xp: Any, rows: Any) -> Any:
    return np.argsort(rows, kind="stable") if xp is np else xp.argsort(rows)  # cupy's is stable


def _added_in_order(xp: Any, value: Any, starts: Any) -> Any:
    """Sum runs of ``value``; run i begins at ``starts[i]``.

    One pass per repeat, so that a sum has the same bits in every run (atomic additions do not).
    """
    lengths = xp.append(starts[1:], len(value)) - starts
    total = value[starts]
    for k in range(1, int(lengths.max())):
        longer = xp.flatnonzero(lengths > k)
        total[longer] += value[starts[longer] + k]
    return total
