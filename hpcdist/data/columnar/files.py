"""Which files are read, their blocks, and whether they have changed since."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from hpcdist.base.errors import DataError
from hpcdist.base.nearest import did_you_mean

T = TypeVar("T")
logger = logging.getLogger("hpcdist.columnar")

Faults = dict[int, tuple[str, str]]  # row that cannot be used -> column, reason

FIRST_PAUSE_S = 0.1  # before a read is tried again; doubled each time
_OPENERS = 8  # files that are looked into at once: on network file systems it is a wait, not work


@dataclass(frozen=True)
class FileBlock:
    """Rows that are read together; what ``begin`` and ``end`` count depends on the format."""

    rows: int  # those that pass the filter
    begin: int
    end: int
    line: int = 0  # of a text file, at which it begins


@dataclass(frozen=True)
class RawBlock:
    """Columns of a block as they are in the file: numpy's, or pyarrow's with nulls in them."""

    rows: int
    columns: Mapping[str, Any]
    faults: Faults
    line_of: Callable[[int], int] | None = None  # of a text file: the line that a row is


class DataFile(Protocol):
    """One file of some format, open."""

    unit: str  # what its blocks are called

    def names(self) -> Sequence[str]:
        """Return the names of the columns."""

    def blocks(self) -> Sequence[FileBlock]:
        """Return the blocks; of a text file this reads it once."""

    def read(self, block: FileBlock, columns: Sequence[str]) -> RawBlock:
        """Return columns of a block."""

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True)
class FileFacts:
    """A file as it was when reading began."""

    path: str
    bytes: int
    modified: int  # ns
    blocks: tuple[FileBlock, ...]
    unit: str
    splits: bool = True  # False: its blocks can only be read one after the other

    def check(self) -> None:
        """Raise OSError or DataError if the file has gone or changed."""
        now = os.stat(self.path)
        if (now.st_size, now.st_mtime_ns) != (self.bytes, self.modified):
            raise DataError(
                f"the file has changed since reading began: {self.bytes} bytes then, "
                f"{now.st_size} now; data must stay as it is while a job reads it"
            )

    def name(self, block: int) -> str:
        """Say which block of the file."""
        return f"{self.path}, {self.unit} {block}"


@dataclass(frozen=True)
class Index:
    """All files, and their blocks one after the other."""

    files: tuple[FileFacts, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of every block."""
        return tuple(block.rows for file in self.files for block in file.blocks)

    def where(self, block: int) -> tuple[FileFacts, int]:
        """Return the file of a block, and its number there."""
        for file in self.files:
            if block < len(file.blocks):
                return file, block
            block -= len(file.blocks)
        raise IndexError(block)

    def row(self, number: int) -> tuple[FileFacts, int, int]:
        """Return the file of a row, counted through all blocks; its block, and its place there."""
        for block, rows in enumerate(self.sizes):
            if number < rows:
                return (*self.where(block), number)
            number -= rows
        raise IndexError(number)

    @property
    def runs(self) -> tuple[int, ...]:
        """How many blocks keep their order when others are shuffled; empty: each is alone."""
        if all(file.splits for file in self.files):
            return ()
        runs = [[1] * len(f.blocks) if f.splits else [len(f.blocks)] for f in self.files]
        return tuple(run for of_file in runs for run in of_file if run)

    @property
    def words(self) -> str:
        """Say which files these are."""
        names = [file.path for file in self.files]
        shown = names if len(names) < 4 else [names[0], "...", names[-1]]
        return f"{', '.join(shown)} ({len(names)} files, {sum(self.sizes)} rows)"

    @property
    def digest(self) -> str:
        """What must be equal for a position to mean the same rows: names, sizes, blocks."""
        words = [[Path(f.path).name, f.bytes, [b.rows for b in f.blocks]] for f in self.files]
        return xxhash.xxh3_64_hexdigest(repr(words).encode())


def expanded(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the files that paths and patterns name; those of a pattern in order of their names."""
    is_single = isinstance(paths, (str, os.PathLike))
    names: Any = [paths] if is_single else paths
    files: list[str] = []
    if not isinstance(names, Iterable) or not all(
        isinstance(name, (str, os.PathLike)) for name in names
    ):
        raise DataError(f"data.read: expected the name of a file, or a list, got {paths!r:.80}")
    for name in names:
        path = os.fspath(name)
        matches = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else [path]
        if not matches:
            raise DataError(f"data.read: no file is called {path!r}, on this host")
        files += matches
    if not files:
        raise DataError("data.read: expected the name of a file, or several, got none")
    seen: set[str] = set()
    for file in files:
        real = os.path.realpath(file)
        if real in seen:
            raise DataError(f"data.read: {file} is named twice, its rows would be used twice")
        with contextlib.suppress(OSError):  # told, and tried again, where it is opened
            if stat.S_ISFIFO(os.lstat(real).st_mode):
                raise DataError(f"data.read: {file} is a pipe: its rows cannot be read again")
        seen.add(real)
    return files


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Raise DataError, with the file's name, for whatever a damaged or missing file raises."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"data.read: cannot read {path}: {worded(error)}") from error


def require(path: str, names: Sequence[str], columns: Sequence[str], hint: str = "") -> None:
    """Raise DataError if one of ``columns`` is not among the ``names`` that a file has."""
    for column in columns:
        if column not in names:
            raise DataError(
                f"data.read: {path} has no column {column!r}, it has {', '.join(names)[:400]}"
                + (hint or did_you_mean(column, names))
            )


def look_into(
    paths: Sequence[str],
    opened: Callable[[str], DataFile],
    columns: Sequence[str],
    only: Filter | None = None,
    retries: int = 0,
) -> Index:
    """Return the blocks of all files, which must have ``columns``; rows that pass ``only``."""

    def look(path: str) -> FileFacts:
        with naming(path):
            return tried(lambda: facts(path), path, retries)

    def facts(path: str) -> FileFacts:
        before = os.stat(path)
        with contextlib.closing(opened(path)) as source:
            require(path, source.names(), columns, getattr(source, "hint", str)())
            blocks = list(source.blocks())
            if only is not None:
                blocks = [replace(b, rows=only.count(source, b)) for b in blocks]
            facts = (path, before.st_size, before.st_mtime_ns, tuple(blocks), source.unit)
            return FileFacts(*facts, getattr(source, "splits", True))

    with ThreadPoolExecutor(_OPENERS, "hpcdist-index") as pool:
        return Index(tuple(pool.map(look, paths)))


def tried(read: Callable[[], T], name: str, retries: int) -> T:
    """Call ``read``, and again if the file system fails for a time."""
    for attempt in count():
        try:
            return read()
        except OSError as error:
            if attempt == retries or isinstance(error, FileNotFoundError):
                raise
            logger.warning("%s: %s; trying again", name, worded(error))
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("count() has no end")


def worded(error: BaseException) -> str:
    """Return an error's message in one line."""
    message = getattr(error, "strerror", None) or str(error)
    return " ".join(f"{type(error).__name__}: {message}".split())[:300]


def pieces_of(count: int, size: int) -> Iterator[FileBlock]:
    """Cut ``count`` rows into blocks of ``size``."""
    for begin in range(0, count, size):
        end = min(begin + size, count)
        yield FileBlock(end - begin, begin, end)


_ROW = "hpcdist: number of the row"


@dataclass(frozen=True)
class Filter:
    """Which rows are read at all."""

    expression: Any  # pyarrow's
    columns: tuple[str, ...]  # that it looks at
    words: str

    def count(self, source: DataFile, block: FileBlock) -> int:
        """Return how many rows of a block pass; Parquet's statistics may tell without reading."""
        counted = getattr(source, "count", None)
        return len(self.rows(source, block)) if counted is None else counted(block, self.expression)

    def rows(self, source: DataFile, block: FileBlock) -> np.ndarray:
        """Return the rows of a block that pass, in order."""
        raw = source.read(block, self.columns)
        table = pa.table({name: _as_arrow(raw.columns[name]) for name in self.columns})
        numbered = table.append_column(_ROW, pa.array(np.arange(raw.rows)))
        rows: np.ndarray = numbered.filter(self.expression)[_ROW].to_numpy()
        return rows


def _as_arrow(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return pa.array(column if column.ndim == 1 else list(column))
    return column


def filter_of(filters: Any) -> Filter | None:
    """Return a filter of conditions ``(column, operator, value)``, as pyarrow.parquet has them."""
    if not filters:
        return None
    groups = [filters] if isinstance(filters[0], tuple) else filters
    try:
        columns = tuple(dict.fromkeys(column for group in groups for column, _, _ in group))
        return Filter(pq.filters_to_expression(filters), columns, repr(filters))
    except (TypeError, ValueError) as error:
        raise DataError(
            "data.read: filters must be like [('age', '>=', 18), ('city', 'in', ['Bonn'])], all of "
            "which hold, or a list of such lists, one of which holds; "
            f"got {filters!r:.200} ({error})"
        ) from None
