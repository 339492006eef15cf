"""Arrays that a table is given: refused by name unless they are what its kernels take."""

from __future__ import annotations

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array


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


def plain(values: Array) -> Array:
    """Return the array as kernels are compiled for: contiguous, aligned, writable."""
    return values if values.flags.carray else np.require(values, requirements=["C", "A", "W"])


def _described(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype} {list(values.shape)}"
    return f"{type(values).__name__} {values!r:.60}"
