"""How a table keeps the numbers of its rows and of their optimizer's state. Pure.

Updates are computed in float32, and rounded once, to what is kept. In ``int8`` a row is a scale,
float32 of 12 binary digits, and whole numbers from -127 to 127 that it multiplies. In ``float16``
each column of a row's state has a power of two of its own, int16, by which its numbers are divided:
squares of small gradients would be 0 otherwise, and sums of large ones infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.division import round_up
from hpcdist.base.errors import TableError
from hpcdist.base.plain_data import typed
from hpcdist.comm.base import Array

ROWS = ("float32", "float16", "bfloat16", "int8")
STATE = ("float32", "float16")
ROUNDING = ("", "nearest", "stochastic")
SCALE_BYTES = 4  # of a row of int8
EXPONENT_BYTES = 2  # of a column of state in float16


@dataclass(frozen=True)
class RowStorage:
    """The types of rows and state; how rows are rounded: "": int8 by chance, others to the nearest.

    ``state`` in float16 is always rounded by chance: a sum that is rounded to the nearest number
    stands still as soon as what is added is small.
    """

    rows: str = "float32"
    state: str = "float32"
    rounding: str = ""

    def __post_init__(self) -> None:
        for name, choices in (("rows", ROWS), ("state", STATE), ("rounding", ROUNDING)):
            if getattr(self, name) not in choices:
                raise TableError(
                    f"RowPolicy: {name}: expected one of {choices}, got {getattr(self, name)!r}"
                )
        if self.rounding and self.rows == "float32":
            raise TableError(
                f"RowPolicy: rounding={self.rounding!r} is for rows in float16, bfloat16 or int8"
            )

    @property
    def by_chance(self) -> bool:
        """Whether values of rows are rounded up or down by chance, right on average."""
        return (self.rounding or ("stochastic" if self.rows == "int8" else "")) == "stochastic"

    def row_bytes(self, dim: int) -> int:
        """Return the bytes of the values of a row."""
        if self.rows == "int8":
            return SCALE_BYTES + dim
        return dim * (4 if self.rows == "float32" else 2)

    def halves(self, width: int) -> bool:
        """Return whether a column of state is in float16: one number for a row stays float32."""
        return self.state == "float16" and width > 1

    def state_bytes(self, widths: Sequence[int]) -> int:
        """Return the bytes of a row's state, in columns of these widths."""
        return sum(EXPONENT_BYTES + 2 * w if self.halves(w) else 4 * w for w in widths)

    def record_bytes(self, dim: int, widths: Sequence[int]) -> int:
        """Return the bytes of both as a table has them: whole words each."""
        return round_up(self.row_bytes(dim), 4) + round_up(self.state_bytes(widths), 4)

    def rows_of(self, stored: Array, dim: int) -> Array:
        """Return rows float32 [n, dim] of what is kept, uint8 [n, row_bytes]."""
        if self.rows == "int8":
            scales = np.ascontiguousarray(stored[:, :SCALE_BYTES]).view(np.float32)
            rows: Array = scales * np.ascontiguousarray(stored[:, SCALE_BYTES:]).view(np.int8)
            return rows.astype(np.float32, copy=False)
        stored = np.ascontiguousarray(stored)
        if self.rows == "bfloat16":
            return (stored.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return stored.view(self.rows).astype(np.float32, copy=False)

    def state_of(self, stored: Array, widths: Sequence[int]) -> Array:
        """Return state float32 [n, sum of widths] of what is kept, uint8 [n, state_bytes]."""
        columns, at = [np.empty((len(stored), 0), np.float32)], 0
        for width in widths:
            if self.halves(width):
                exponents = _at(stored, at, 1, np.dtype(np.int16))
                halves = _at(stored, at + EXPONENT_BYTES, width, np.dtype(np.float16))
                column = np.ldexp(halves.astype(np.float64), exponents).astype(np.float32)
                at += EXPONENT_BYTES + 2 * width
            else:
                column = _at(stored, at, width, np.dtype(np.float32))
                at += 4 * width
            columns.append(column)
        return np.concatenate(columns, axis=1)

    def to_plain(self) -> dict[str, Any]:
        """Return the facts by which bytes are read, and first values rounded."""
        rounding = "stochastic" if self.by_chance else "" if self.rows == "float32" else "nearest"
        return {"rows": self.rows, "state": self.state, "rounding": rounding}

    def same_bytes(self, other: RowStorage | None) -> bool:
        """Return whether what is kept means the same in both; None: float32."""
        other = other or RowStorage()
        return (self.rows, self.state) == (other.rows, other.state)

    @staticmethod
    def from_plain(data: Mapping[str, Any]) -> RowStorage:
        """Return the storage in ``data``; TableError if there is none."""
        try:
            storage: RowStorage = typed(RowStorage, dict(data))
            return storage
        except (KeyError, TypeError, ValueError) as error:
            raise TableError(f"malformed storage of rows: {error}") from None


def _at(stored: Array, at: int, count: int, dtype: np.dtype[Any]) -> Array:
    """Return ``count`` numbers of each row from byte ``at`` on."""
    return np.ascontiguousarray(stored[:, at : at + count * dtype.itemsize]).view(dtype)
