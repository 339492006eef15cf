"""Arrays that a table is given: refused by name unless they are what its kernels take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array

if TYPE_CHECKING:
    from hpcdist.ps.table import SparseTable


def checked_ids(table: str, ids: Array, operation: str) -> Array:
    """Return ids int64 [n] as kernels take them; TableError for others."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64 or ids.ndim != 1:
        raise TableError(
            f"table {table!r}, {operation}: expected ids int64 [n], got {_described(ids)}"
        )
    return plain(ids)


def check_values(
    table: str, values: Array, shape: tuple[int, int], quantity: str, dtype: type = np.float32
) -> None:
    """Raise TableError unless ``values`` have this shape and type."""
    if not isinstance(values, np.ndarray) or values.dtype != dtype or values.shape != shape:
        raise TableError(
            f"table {table!r}: expected {quantity} {dtype.__name__} {list(shape)}, "
            f"got {_described(values)}"
        )


def check_finite(
    table: SparseTable, ids: Array, grads: Array, learning_rate: float, scale: float
) -> None:
    """Raise TableError for gradients, a rate or a scale that are no finite numbers."""
    from hpcdist.ps.row_kernels import first_not_finite

    if not (math.isfinite(learning_rate) and math.isfinite(scale)):
        raise TableError(
            f"table {table.name!r}, push: expected a finite learning rate and scale, "
            f"got {learning_rate} and {scale}; nothing has been changed"
        )
    place = first_not_finite(grads.reshape(-1).view(np.uint32))
    if place >= 0:
        i, column = divmod(place, table.dim)
        raise TableError(
            f"table {table.name!r}: the gradient of id {ids[i]} has {grads[i, column]} at "
            f"column {column}; none of the {len(ids)} rows of this push has been changed"
        )


def plain(values: Array) -> Array:
    """Return the array as kernels are compiled for: contiguous, aligned, writable."""
    return values if values.flags.carray else np.require(values, requirements=["C", "A", "W"])


def _described(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype} {list(values.shape)}"
    return f"{type(values).__name__} {values!r:.60}"
