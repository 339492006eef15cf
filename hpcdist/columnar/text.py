"""CSV and JSON lines: text that is cut into blocks at ends of lines, and parsed by pyarrow.

A value holds no end of line. Types are those that the user gives, or that the beginning of the
first file shows; where it does not, those of the variables. A value that does not fit is a bad row.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from hpcdist.columnar.columns import is_text
from hpcdist.columnar.files import Faults, FileBlock, RawBlock, naming, require
from hpcdist.errors import DataError

BLOCK_BYTES = 8 << 20

# A null in text is a field that is empty, without quotes. In numbers NA, null, ... are nulls, too.
_TEXT_NULLS = {"null_values": [""], "quoted_strings_can_be_null": False}
_JOINING = ("", "a quote is not closed, or there is an end of line in the value")
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


class _TextSource:
    """A text file; blocks are bytes from the beginning of one line to the end of another."""

    unit = "block"
    _first = 0  # byte at which rows begin

    def __init__(self, path: str, schema: pa.Schema | None = None) -> None:
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115  # closed by close()
        self._given = schema
        self._begin()

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of columns: those that were given, else as the beginning shows them."""
        return self._inferred() if self._given is None else self._given

    def _begin(self) -> None:
        """Read what stands before the rows."""

    def _inferred(self) -> pa.Schema:
        self._file.seek(self._first)
        lines = self._lines(_whole_lines(self._file, BLOCK_BYTES))
        if not lines:
            raise DataError(f"data.read: {self._path} has no rows, so its columns have no types")
        try:
            return self._types(lines)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"data.read: {self._path}: cannot tell the types of its columns ({error}): "
                "mend the file, or say them: types="
            ) from None

    def has_rows(self) -> bool:
        """Return whether the beginning shows a row."""
        self._file.seek(self._first)
        return any(True for _ in self._rows(_whole_lines(self._file, BLOCK_BYTES)))

    def _types(self, lines: list[bytes]) -> pa.Schema:
        raise NotImplementedError

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self.schema.names

    def blocks(self) -> Sequence[FileBlock]:
        """Cut the file at ends of lines, and count the rows."""
        blocks, begin = [], self._first
        self._file.seek(begin)
        while data := _whole_lines(self._file, BLOCK_BYTES):
            rows = sum(1 for _ in self._rows(data))
            blocks.append(FileBlock(rows, begin, begin + len(data)))
            begin += len(data)
        return blocks

    def read(self, block: FileBlock, columns: Sequence[str]) -> RawBlock:
        """Parse a block; rows that are malformed come with nulls, and are named."""
        self._file.seek(block.begin)
        data = self._file.read(block.end - block.begin)
        if len(data) < block.end - block.begin:
            raise DataError(f"expected {block.end - block.begin} bytes, the file ends before")
        lines = self._lines(data)
        arrays, faults = self._parsed(lines, columns)
        return RawBlock(len(lines), arrays, faults)

    def _lines(self, data: bytes) -> list[bytes]:
        return [line + b"\n" for line in self._rows(data)]

    def _rows(self, data: bytes) -> Iterator[bytes]:
        """Give the lines that are rows, without their ends."""
        lines = data.split(b"\n")
        if not lines[-1]:  # behind the last end of a line
            lines.pop()
        return filter(self._is_row, lines)

    def _is_row(self, line: bytes) -> bool:
        return bool(line.strip())

    def _parsed(
        self, lines: list[bytes], columns: Sequence[str]
    ) -> tuple[Mapping[str, Any], Faults]:
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvSource(_TextSource):
    """Values separated by commas (``.tsv``: tabs); the first line names the columns."""

    def _begin(self) -> None:
        self._mark = "\t" if self._path.lower().endswith(".tsv") else ","
        header = self._file.readline()
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
            some = {name: kind for name, kind in types.items() if is_text(kind) == text}
            if some:
                arrays |= self._arrays(lines, some, nulls, faults)
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
            return {name: table[name] for name in types}
        except pa.ArrowInvalid:
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
        there = np.ones(len(lines), bool)
        there[list(noted)] = False
        return table.take(pa.array(np.cumsum(there) - 1, mask=~there))

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
        """Return whether a line goes on in the next one, or is two."""
        try:
            rows = csv.reader([line.decode("latin-1"), "next"], delimiter=self._mark)
            return len(list(rows)) != 2
        except csv.Error:
            return True


class JsonSource(_TextSource):
    """One object in each line; a key that is missing is a null."""

    def _types(self, lines: list[bytes]) -> pa.Schema:
        try:
            return self._table(lines, None).schema
        except pa.ArrowInvalid:
            return self._table([line for line in lines if not _malformed(line)], None).schema

    def _parsed(
        self, lines: list[bytes], columns: Sequence[str]
    ) -> tuple[Mapping[str, Any], Faults]:
        schema = pa.schema([self.schema.field(name) for name in columns])
        faults: Faults = {}
        try:
            table = self._table(lines, schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            good = list(lines)
            for row, line in enumerate(lines):
                if reason := _malformed(line) or self._unfit(line, schema):
                    faults[row] = ("", reason)
                    good[row] = b"{}\n"
            table = self._table(good, schema)
        return {name: table[name] for name in columns}, faults

    def _unfit(self, line: bytes, schema: pa.Schema) -> str:
        """Return why a line cannot be a row of these types; an empty string if it can."""
        try:
            self._table([line], schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return " ".join(str(error).split())[:200]
        return ""

    def _table(self, lines: list[bytes], schema: pa.Schema | None) -> pa.Table:
        data = b"".join(lines)
        table = pyarrow.json.read_json(
            io.BytesIO(data),
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=max(len(data) + 1, 1 << 10)
            ),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="infer" if schema is None else "ignore",
            ),
        )
        if table.num_rows != len(lines):
            raise pa.ArrowInvalid("several objects in a line, or one in several lines")
        return table


def _malformed(line: bytes) -> str:
    """Return why a line is no object; an empty string if it is one."""
    try:
        return "" if isinstance(json.loads(line), dict) else "expected an object"
    except ValueError as error:
        return " ".join(str(error).split())[:200]


def _whole_lines(file: Any, size: int) -> bytes:
    """Read about ``size`` bytes, up to the end of a line."""
    return file.read(size) + file.readline()


def _mixed(column: Any) -> bool:
    """Return whether a column of text is mostly numbers: as text, each would be hashed."""
    if not is_text(column.type):  # bytes: some value is no UTF-8
        return False
    numbers = pc.sum(pc.match_substring_regex(column, _NUMBER)).as_py() or 0
    return 2 * numbers >= len(column) - column.null_count


def _cast(name: str, texts: Any, wanted: Any, faults: Faults) -> Any:
    """Turn texts into values; those that are none become nulls."""
    try:
        return pc.cast(texts, wanted)
    except pa.ArrowInvalid:
        pass
    values = []
    for row, text in enumerate(texts.to_pylist()):
        value = None
        if text is not None:
            try:
                value = pa.scalar(text).cast(wanted).as_py()
            except pa.ArrowInvalid:
                faults.setdefault(row, (name, f"{text!r:.80} is no {wanted}"))
        values.append(value)
    return pa.array(values, wanted)


TEXT = {".csv": CsvSource, ".tsv": CsvSource, ".jsonl": JsonSource, ".ndjson": JsonSource}


def text_schema(
    kind: Any,
    paths: Sequence[str],
    needed: Sequence[str],
    types: Mapping[str, Any],
    assumed: Mapping[str, str],
) -> pa.Schema:
    """Return the types of the columns that are needed: as given, else as a file's beginning shows.

    That file is the first one with rows. ``assumed`` are those that variables want, for columns
    that are empty there, or hold numbers and text; and for whole numbers, where the variable takes
    fractions. DataError if a type is unknown.
    """
    given = {name: _type_of(name, wanted) for name, wanted in types.items()}
    path = paths[0]
    shown = pa.schema([])
    if not given.keys() >= set(needed):
        for path in paths:
            with naming(path), closing(kind(path)) as source:
                if source.has_rows():
                    break
        with naming(path), closing(kind(path)) as source:
            shown = source.schema
            require(path, [*shown.names, *given], needed)
    for name in needed:
        if name not in given:
            given[name] = _settled(path, name, shown.field(name).type, assumed.get(name))
    return pa.schema([(name, given[name]) for name in needed])


def _type_of(name: str, wanted: Any) -> pa.DataType:
    try:
        if isinstance(wanted, pa.DataType):
            return wanted
        if isinstance(wanted, str):
            return pa.type_for_alias(wanted)
        return pa.from_numpy_dtype(np.dtype(wanted))
    except (ValueError, TypeError, pa.ArrowNotImplementedError):
        raise DataError(f"data.read: types: {wanted!r} of {name!r} is no type") from None


def _settled(path: str, name: str, shown: pa.DataType, assumed: str | None) -> pa.DataType:
    unclear = pa.null() in (shown, getattr(shown, "value_type", None))
    if assumed and (shown == pa.null() or (assumed == "float64" and pa.types.is_integer(shown))):
        return pa.type_for_alias(assumed)
    if unclear:
        raise DataError(
            f"data.read: the beginning of {path} does not show what column {name!r} holds: it is "
            f"empty, or numbers and text; say types={{{name!r}: 'float64'}}, or 'string'"
        )
    return shown
