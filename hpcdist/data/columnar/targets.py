"""What columns are read for: arrays of a name, with the type and the shape of a variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcdist.base.errors import DataError
from hpcdist.data.columnar.columns import Column, Ragged
from hpcdist.data.columnar.files import Faults
from hpcdist.data.columnar.integers import cast_exactly


@dataclass(frozen=True)
class ColumnTarget:
    """What columns are read for: an array under a name."""

    name: str
    columns: tuple[str, ...]
    stacked: bool  # columns become [rows, columns]
    dtype: np.dtype[Any] | None = None  # None: as in the file
    sample: tuple[int, ...] | None = None  # shape of a row; None: as in the file
    ragged: bool | None = None  # None: as in the file

    def of(self, variable: Any) -> ColumnTarget:
        """Return the same with the dtype and the shape that a variable takes."""
        _, *sample = (int(size) for size in variable.shape)
        level = int(getattr(variable, "lod_level", 0))
        if level > 1:
            raise DataError(f"variable {variable.name!r} has lod_level {level}: expected 0 or 1")
        return replace(
            self, dtype=np.dtype(variable.dtype), sample=tuple(sample), ragged=bool(level)
        )

    def as_in_files(self) -> ColumnTarget:
        """Return the same, for columns that are decoded later."""
        return replace(self, dtype=None, sample=None, ragged=None)

    def filled(self, columns: Mapping[str, Column], texts: Set[str], faults: Faults) -> Column:
        """Return the array; rows whose values it cannot hold are added to ``faults``.

        ``texts`` are the columns whose numbers stand for text.
        """
        for name in self.columns if self.dtype is not None and self.dtype.kind not in "iu" else ():
            if name in texts:
                raise DataError(
                    f"column {name!r} holds text, variable {self.name!r} takes {self.dtype}: "
                    f"declare it int64; or if a CSV file has numbers there, say "
                    f"types={{{name!r}: '{self.dtype}'}}"
                )
        chosen = [columns[name] for name in self.columns]
        dtype = self._dtype(chosen)
        chosen = [self._cast(n, c, dtype, faults) for n, c in zip(self.columns, chosen)]
        column = chosen[0]
        if self.stacked:
            if any(isinstance(c, Ragged) for c in chosen):
                raise DataError(f"{self.name!r}: ragged columns cannot be combined")
            column = np.stack([np.asarray(c) for c in chosen], axis=1)
        if self.ragged is not None and self.ragged != isinstance(column, Ragged):
            got, say = ("values", "lists") if self.ragged else ("lists", "values")
            raise DataError(
                f"column {self.columns[0]!r} holds {got}, variable {self.name!r} takes {say}: "
                f"declare it with lod_level={int(not self.ragged)}"
            )
        return self._shaped(column)

    def _cast(self, name: str, column: Column, dtype: np.dtype[Any], faults: Faults) -> Column:
        if column.dtype == dtype:
            return column
        values = column.values if isinstance(column, Ragged) else column
        cast, bad = cast_exactly(values, dtype)
        for place in np.argwhere(bad):
            row = int(place[0])
            if isinstance(column, Ragged):
                row = int(np.searchsorted(column.offsets, row, "right")) - 1
            faults.setdefault(row, (name, f"{values[tuple(place)]} cannot be {dtype}"))
        return Ragged(cast, column.offsets) if isinstance(column, Ragged) else cast

    def _dtype(self, chosen: Sequence[Column]) -> np.dtype[Any]:
        """Return the type of columns side by side: the variable's, else one that holds all."""
        return self.dtype or np.result_type(*(np.dtype(column.dtype) for column in chosen))

    def _shaped(self, column: Column) -> Column:
        if self.sample is None:
            return column
        values = column.values if isinstance(column, Ragged) else column
        try:
            # -1 for the rows would not do where there are none of them.
            sample = tuple(1 if size < 0 and not len(values) else size for size in self.sample)
            values = values.reshape(len(values), *sample)
        except ValueError:
            raise DataError(
                f"variable {self.name!r} takes rows of shape {self.sample}, "
                f"{', '.join(map(repr, self.columns))} gives {values.shape[1:]}"
            ) from None
        return Ragged(values, column.offsets) if isinstance(column, Ragged) else values
