"""CSV, parsed by pyarrow; a line that is not one row of all values is a bad row."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as kinds

from hpcdist.base.errors import DataError
from hpcdist.data.columnar.columns import is_text
from hpcdist.data.columnar.files import Faults
from hpcdist.data.columnar.text_source import TextSource

# A null in text is a field that is empty, without quotes. In numbers NA, null, ... are nulls, too.
_TEXT_NULLS = {"null_values": [""], "quoted_strings_can_be_null": False}
_JOINING = ("", "a quote is not closed, or there is an end of line in the value")
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


class CsvSource(TextSource):
    """Values separated by commas (``.tsv``: tabs); the first line names the columns."""

    def _begin(self) -> None:
        self._mark = "\t" if self._path.lower().endswith(".tsv") else ","
        header = self._rest_of_line()
        self._first = len(header)
        words = io.StringIO(header.decode("utf-8-sig").rstrip("\r\n"))
        self._names = next(csv.reader(words, delimiter=self._mark), [])
        if not self._names or len(set(self._names)) < len(self._names):
            raise DataError(
                f"data.read: {self._path}: the first line must name the columns, each once, "
                f"got {self._names}"
            )

    def names(self) -> Sequence[str]:
        """Return the names in the first line."""
        return self._names

    def _is_row(self, line: bytes) -> bool:
        # A blank line is a null where there is but one column, else nothing.
        return len(self._names) == 1 or bool(line.strip(b" \r"))

    def _types(self, lines: list[bytes]) -> pa.Schema:
        table = self._table(lines, {}, {}, {})
        return pa.schema(
            [(n, pa.null() if _mixed(table[n]) else table[n].type) for n in table.column_names]
        )

    def _parsed(
        self, lines: list[bytes], columns: Sequence[str]
    ) -> tuple[Mapping[str, Any], Faults]:
        types = {name: self.schema.field(name).type for name in columns}
        faults: Faults = {}
        arrays: dict[str, Any] = {}
        for text, nulls in ((True, _TEXT_NULLS), (False, {})):
            of_kind = {name: kind for name, kind in types.items() if is_text(kind) == text}
            if of_kind:
                arrays |= self._arrays(lines, of_kind, nulls, faults)
        return arrays, faults

    def _arrays(
        self,
        lines: list[bytes],
        types: Mapping[str, Any],
        nulls: Mapping[str, Any],
        faults: Faults,
    ) -> dict[str, Any]:
        try:
            table = self._table(lines, types, nulls, faults)
            if not any(_is_infinite(table[name]) for name in types):
                return {name: table[name] for name in types}
        except pa.ArrowInvalid:
            pass
        lines = [self._legible(row, line, faults) for row, line in enumerate(lines)]
        table = self._table(lines, dict.fromkeys(types, pa.string()), nulls, faults)
        return {n: _cast(n, table[n].combine_chunks(), types[n], faults) for n in types}

    @property
    def _longer(self) -> bytes:
        """A line with too many values, which is noted as a bad row."""
        return self._mark.encode() * len(self._names) + b"\n"

    def _legible(self, row: int, line: bytes, faults: Faults) -> bytes:
        """Return the line, or one to be noted if it is no UTF-8."""
        try:
            line.decode()
        except UnicodeDecodeError as error:
            faults.setdefault(row, ("", str(error)))
            return self._longer
        return line

    def _table(
        self,
        lines: list[bytes],
        types: Mapping[str, Any],  # none: all columns, with the types that they show
        nulls: Mapping[str, Any],
        faults: Faults,
    ) -> pa.Table:
        """Parse lines; those that are not one row of all values become rows of nulls."""
        noted: Faults = {}
        table = self._row_of_each(lines, types, nulls, noted)
        if table is None:
            joining = {row: _JOINING for row, line in enumerate(lines) if self._joins(line)}
            lines = [self._longer if row in joining else line for row, line in enumerate(lines)]
            noted.clear()
            table = self._row_of_each(lines, types, nulls, noted)
            noted |= joining
        if table is None:
            raise DataError(f"the {len(lines)} lines are not one row each: quotes do not match")
        if not noted:
            return table
        for row, fault in noted.items():
            faults.setdefault(row, fault)
        present = np.ones(len(lines), bool)
        present[list(noted)] = False
        return table.take(pa.array(np.cumsum(present) - 1, mask=~present))

    def _row_of_each(
        self,
        lines: list[bytes],
        types: Mapping[str, Any],
        nulls: Mapping[str, Any],
        noted: Faults,
    ) -> pa.Table | None:
        """Parse lines, without those of too few or too many values; None if some were joined."""

        def note(row: Any) -> str:
            expected, got = row.expected_columns, row.actual_columns
            noted[row.number - 1] = ("", f"expected {expected} values, got {got}")
            return "skip"

        # A quote that is open in the last line swallows this one.
        last = self._mark.encode() * (len(self._names) - 1) + b"\n"
        data = b"".join([*lines, last])
        table = pyarrow.csv.read_csv(
            io.BytesIO(data),
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False, column_names=self._names, block_size=max(len(data) + 1, 1 << 10)
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self._mark, ignore_empty_lines=False, invalid_row_handler=note
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, include_columns=list(types), strings_can_be_null=True, **nulls
            ),
        )
        stray = data.count(b"\r") != data.count(b"\r\n")  # it ends a row, too
        if stray or table.num_rows + len(noted) != len(lines) + 1:
            return None
        return table.slice(0, table.num_rows - 1)

    def _joins(self, line: bytes) -> bool:
        """Return whether a line continues in the next one, or is two."""
        try:
            rows = csv.reader([line.decode("latin-1"), "next"], delimiter=self._mark)
            return len(list(rows)) != 2
        except csv.Error:
            return True


def _mixed(column: Any) -> bool:
    """Return whether a column of text is mostly numbers: as text, each would be hashed."""
    if not is_text(column.type):  # bytes: some value is no UTF-8
        return False
    numbers = pc.sum(pc.match_substring_regex(column, _NUMBER)).as_py() or 0
    return 2 * numbers >= len(column) - column.null_count


def _is_infinite(column: Any) -> bool:
    """Return whether a column has infinity: written so, or digits of a number that is too large."""
    return bool(kinds.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py())


def _cast(name: str, texts: Any, kind: Any, faults: Faults) -> Any:
    """Turn texts into values; those that are none become nulls."""
    try:
        cast = pc.cast(texts, kind)
        if not _is_infinite(cast):
            return cast
    except pa.ArrowInvalid:
        pass
    values = []
    for row, text in enumerate(texts.to_pylist()):
        value = None
        if text is not None:
            try:
                value = pa.scalar(text).cast(kind).as_py()
            except pa.ArrowInvalid:
                faults.setdefault(row, (name, f"{text!r:.80} is not {kind}"))
            if isinstance(value, float) and math.isinf(value) and re.match(_NUMBER, text):
                value = None
                faults.setdefault(row, (name, f"{text!r:.80} is too large for a {kind}"))
        values.append(value)
    return pa.array(values, kind)
