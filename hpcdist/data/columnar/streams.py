"""Text files as bytes of UTF-8: plain, compressed, or in another encoding.

A plain file is read at any place. All others are read from their beginning to their end: a place
is reached from the nearest one before it that is still open.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from hpcdist.base.errors import DataError

_CHUNK = 1 << 20  # bytes, or characters, at once
_PLACES = 16  # of one file that stay open: each lane goes forward by itself
_UNDECODABLE = "hpcdist-undecodable"  # marks what is not in the encoding; the mark is no UTF-8
_DAMAGE = (EOFError, zlib.error, pa.ArrowException)  # what damaged files raise, beside OSError


class BinaryFile(Protocol):
    """What a text file is read from."""

    def seek(self, place: int, /) -> object:
        """Go to a place, in bytes from the beginning."""

    def read(self, size: int, /) -> bytes:
        """Return so many bytes, fewer only at the end."""

    def readline(self, size: int, /) -> bytes:
        """Return the rest of a line, at most ``size`` bytes."""

    def peek(self, size: int, /) -> bytes:
        """Return about so many of the next bytes without moving on."""

    def close(self) -> None:
        """Close the file."""


def _by_pyarrow(codec: str, path: str) -> Any:
    return io.BufferedReader(pa.input_stream(path, compression=codec), _CHUNK)


@dataclass(frozen=True)
class Compression:
    """How files are compressed: the ending of their names, and how they begin."""

    name: str
    ending: str
    magic: bytes  # a regular expression
    opened: Callable[[str], Any]


COMPRESSIONS = (
    Compression("gzip", ".gz", rb"\x1f\x8b", gzip.open),
    Compression("bzip2", ".bz2", rb"BZh[1-9]1AY&SY", bz2.open),
    Compression("Zstandard", ".zst", rb"\x28\xb5\x2f\xfd", partial(_by_pyarrow, "zstd")),
)

# What a file that is taken for text begins with, if it is none; and what to do.
_OTHERS = {
    rb"\xff\xfe|\xfe\xff": "is UTF-16: pass encoding='utf-16'",
    rb"PAR1[^\w,;\t ]": "is Parquet: its name must end in .parquet",
    rb"ARROW1\0": "is an Arrow file: its name must end in .arrow",
    rb"PK\x03\x04": "is a zip archive: unpack it",
    **{c.magic: f"is compressed ({c.name}): its name must end in {c.ending}" for c in COMPRESSIONS},
}
_LONGEST = 16  # bytes that these take


def compression_of(path: str) -> Compression | None:
    """Return how a file is compressed, as its name says."""
    ending = Path(path).suffix.lower()
    return next((c for c in COMPRESSIONS if c.ending == ending), None)


def uncompressed_name(path: str) -> str:
    """Return the name of a file without the ending of its compression."""
    return str(Path(path).with_suffix("")) if compression_of(path) else path


def encoding_of(name: object) -> str | None:
    """Return the name of an encoding of text as Python has it; None: UTF-8."""
    if name is None:
        return None
    try:
        if not isinstance(name, str):
            raise LookupError(f"got {name!r:.80}")
        io.TextIOWrapper(io.BytesIO(), name)  # refuses what is no encoding of text
    except (LookupError, ValueError) as error:
        raise DataError(
            "data.read: encoding must be the name of an encoding of text, such as 'utf-16' or "
            f"'latin-1': {error}"
        ) from None
    found = codecs.lookup(name).name
    return None if found in ("utf-8", "utf-8-sig") else found


def opened_text(path: str, encoding: str | None) -> tuple[BinaryFile, bool]:
    """Open a file, and say whether it can be read at any place. DataError if it is no text."""
    compression = compression_of(path)
    splits = compression is None and encoding is None
    opener: Callable[[], Any] = partial(_opened, path, compression, encoding)
    file: BinaryFile = opener() if splits else ForwardFile(path, compression, opener)
    try:
        begin = file.peek(_LONGEST)
        for magic, what in _OTHERS.items():
            if encoding is None and re.match(magic, begin):
                inside = f"what is in it, unpacked, {what}" if compression else f"it {what}"
                raise DataError(f"data.read: cannot read {path} as text: {inside}")
    except BaseException:
        file.close()
        raise
    return file, splits


def _opened(path: str, compression: Compression | None, encoding: str | None) -> Any:
    file = open(path, "rb") if compression is None else compression.opened(path)  # noqa: SIM115
    return file if encoding is None else io.BufferedReader(_Recoded(file, encoding), _CHUNK)


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error(_UNDECODABLE, _mark)


class _Recoded(io.RawIOBase):
    """A text file as UTF-8; what is not in its encoding becomes bytes that are no UTF-8."""

    def __init__(self, file: Any, encoding: str) -> None:
        self._text = io.TextIOWrapper(file, encoding, errors=_UNDECODABLE, newline="\n")
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = memoryview(self._text.read(_CHUNK).encode("utf-8", "surrogatepass"))
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        self._text.close()
        super().close()


@dataclass
class _StreamPlace:
    """A stream, and how far it has been read."""

    stream: Any
    at: int = 0


class ForwardFile:
    """A file that is read forward, by as many streams as places are wanted."""

    def __init__(
        self, path: str, compression: Compression | None, opened: Callable[[], Any]
    ) -> None:
        self._path, self._compression, self._open = path, compression, opened
        self._places = [_StreamPlace(self._open())]  # the one that was used last is the last

    def seek(self, place: int) -> None:
        """Go to a place: from the nearest before it, or from the beginning."""
        before = [p for p in self._places if p.at <= place]
        nearest = max(before, key=lambda p: p.at) if before else _StreamPlace(self._open())
        if before:
            self._places.remove(nearest)
        self._places.append(nearest)
        if len(self._places) > _PLACES:
            self._places.pop(0).stream.close()
        while nearest.at < place:
            if not self.read(min(place - nearest.at, _CHUNK)):
                raise DataError(f"{self._path} ends before byte {place}, counted unpacked")

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer only at the end."""
        return self._read(lambda stream: stream.read(size))

    def readline(self, size: int) -> bytes:
        """Return the rest of a line, at most ``size`` bytes."""
        return self._read(lambda stream: stream.readline(size))

    def peek(self, size: int) -> bytes:
        """Return about so many of the next bytes without moving on."""
        with self._naming_damage():
            data: bytes = self._places[-1].stream.peek(size)
        return data

    def _read(self, some: Callable[[Any], bytes]) -> bytes:
        place = self._places[-1]
        with self._naming_damage():
            data = some(place.stream)
        place.at += len(data)
        return data

    @contextlib.contextmanager
    def _naming_damage(self) -> Iterator[None]:
        try:
            yield
        except (OSError, *_DAMAGE) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the file system's
            kind = self._compression.name if self._compression else "text"
            raise DataError(
                f"data.read: {self._path} is damaged, or is no {kind} file: "
                f"{type(error).__name__}: {error}"
            ) from None

    def close(self) -> None:
        """Close all streams."""
        for place in self._places:
            place.stream.close()
