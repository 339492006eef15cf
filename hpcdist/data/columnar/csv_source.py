"""CSV, parsed by pyarrow; a line that is not one row of all values is a bad row."""

from __future__ import annotations

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
from hpcdist.data.columnar.delimited import SPACES, Delimiter, other_delimiter, refuse_first_line
from hpcdist.data.columnar.files import Faults
from hpcdist.data.columnar.integers import is_rounded, may_round, rounded_message, unsigned
from hpcdist.data.columnar.text_source import TextSource

# A null in text is a field that is empty, without quotes. In numbers NA, null, ... are nulls, too.
_TEXT_NULLS = {"null_values": [""], "quoted_strings_can_be_null": False}
_BOM = b"\xef\xbb\xbf"
_JOINING = ("", "a quote is not closed, or there is an end of line in the value")
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


class CsvSource(TextSource):
    """Values with a mark between them; the first line names the columns, or ``names`` do."""

    standard = ","

    def _begin(self) -> None:
        self._delimiter = Delimiter(self._options.delimiter or self.standard)
        self._mark = self._delimiter.mark
        first = self._rest_of_line()
        try:
            line = self._rewritten(first.removeprefix(_BOM)).decode()
        except UnicodeDecodeError:
            raise DataError(
                f"data.read: cannot read {self._path}: line 1: {self._undecodable(first)}"
            ) from None
        values = self._delimiter.values(line.rstrip("\r\n"))
        if "\r" in line.rstrip("\r\n"):
            raise DataError(
                f"data.read: {self._path}: lines end in carriage returns, or line 1 has one in "
                "it; expected ends of lines as Unix or Windows have them"
            )
        if self._options.names is not None:
            self._names = list(self._options.names)
            self._first = len(_BOM) if first.startswith(_BOM) else 0
            if first.strip():
                refuse_first_line(self._path, self._delimiter, self._names, values, line)
            return
        self._first, self._first_line, self._names = len(first), 2, values
        if not values or len(set(values)) < len(values):
            raise DataError(
                f"data.read: {self._path}: the first line must name the columns, each once, "
                f"got {', '.join(values)[:400]!r}; if it holds values, pass names=[...]"
            )

    def hint(self) -> str:
        """Say why a column may be missing."""
        if self._options.names is None and 2 * sum(map(is_number, self._names)) > len(self._names):
            return "; its first line seems to hold values: pass names=[...]"
        spaced = any(name != name.strip() for name in self._names)
        if spaced:
            return "; there are spaces around the names: pass strip=True"
        return other_delimiter(self._names[0], self._delimiter) if len(self._names) == 1 else ""

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self._names

    def _is_row(self, line: bytes) -> bool:
        # A blank line is a null where there is but one column, else nothing.
        return len(self._names) == 1 or bool(line.strip(b" \r"))

    def _rewritten(self, line: bytes) -> bytes:
        return self._delimiter.rewritten(line, self._options.strip)

    def _lines(self, data: bytes) -> list[bytes]:
        if self._delimiter.quotes and not self._options.strip:
            return super()._lines(data)
        return [self._rewritten(line) + b"\n" for line in self._rows(data)]

    def _types(self, lines: list[bytes]) -> pa.Schema:
        table = self._table(lines, {}, {}, {})
        return pa.schema([(n, self._shown(n, table[n], lines)) for n in table.column_names])

    def _shown(self, name: str, column: Any, lines: list[bytes]) -> pa.DataType:
        """Return the type that the values of a column show; null: none."""
        if may_round(column) and unsigned(self._table(lines, {name: pa.string()}, {}, {})[name]):
            return pa.uint64()
        return pa.null() if _mixed(column) else column.type

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
            if not any(self._may_differ(name, table[name]) for name in types):
                return {name: table[name] for name in types}
        except pa.ArrowInvalid:
            pass
        lines = [self._legible(row, line, faults) for row, line in enumerate(lines)]
        table = self._table(lines, dict.fromkeys(types, pa.string()), nulls, faults)
        return {
            n: _cast(n, table[n].combine_chunks(), types[n], n in self._options.given, faults)
            for n in types
        }

    def _may_differ(self, name: str, column: Any) -> bool:
        """Return whether a float of a column may be another number than the file has."""
        return _is_infinite(column) or (name not in self._options.given and may_round(column))

    @property
    def _longer(self) -> bytes:
        """A line with too many values, which is noted as a bad row."""
        return self._mark.encode() * len(self._names) + b"\n"

    def _legible(self, row: int, line: bytes, faults: Faults) -> bytes:
        """Return the line, or one to be noted if it is no UTF-8."""
        if reason := self._undecodable(line):
            faults.setdefault(row, ("", reason))
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
            joining = {
                row: _JOINING for row, line in enumerate(lines) if self._delimiter.joins(line)
            }
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
                delimiter=self._mark,
                quote_char='"' if self._delimiter.quotes else False,
                ignore_empty_lines=False,
                invalid_row_handler=note,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, include_columns=list(types), strings_can_be_null=True, **nulls
            ),
        )
        stray = data.count(b"\r") != data.count(b"\r\n")  # it ends a row, too
        if stray or table.num_rows + len(noted) != len(lines) + 1:
            return None
        return table.slice(0, table.num_rows - 1)


class TsvSource(CsvSource):
    """The same with tabs."""

    standard = "\t"


class AnyDelimited(CsvSource):
    """The same in a file whose name does not tell what stands between values."""

    def _begin(self) -> None:
        if self._options.delimiter is None:
            raise DataError(
                f"data.read: {self._path}: what is between its values? Pass delimiter= ('\\t', "
                f"',', {SPACES!r} for spaces), or the name of another format: format="
            )
        super()._begin()


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
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


def _cast(name: str, texts: Any, kind: Any, given: bool, faults: Faults) -> Any:
    """Turn texts into values; those that are none become nulls.

    A type that is ``given`` may round integers.
    """
    try:
        cast = pc.cast(texts, kind)
        if not _is_infinite(cast) and (given or not may_round(cast)):
            return cast
    except pa.ArrowInvalid:
        pass
    values = []
    for row, text in enumerate(texts.to_pylist()):
        value, reason = (None, "") if text is None else _value(name, text, kind, given)
        if reason:
            faults.setdefault(row, (name, reason))
        values.append(value)
    return pa.array(values, kind)


def _value(name: str, text: str, kind: Any, given: bool) -> tuple[Any, str]:
    """Convert a text to a type, or return None and the reason."""
    try:
        value = pa.scalar(text).cast(kind).as_py()
    except pa.ArrowInvalid:
        if kind == pa.int64() and unsigned(pa.array([text])):
            return None, f"{text!r:.80} is larger than int64: pass types={{{name!r}: 'uint64'}}"
        return None, f"{text!r:.80} is not {kind}"
    if isinstance(value, float):
        if math.isinf(value) and re.match(_NUMBER, text):
            return None, f"{text!r:.80} is too large for a {kind}"
        if not given and is_rounded(text, value):
            return None, rounded_message(text, name)
    return value, ""
