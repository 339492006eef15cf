"""Rows of tables in checkpoints and in published versions, read alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcdist.base.errors import CheckpointError, TableError
from hpcdist.base.nearest import did_you_mean
from hpcdist.checkpoint.checkpoint import Checkpoint, latest
from hpcdist.checkpoint.directories import steps
from hpcdist.checkpoint.layout import MANIFEST
from hpcdist.checkpoint.local import table_parts
from hpcdist.checkpoint.rows import decoded
from hpcdist.ps.published.files import PUBLICATION
from hpcdist.ps.published.lookup import Lookup
from hpcdist.ps.published.members import NAME
from hpcdist.ps.published.sorted_rows import Ids, Rows, mixes_of
from hpcdist.ps.published.version import ERROR, PublishedTable

PIECE = 1 << 16  # rows that are read at once
Pieces = Callable[[], Iterator[tuple[int, Ids, Rows]]]  # (owner, ids, rows)


@dataclass(frozen=True)
class SavedTable:
    """A table: ``owners`` hold its ``rows``, of ``width``; ``pieces`` reads some at a time."""

    name: str
    width: int
    rows: int
    owners: int
    pieces: Pieces

    def read(self) -> tuple[Ids, Rows]:
        """Return all ids in ascending order, and their rows."""
        ids, rows = np.empty(self.rows, np.int64), np.empty((self.rows, self.width), np.float32)
        end = 0
        for _, some, values in self.pieces():
            ids[end : end + len(some)], rows[end : end + len(some)] = some, values
            end += len(some)
        order = np.argsort(ids, kind="stable")
        return ids[order], rows[order]


@dataclass(frozen=True)
class SavedTables:
    """What a path holds, in words, and its tables by name."""

    described: str
    tables: Mapping[str, SavedTable]

    def chosen(self, name: str | None) -> list[SavedTable]:
        """Return the table ``name``, or all for None; TableError if there is none."""
        if name is None:
            return [self.tables[one] for one in sorted(self.tables)]
        if name not in self.tables:
            raise TableError(
                f"{self.described}: has no table {name!r}{did_you_mean(name, self.tables)} "
                f"(it has {', '.join(sorted(self.tables)) or 'none'})"
            )
        return [self.tables[name]]


def open_tables(path: Path, stack: ExitStack) -> SavedTables:
    """Open a published directory, a checkpoint, or the newest of a directory of checkpoints.

    CheckpointError or PublicationError if it is none, or damaged.
    """
    if path.is_dir() and _is_published(path):
        version = stack.enter_context(Lookup(path, watch=False)).current
        owners = max(1, len(version.chain.members[0].files))
        tables = {name: _published(version.table(name), owners) for name in version.tables}
        return SavedTables(f"{path}: version {version.number} of step {version.step}", tables)
    if steps(path) and not (path / MANIFEST).exists():
        found = latest(path)
        assert found is not None, "there are some"
        path = found
    try:
        checkpoint = stack.enter_context(Checkpoint(path))
    except CheckpointError as error:
        raise CheckpointError(f"{error} (nor a published directory)") from None
    names = dict.fromkeys(part.name for part in checkpoint.facts.tables)
    tables = {name: _saved(checkpoint, name) for name in names}
    return SavedTables(f"{checkpoint.manifest.parent}: step {checkpoint.step}", tables)


def _is_published(path: Path) -> bool:
    return (path / PUBLICATION).exists() or any(NAME.fullmatch(p.name) for p in path.iterdir())


def _published(table: PublishedTable, owners: int) -> SavedTable:
    ids = table.ids()

    def pieces() -> Iterator[tuple[int, Ids, Rows]]:
        by_owner = ((mixes_of(ids) >> np.uint64(32)) * np.uint64(owners)) >> np.uint64(32)
        ends = np.searchsorted(by_owner, np.arange(owners + 1))
        for owner in range(owners):
            for first in range(ends[owner], ends[owner + 1], PIECE):
                some = ids[first : min(first + PIECE, ends[owner + 1])]
                yield owner, some, table.pull(some, ERROR)

    return SavedTable(table.name, table.kind.width, len(ids), owners, pieces)


def _saved(checkpoint: Checkpoint, name: str) -> SavedTable:
    parts = table_parts(checkpoint, name)
    homes = sorted({home for home, _ in parts})

    def pieces() -> Iterator[tuple[int, Ids, Rows]]:
        for home, part in parts:
            for first in range(0, part.count, PIECE):
                last = min(first + PIECE, part.count)
                ids = np.empty(last - first, np.int64)
                dtype = np.uint8 if part.row_bytes else np.float32
                rows = np.empty((last - first, part.row_bytes or part.dim), dtype)
                file = checkpoint.files[home]
                for job in [
                    *file.jobs(f"{part.path}/ids", first, last, ids),
                    *file.jobs(f"{part.path}/rows", first, last, rows),
                ]:
                    job()
                no_state = np.empty((len(rows), part.state_bytes), np.uint8)
                yield homes.index(home), ids, decoded(part, rows, no_state)[0]

    count = sum(part.count for _, part in parts)
    return SavedTable(name, parts[0][1].dim, count, len(homes), pieces)
