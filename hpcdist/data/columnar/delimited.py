"""Lines of values with a mark between them, rewritten for the parser; and their first line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base.errors import DataError

SPACES = r"\s+"  # any number of spaces and tabs between values, as in pandas
_UNIT = "\x1f"  # stands for marks of several characters
_LIKELY = ("\t", ";", "|", ",", " ")


@dataclass(frozen=True)
class Delimiter:
    """What stands between values: one character; several, or spaces, where nothing is quoted."""

    text: str

    def __post_init__(self) -> None:
        fits = isinstance(self.text, str) and self.text.isascii() and self.text
        if not fits or set(self.text) & set('"\r\n'):
            raise DataError(
                "data.read: delimiter must be one or more ASCII characters, no quote or end of "
                f"line, or {SPACES!r} for any number of spaces and tabs; got {self.text!r:.80}"
            )

    @property
    def mark(self) -> str:
        """What stands between the values of rewritten lines."""
        return self.text if len(self.text) == 1 else _UNIT

    @property
    def quotes(self) -> bool:
        """Whether values may be quoted."""
        return len(self.text) == 1

    def rewritten(self, line: bytes, strip: bool) -> bytes:
        """Return a line, without its end, with `mark` between values."""
        mark = self.mark.encode()
        if self.text == SPACES:
            return mark.join(line.split())
        if not self.quotes:
            line = line.replace(self.text.encode(), mark)
        if not strip:
            return line
        if self.quotes and b'"' in line:
            return _stripped(line, mark)
        return mark.join([value.strip(b" \t\r") for value in line.split(mark)])

    def values(self, line: str) -> list[str]:
        """Return the values of a rewritten line."""
        try:
            return next(self._reader([line]), [])
        except csv.Error:
            return []

    def joins(self, line: bytes) -> bool:
        """Return whether a line continues in the next one, or is two."""
        try:
            return len(list(self._reader([line.decode("latin-1"), "next"]))) != 2
        except csv.Error:
            return True

    def _reader(self, lines: list[str]) -> Iterator[list[str]]:
        return csv.reader(
            lines,
            delimiter=self.mark,
            quoting=csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE,
        )


def _stripped(line: bytes, mark: bytes) -> bytes:
    """Return a line without spaces around its values, some of which are quoted."""
    values: list[bytes] = []
    at = 0
    while True:
        begin = at
        while line[at : at + 1] in (b" ", b"\t") and line[at : at + 1] != mark:
            at += 1
        end = _end_of_quoted(line, at) if line[at : at + 1] == b'"' else at
        if end < 0:
            return mark.join([*values, line[at:]])  # told where the line is parsed
        upto = line.find(mark, end)
        values.append(line[begin : upto if upto >= 0 else None].strip(b" \t\r"))
        if upto < 0:
            return mark.join(values)
        at = upto + len(mark)


def _end_of_quoted(line: bytes, at: int) -> int:
    """Return the place after a quoted value; -1 if its quote is not closed."""
    place = at + 1
    while (place := line.find(b'"', place)) >= 0:
        if line[place + 1 : place + 2] != b'"':
            return place + 1
        place += 2
    return -1


def refuse_first_line(
    path: str, delimiter: Delimiter, names: Sequence[str], values: Sequence[str], line: str
) -> None:
    """Raise DataError if the first line of a file does not have the values of ``names``.

    Also if it has these names: then it is no row.
    """
    same = {v.strip().casefold() for v in values} & {n.strip().casefold() for n in names}
    if len(values) == len(names) and 2 * len(same) >= len(names) and len(same) > len(names) // 4:
        raise DataError(
            f"data.read: {path}, line 1: names= says that this line holds values, it holds the "
            f"names {', '.join(sorted(same))[:80]}: leave names= out"
        )
    if len(values) != len(names):
        other = other_delimiter(line, delimiter)
        raise DataError(
            f"data.read: {path}, line 1: names= has {len(names)} names, the line has "
            f"{len(values)} values between {delimiter.text!r}{other}"
        )


def other_delimiter(line: str, delimiter: Delimiter) -> str:
    """Return a hint if a line seems to have another mark between its values; or nothing."""
    if delimiter.text in line:
        return ""
    likely: Any = next((mark for mark in _LIKELY if mark in line.strip()), None)
    return f"; is it delimiter={likely!r}?" if likely else ""
