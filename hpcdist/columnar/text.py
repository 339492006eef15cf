"""CSV and JSON lines: text that is cut into blocks at ends of lines, and parsed by pyarrow.

A value holds no end of line. Types are those that the beginning of the first file shows, or that
the user gives; a value that does not fit is a bad row.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from hpcdist.columnar.files import Block, RawBlock
from hpcdist.errors import DataError

BLOCK_BYTES = 8 << 20
Faults = dict[int, tuple[str, str]]


class _TextSource:
    """A text file; blocks are bytes from the beginning of one line to the end of another."""

    unit = "block"
    _first = 0  # byte at which rows begin

    def __init__(self, path: str, schema: pa.Schema | None = None) -> None:
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115  # closed by close()
        self._begin()
        self._schema = self._inferred() if schema is None else schema

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._schema

    def _begin(self) -> None:
        """Read what stands before the rows."""

    def _inferred(self) -> pa.Schema:
        self._file.seek(self._first)
        lines = b"".join(_lines(_whole_lines(self._file, BLOCK_BYTES)))
        if not lines:
            raise DataError(f"data.read: {self._path} has no rows, so its columns have no types")
        try:
            return self._types(lines)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"data.read: {self._path}: cannot tell the types of its columns ({error}): "
                "mend the file"
            ) from None

    def _types(self, lines: bytes) -> pa.Schema:
        raise NotImplementedError

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self._schema.names

    def blocks(self) -> Sequence[Block]:
        """Cut the file at ends of lines, and count the rows."""
        blocks, begin = [], self._first
        self._file.seek(begin)
        while data := _whole_lines(self._file, BLOCK_BYTES):
            blocks.append(Block(_count(data), begin, begin + len(data)))
            begin += len(data)
        return blocks

    def read(self, block: Block, columns: Sequence[str]) -> RawBlock:
        """Parse a block; rows that are malformed come with nulls, and are named."""
        self._file.seek(block.begin)
        data = self._file.read(block.end - block.begin)
        if len(data) < block.end - block.begin:
            raise DataError(f"expected {block.end - block.begin} bytes, the file ends before")
        lines = _lines(data)
        table, faults = self._parsed(lines, columns)
        return RawBlock(len(lines), {name: table[name] for name in columns}, faults)

    def _parsed(self, lines: list[bytes], columns: Sequence[str]) -> tuple[pa.Table, Faults]:
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

    def _types(self, lines: bytes) -> pa.Schema:
        reading = pyarrow.csv.ReadOptions(column_names=self._names)
        parsing = pyarrow.csv.ParseOptions(
            delimiter=self._mark, invalid_row_handler=lambda _: "skip"
        )
        return pyarrow.csv.read_csv(
            io.BytesIO(lines), read_options=reading, parse_options=parsing
        ).schema

    def _parsed(self, lines: list[bytes], columns: Sequence[str]) -> tuple[pa.Table, Faults]:
        types = {name: self._schema.field(name).type for name in columns}
        faults: Faults = {}
        try:
            table = self._table(lines, types, faults)
        except pa.ArrowInvalid:
            faults.clear()
            table = self._table(lines, dict.fromkeys(columns, pa.string()), faults)
            table = pa.table(
                {n: _cast(n, table[n].combine_chunks(), types[n], faults) for n in columns}
            )
        return table, faults

    def _table(self, lines: list[bytes], types: Mapping[str, Any], faults: Faults) -> pa.Table:
        """Parse lines; those with too few or too many values become rows of nulls."""

        def note(row: Any) -> str:
            expected, got = row.expected_columns, row.actual_columns
            faults[row.number - 1] = ("", f"expected {expected} values, got {got}")
            return "skip"

        size = sum(map(len, lines)) + 1
        table = pyarrow.csv.read_csv(
            io.BytesIO(b"".join(lines)),
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False, column_names=self._names, block_size=max(size, 1 << 10)
            ),
            parse_options=pyarrow.csv.ParseOptions(delimiter=self._mark, invalid_row_handler=note),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, include_columns=list(types), strings_can_be_null=True
            ),
        )
        if not faults:
            return table
        places: list[int | None] = []
        parsed = 0
        for row in range(len(lines)):
            places.append(None if row in faults else parsed)
            parsed += row not in faults
        return table.take(pa.array(places, pa.int64()))


class JsonSource(_TextSource):
    """One object in each line; a key that is missing is a null."""

    def _types(self, lines: bytes) -> pa.Schema:
        return pyarrow.json.read_json(
            io.BytesIO(lines), read_options=pyarrow.json.ReadOptions(block_size=BLOCK_BYTES * 2)
        ).schema

    def _parsed(self, lines: list[bytes], columns: Sequence[str]) -> tuple[pa.Table, Faults]:
        schema = pa.schema([self._schema.field(name) for name in columns])
        faults: Faults = {}
        try:
            return self._table(lines, schema), faults
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
        good = list(lines)
        for row, line in enumerate(lines):
            try:
                if not isinstance(json.loads(line), dict):
                    raise ValueError("expected an object")
                self._table([line], schema)
            except (ValueError, pa.ArrowNotImplementedError) as error:
                faults[row] = ("", " ".join(str(error).split())[:200])
                good[row] = b"{}\n"
        return self._table(good, schema), faults

    def _table(self, lines: list[bytes], schema: pa.Schema) -> pa.Table:
        data = b"".join(lines)
        table = pyarrow.json.read_json(
            io.BytesIO(data),
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=max(len(data) + 1, 1 << 10)
            ),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(lines):
            raise pa.ArrowInvalid("several objects in a line, or one in several lines")
        return table


def _whole_lines(file: Any, size: int) -> bytes:
    """Read about ``size`` bytes, up to the end of a line."""
    return file.read(size) + file.readline()


def _lines(data: bytes) -> list[bytes]:
    """Return the lines that are not blank, each with its end."""
    lines = [line for line in data.split(b"\n") if line and not line.isspace()]
    return [line + b"\n" for line in lines]


def _count(data: bytes) -> int:
    return sum(1 for line in data.split(b"\n") if line and not line.isspace())


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


def text_schema(kind: Any, path: str, types: Mapping[str, Any]) -> pa.Schema:
    """Return names and types of columns, as the beginning of a file shows them, or as given."""
    try:
        source = kind(path)
    except OSError as error:
        raise DataError(f"data.read: cannot read {path}: {error.strerror}") from None
    schema = source.schema
    source.close()
    for name, wanted in types.items():
        if name not in schema.names:
            raise DataError(f"data.read: types: {path} has no column {name!r}")
        try:
            given = pa.type_for_alias(wanted) if isinstance(wanted, str) else wanted
        except ValueError:
            raise DataError(f"data.read: types: {wanted!r} of {name!r} is no type") from None
        schema = schema.set(schema.names.index(name), pa.field(name, given))
    return schema
