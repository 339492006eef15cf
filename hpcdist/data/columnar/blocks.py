"""Reads blocks as arrays and finds rows that cannot be used; handles all reading errors."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from hpcdist.base.errors import DataError
from hpcdist.data.columnar.columns import (
    Column,
    Rules,
    converted,
    holds_text,
    is_empty,
    part,
    taken,
)
from hpcdist.data.columnar.files import (
    DataFile,
    Faults,
    FileFacts,
    Filter,
    Index,
    RawBlock,
    tried,
    worded,
)
from hpcdist.data.columnar.targets import ColumnTarget

logger = logging.getLogger("hpcdist.columnar")

OPEN = 16  # files that stay open
WARNED = 100  # places that are left out, each with a warning; then the 128th, 256th, ...
_UNREADABLE = (OSError, pa.ArrowException, ValueError, KeyError)  # what damaged files raise


@dataclass(frozen=True)
class Skip:
    """Consecutive rows of one block that are left out, and why."""

    file: str
    block: str
    begin: int  # in the block
    end: int
    column: str
    reason: str
    line: int | None = None  # of a text file, counted from 1

    def __str__(self) -> str:
        rows = (
            f"row {self.begin}" if self.end == self.begin + 1 else f"rows {self.begin}:{self.end}"
        )
        column = f", column {self.column!r}" if self.column else ""
        line = "" if self.line is None else f" (line {self.line} of the file)"
        return f"{self.file}, {self.block}, {rows}{column}: {self.reason}{line}"


@dataclass(frozen=True)
class Loaded:
    """Rows of a block: arrays of those that can be used, and which these are."""

    rows: int
    columns: Mapping[str, Column] | None  # None: none of the rows can be used
    usable: np.ndarray | None = None  # bool[rows]; None: all

    def part(self, begin: int, end: int) -> Loaded:
        """Return consecutive rows."""
        if self.columns is None or (begin, end) == (0, self.rows):
            return Loaded(end - begin, self.columns, self.usable)
        first, last, usable = begin, end, None
        if self.usable is not None:
            first, last = (int(np.count_nonzero(self.usable[:at])) for at in (begin, end))
            usable = self.usable[begin:end]
        columns = {name: part(column, first, last) for name, column in self.columns.items()}
        return Loaded(end - begin, columns, usable)


@dataclass(frozen=True)
class Policy:
    """What becomes of rows and blocks that cannot be used, and how often a read is tried."""

    skip: bool = False
    retries: int = 3


class BlockReader:
    """Reads blocks of any file by number."""

    def __init__(
        self,
        index: Index,
        opened: Callable[[str], DataFile],
        targets: Sequence[ColumnTarget],
        rules: Rules,
        only: Filter | None = None,
        policy: Policy = Policy(),  # frozen
    ) -> None:
        self._index, self._opened, self._targets = index, opened, targets
        self._rules, self._only, self._policy = rules, only, policy
        self._columns = list(dict.fromkeys(name for t in targets for name in t.columns))
        self._sources: OrderedDict[str, DataFile] = OrderedDict()
        self.doing = ""  # what is being read, for those who wait too long
        self.skipped: deque[Skip] = deque()  # threads that read add to it
        self._warned = 0
        self._is_text: dict[str, tuple[bool, str]] = {}  # by column, and by which file

    def read(self, number: int) -> Loaded:
        """Return a block; DataError, which names what is bad and where, unless that is skipped."""
        file, within = self._index.where(number)
        block = file.blocks[within]
        self.doing = file.name(within)
        try:
            raw, rows_kept = self._tried(file, within)
        except _UNREADABLE as error:
            return self._without(file, within, error)
        faults: Faults = dict(raw.faults)
        columns = {n: converted(n, raw.columns[n], self._rules, faults) for n in self._columns}
        texts = {name for name in self._columns if holds_text(raw.columns[name])}
        self._expect_alike(file, raw.columns, texts)
        arrays = {t.name: t.filled(columns, texts, faults) for t in self._targets}
        if rows_kept is not None:
            arrays = {name: taken(column, rows_kept) for name, column in arrays.items()}
            faults = {row: faults[row] for row in rows_kept.tolist() if row in faults}
        bad = sorted(faults)
        if not bad:
            return Loaded(block.rows, arrays)
        found = [(row, *faults[row]) for row in bad]
        self.refuse_or_note(_ranges(file, within, found, raw.line_of))
        places = np.asarray(bad) if rows_kept is None else np.searchsorted(rows_kept, bad)
        usable = np.ones(block.rows, bool)
        usable[places] = False
        rows = np.flatnonzero(usable)
        return Loaded(block.rows, {n: taken(c, rows) for n, c in arrays.items()}, usable)

    def _expect_alike(self, file: FileFacts, raw: Mapping[str, Any], texts: Set[str]) -> None:
        """Raise DataError if a column is text in one file and numbers in another."""
        for name in self._columns:
            if not is_empty(raw[name]):
                text, first = self._is_text.setdefault(name, (name in texts, file.path))
                if text != (name in texts):
                    one, other = (first, file.path) if text else (file.path, first)
                    raise DataError(
                        f"column {name!r} holds text in {one}, and numbers in {other}: texts are "
                        "hashed, so the same value would get two ids; use one type in all files"
                    )

    def _without(self, file: FileFacts, within: int, error: BaseException) -> Loaded:
        """Go on without a block that cannot be read, if that is wanted."""
        rows = file.blocks[within].rows
        # What the system refuses has no column; pyarrow's own findings have, and no errno.
        by_pyarrow = not isinstance(error, DataError) and getattr(error, "errno", None) is None
        column = self._guilty(file, within) if by_pyarrow else ""
        message = str(error) if isinstance(error, DataError) else worded(error)
        skip = Skip(file.path, f"{file.unit} {within}", 0, rows, column, message)
        self.refuse_or_note([skip], error)
        return Loaded(rows, None, np.zeros(rows, bool))

    def refuse_or_note(self, skips: Sequence[Skip], cause: BaseException | None = None) -> None:
        """Raise DataError for rows that cannot be used; note them if they are to be skipped."""
        if not self._policy.skip:
            more = f" (and {len(skips) - 1} more like it)" if len(skips) > 1 else ""
            raise DataError(
                f"{skips[0]}{more}; fix the file, or leave such rows out with on_bad='skip'"
            ) from cause
        for skip in skips:
            self._warned += 1
            if self._warned <= WARNED or not self._warned & (self._warned - 1):
                logger.warning("left out: %s", skip)
            if self._warned == WARNED:
                logger.warning("from now on few skipped rows are reported; Rows.skipped has all")
        self.skipped.extend(skips)

    # -- one file ------------------------------------------------------------------------------
    def _tried(self, file: FileFacts, within: int) -> tuple[RawBlock, np.ndarray | None]:
        """Read a block, again if the file system fails for a time."""

        def read() -> tuple[RawBlock, np.ndarray | None]:
            try:
                return self._raw(file, within, self._columns)
            except OSError:
                self._forget(file.path)
                raise

        return tried(read, file.name(within), self._policy.retries)

    def _raw(
        self, file: FileFacts, within: int, columns: Sequence[str]
    ) -> tuple[RawBlock, np.ndarray | None]:
        """Return columns of a block, and which rows pass the filter."""
        file.check()
        source = self._source(file.path)
        block = file.blocks[within]
        rows_kept = None if self._only is None else self._only.rows(source, block)
        raw = source.read(block, columns)
        rows = raw.rows if rows_kept is None else len(rows_kept)
        if rows != block.rows:
            raise DataError(f"expected {block.rows} rows, as at the start, got {rows}")
        return raw, rows_kept

    def _guilty(self, file: FileFacts, within: int) -> str:
        """Return the first column that cannot be read, or an empty string."""
        for name in self._columns:
            try:
                self._raw(file, within, [name])
            except _UNREADABLE:
                self._forget(file.path)
                other_columns = [n for n in self._columns if n != name]
                return (
                    name
                    if not other_columns or self._readable(file, within, other_columns[:1])
                    else ""
                )
        return ""

    def _readable(self, file: FileFacts, within: int, columns: Sequence[str]) -> bool:
        try:
            self._raw(file, within, columns)
        except _UNREADABLE:
            self._forget(file.path)
            return False
        return True

    def _source(self, path: str) -> DataFile:
        source = self._sources.pop(path, None) or self._opened(path)
        self._sources[path] = source
        if len(self._sources) > OPEN:
            self._sources.popitem(last=False)[1].close()
        return source

    def _forget(self, path: str) -> None:
        source = self._sources.pop(path, None)
        if source is not None:
            source.close()

    def close(self) -> None:
        """Close all files."""
        for path in list(self._sources):
            self._forget(path)


def _ranges(
    file: FileFacts,
    within: int,
    faults: Sequence[tuple[int, str, str]],
    line_of: Callable[[int], int] | None,
) -> list[Skip]:
    """Join rows that follow each other and are bad for the same reason."""
    skips: list[Skip] = []
    block = f"{file.unit} {within}"
    for row, column, reason in faults:
        last = skips[-1] if skips else None
        if last and last.end == row and (last.column, last.reason) == (column, reason):
            skips[-1] = replace(last, end=row + 1)
        else:
            line = line_of(row) if line_of else None
            skips.append(Skip(file.path, block, row, row + 1, column, reason, line))
    return skips
