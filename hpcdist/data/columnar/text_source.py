"""Text files cut into blocks at ends of lines; a value holds no end of line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import pyarrow as pa

from hpcdist.base.errors import DataError
from hpcdist.base.plain_data import MAX_LINE_BYTES
from hpcdist.data.columnar.files import Faults, FileBlock, RawBlock
from hpcdist.data.columnar.streams import opened_text

BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class TextOptions:
    """How text is to be read, as the user says."""

    names: tuple[str, ...] | None = None  # of columns; None: the first line has them
    delimiter: str | None = None  # None: that of the format
    encoding: str | None = None  # None: UTF-8
    strip: bool = False  # spaces around values
    given: Set[str] = frozenset()  # columns whose types the user gives: floats may be rounded
    lengths: Mapping[str, int | None] = field(default_factory=dict)  # values that variables take


STANDARD = TextOptions()


class TextSource:
    """A text file; blocks are bytes from the beginning of one line to the end of another."""

    unit = "block"
    _first = 0  # byte at which rows begin
    _first_line = 1

    def __init__(
        self, path: str, schema: pa.Schema | None = None, options: TextOptions = STANDARD
    ) -> None:
        self._path = path
        self._schema, self._options = schema, options
        self._file, self.splits = opened_text(path, options.encoding)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

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
        blocks, begin, line = [], self._first, self._first_line
        self._file.seek(begin)
        while data := self._read_lines():
            rows = sum(1 for _ in self._rows(data))
            blocks.append(FileBlock(rows, begin, begin + len(data), line))
            begin, line = begin + len(data), line + data.count(b"\n")
        return blocks

    def read(self, block: FileBlock, columns: Sequence[str]) -> RawBlock:
        """Parse a block; rows that are malformed come with nulls, and are named."""
        self._file.seek(block.begin)
        data = self._file.read(block.end - block.begin)
        if len(data) < block.end - block.begin:
            raise DataError(f"expected {block.end - block.begin} bytes, the file ends before")
        lines = self._lines(data)
        arrays, faults = self._parsed(lines, columns)

        @cache
        def line_numbers() -> list[int]:
            parts = enumerate(data.split(b"\n"), block.line)
            return [number for number, line in parts if self._is_row(line)]

        return RawBlock(len(lines), arrays, faults, lambda row: line_numbers()[row])

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

    def _undecodable(self, line: bytes) -> str:
        """Return the bytes of a line that are not text; an empty string if there are none."""
        try:
            line.decode()
        except UnicodeDecodeError as error:
            encoding = self._options.encoding
            if encoding is None:
                return f"{error}; if the file is not UTF-8, pass encoding="
            return f"some bytes are no text in the encoding {encoding}"
        return ""

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
