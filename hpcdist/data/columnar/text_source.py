"""Text files cut into blocks at ends of lines; a value holds no end of line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from hpcdist.base.errors import DataError
from hpcdist.base.plain_data import MAX_LINE_BYTES
from hpcdist.data.columnar.files import Faults, FileBlock, RawBlock

BLOCK_BYTES = 8 << 20


class TextSource:
    """A text file; blocks are bytes from the beginning of one line to the end of another."""

    unit = "block"
    _first = 0  # byte at which rows begin

    def __init__(self, path: str, schema: pa.Schema | None = None) -> None:
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115  # closed by close()
        self._schema = schema
        self._begin()

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of columns: those that were given, else as the beginning shows them."""
        return self._inferred() if self._schema is None else self._schema

    def _begin(self) -> None:
        """Read what stands before the rows."""

    def _inferred(self) -> pa.Schema:
        self._file.seek(self._first)
        lines = self._lines(self._read_lines())
        if not lines:
            raise DataError(f"data.read: {self._path} has no rows, so its columns have no types")
        try:
            return self._types(lines)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"data.read: {self._path}: cannot tell the types of its columns ({error}): "
                "fix the file, or give the types: types="
            ) from None

    def has_rows(self) -> bool:
        """Return whether the beginning shows a row."""
        self._file.seek(self._first)
        return any(True for _ in self._rows(self._read_lines()))

    def _types(self, lines: list[bytes]) -> pa.Schema:
        raise NotImplementedError

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        return self.schema.names

    def blocks(self) -> Sequence[FileBlock]:
        """Cut the file at ends of lines, and count the rows."""
        blocks, begin = [], self._first
        self._file.seek(begin)
        while data := self._read_lines():
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
        if not lines[-1]:  # after the last end of a line
            lines.pop()
        return filter(self._is_row, lines)

    def _is_row(self, line: bytes) -> bool:
        return bool(line.strip())

    def _parsed(
        self, lines: list[bytes], columns: Sequence[str]
    ) -> tuple[Mapping[str, Any], Faults]:
        raise NotImplementedError

    def _read_lines(self) -> bytes:
        """Read about `BLOCK_BYTES`, up to the end of a line."""
        return self._file.read(BLOCK_BYTES) + self._rest_of_line()

    def _rest_of_line(self) -> bytes:
        """Read up to the end of a line; DataError if that is too far."""
        rest = self._file.readline(MAX_LINE_BYTES)
        if len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
            raise DataError(
                f"data.read: {self._path}: a line has more than {MAX_LINE_BYTES >> 20} MiB: "
                "is it a text file?"
            )
        return rest

    def close(self) -> None:
        """Close the file."""
        self._file.close()
