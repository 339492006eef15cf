"""SelectedRows under the names that Fluid's scripts ask for, of their own or in a scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import FeedError
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.ops.embedding.selected_rows import SelectedRows

__all__ = ["SelectedRowsHandle"]


class Holder(Protocol):
    """What holds the value: a variable of a scope, or `_Own`."""

    value: Any

    def hold(self, value: object) -> None:
        """Take another value."""


class _Own:
    def __init__(self) -> None:
        self.value: Any = None

    def hold(self, value: object) -> None:
        self.value = value


class SelectedRowsHandle:
    """Fluid's ``core.SelectedRows``: which rows of a table of ``height`` rows are there, and them.

    Rows and their values are set one after the other, in any order; an operator that reads them
    needs as many of both (`checked`).
    """

    def __init__(
        self, rows: Sequence[int] = (), height: int = 0, holder: Holder | None = None
    ) -> None:
        self._holder: Holder = holder or _Own()
        if self._holder.value is None:
            present = np.array(rows, "int64")
            self._holder.hold(SelectedRows(present, np.zeros((len(present), 0)), height))

    @property
    def _value(self) -> SelectedRows:
        value: SelectedRows = self._holder.value
        return value

    def rows(self) -> list[int]:
        """Return the numbers of the rows, in the order of the values; they may repeat."""
        return [int(row) for row in on_host(self._value.rows)]

    def set_rows(self, rows: Sequence[int]) -> None:
        """Say which rows the values are."""
        self._holder.hold(replace(self._value, rows=np.array(rows, "int64")))

    def height(self) -> int:
        """Return the number of rows of the whole table."""
        return self._value.height

    def set_height(self, height: int) -> None:
        """Say how many rows the whole table has."""
        self._holder.hold(replace(self._value, height=int(height)))

    def numel(self) -> int:
        """Return the number of elements of the values."""
        return int(self._value.value.size)

    def sync_index(self) -> None:
        """Do nothing: rows are looked up in the numbers themselves."""

    def get_tensor(self) -> RowValues:
        """Return a handle for reading and setting the values [rows, ...]."""
        return RowValues(self)

    def take_values(self, values: np.ndarray) -> None:
        """Take over the values, one for each row."""
        self._holder.hold(replace(self._value, value=values))

    def checked(self, name: str) -> SelectedRows:
        """Return a copy; FeedError if rows and values are not as many. Without rows none count."""
        rows, values = self._value.rows, self._value.value
        if not len(rows):
            values = values[:0]
        if len(rows) != len(values):
            raise FeedError(
                f"SelectedRows {name!r}: {len(rows)} rows, but values of shape {values.shape}: "
                "set_rows(rows) and get_tensor().set(values) must be given as many"
            )
        return replace(self._value, value=values).copy()


class RowValues(LoDTensor):
    """The values of SelectedRows as a tensor, which is set in them."""

    def __init__(self, rows: SelectedRowsHandle) -> None:
        self._rows = rows
        self.sequences = None

    @property
    def value(self) -> np.ndarray:  # type: ignore[override]
        """The values, on the host."""
        return np.asarray(on_host(self._rows._value.value))

    def set(self, array: Any, place: Any = None) -> None:
        """Set the values, one for each row."""
        self._rows.take_values(np.array(array))

    def _set_dims(self, dims: Sequence[int]) -> None:
        """Announce the shape of what is set next; values of another shape are dropped."""
        if self.value.shape != tuple(dims):
            self._rows.take_values(np.zeros((0, *dims[1:])))
