"""CSV tables with a header line; errors name line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from hpcdist.fluid.dataset.files import damaged

__all__ = ["CsvTable"]


class CsvTable:
    """The cells of a CSV file, by column. Raises DataError for a file that is not such a table."""

    def __init__(self, path: Path, columns: Collection[str]) -> None:
        """Read the file; it has ``columns``, in any order and case, perhaps others too."""
        self._path = path
        try:
            with path.open(newline="", encoding="ascii") as file:
                reader = csv.reader(file, skipinitialspace=True)
                lines = [(reader.line_num, row) for row in reader if row]
        except (UnicodeError, csv.Error) as error:
            raise damaged(path, error) from error
        header = [name.lower() for name in lines[0][1]] if lines else []
        missing = [name for name in columns if name.lower() not in header]
        if missing:
            raise damaged(path, f"expected columns {missing} beside {header}")
        for line, row in lines[1:]:
            if len(row) != len(header):
                raise damaged(path, f"line {line} has {len(row)} values, expected {len(header)}")
        if len(lines) < 2:
            raise damaged(path, "it has no line of data")
        self._lines = [line for line, _ in lines[1:]]
        self._cells = dict(zip(header, zip(*(row for _, row in lines[1:]))))

    def __len__(self) -> int:
        return len(self._lines)

    def words(self, name: str, among: Collection[str] | None = None) -> Sequence[str]:
        """Return a column; None: any words will do."""
        column = self._cells[name.lower()]
        if among is not None:
            for line, word in zip(self._lines, column):
                if word not in among:
                    raise self._wrong(line, name, f"one of {', '.join(sorted(among))}", word)
        return column

    def numbers(
        self,
        names: Sequence[str],
        low: float = -math.inf,
        high: float = math.inf,
        integers: bool = False,
    ) -> np.ndarray:
        """Return columns of finite numbers from ``low`` to ``high``, float64 [rows, names].

        With ``integers`` they have no fraction.
        """
        kind = "an integer" if integers else "a finite number"
        table = np.empty((len(self), len(names)))
        for k, name in enumerate(names):
            for i, cell in enumerate(self._cells[name.lower()]):
                try:
                    number = float(cell)
                except ValueError:
                    number = math.nan
                fits = math.isfinite(number) and low <= number <= high
                if not fits or (integers and number != int(number)):
                    span = "" if (low, high) == (-math.inf, math.inf) else f" in {low:g}..{high:g}"
                    raise self._wrong(self._lines[i], name, f"{kind}{span}", cell)
                table[i, k] = number
        return table

    def _wrong(self, line: int, column: str, expected: str, cell: str) -> Exception:
        return damaged(
            self._path, f"line {line}, column {column}: expected {expected}, got {cell!r:.60}"
        )
