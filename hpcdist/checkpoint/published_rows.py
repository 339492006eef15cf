"""One owner's part of a publication: its changed rows, written beside training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.base.replaced import write_whole
from hpcdist.checkpoint.background import Background
from hpcdist.checkpoint.rows import STORAGE, Choice, facts_of
from hpcdist.ps.batch import sort_by_mix
from hpcdist.ps.changes import Changed, Changes
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.published.files import TableRows, write_rows
from hpcdist.ps.published.members import TableKind
from hpcdist.ps.published.sorted_rows import mixes_of
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.ps.table import SparseTable

EXPORTED_ROWS = 1 << 16  # rows whose ids are asked for at a time


@dataclass(frozen=True)
class PublishOrder:
    """What owners are asked to publish: member ``sequence``; ``attempt`` is in names of files.

    ``committed`` is the newest member that is complete: what owners have written since then, of
    members that never were, is to be written again. ``tables``: their names, None: all. ``keep``:
    of which tables only some rows are published, the fields of each one's `Choice`.
    """

    directory: str
    sequence: int
    attempt: str
    committed: int
    base: bool
    tables: Sequence[str] | None = None
    keep: Mapping[str, Mapping[str, Any]] | None = None

    def path(self, owner: int, owners: int) -> Path:
        """Return the file of an owner's rows."""
        return self._path(f"{owner}-of-{owners}.rows")

    @property
    def dense_path(self) -> Path:
        """The file of the dense part."""
        return self._path("onnx")

    def _path(self, what: str) -> Path:
        return Path(self.directory) / f"{self.sequence:09d}.{self.attempt}.{what}"


def facts_path(rows: Path) -> Path:
    """Return the file by which an owner says that its rows are written: what they are."""
    return rows.with_name(f"{rows.name}.facts")


def failure_path(rows: Path) -> Path:
    """Return the file by which an owner says why its rows cannot be written."""
    return rows.with_name(f"{rows.name}.failed")


def check_choices(
    keep: Mapping[str, Choice], policies: Mapping[str, RowPolicy | None]
) -> dict[str, Choice]:
    """Return which rows of tables are published; TableError for what their policies cannot tell."""
    scored = sorted(name for name, policy in policies.items() if policy and policy.score)
    if not isinstance(keep, Mapping):
        raise TableError(f"rows to publish: expected Choices by names of tables, got {keep!r}")
    for name, choice in keep.items():
        if not isinstance(choice, Choice):
            raise TableError(
                f"table {name!r}: rows to publish: expected a hpcdist.checkpoint.Choice, got "
                f"{choice!r}"
            )
        if name not in scored:
            raise TableError(
                f"table {name!r}: rows to publish are chosen by their score: expected a table with "
                f"RowPolicy(score=ClickScore()), of which there are {', '.join(scored) or 'none'}"
            )
    return dict(keep)


class PublishedRows:
    """Publishes the rows of one of ``owners``: servers, or trainers that share tables out."""

    def __init__(self, owner: int, owners: int) -> None:
        """Own what the tables given to `begin` hold."""
        self._owner, self._owners = owner, owners
        # By member, until it is complete: a table's changes, and what was chosen of them.
        self._pending: dict[int, dict[str, tuple[Changed, Changed | None]]] = {}
        self._due: dict[str, np.ndarray] = {}  # ids that a member was to have that never was
        self._background = Background()

    def begin(self, tables: Sequence[SparseTable], order: PublishOrder) -> bool:
        """Copy what has changed, and start to write it; return whether it must be a base instead.

        Then nothing is written. What cannot be written is said in a file beside it, or nowhere.
        """
        self._background.result()
        chosen = [t for t in tables if order.tables is None or t.name in order.tables]
        for table in chosen:
            table.changes = table.changes or Changes()
        self._settle(chosen, order.committed)
        if not order.base and any(_changes(table).whole for table in chosen):
            return True
        choices = {name: Choice(**fields) for name, fields in (order.keep or {}).items()}
        pending = self._pending[order.sequence] = {}
        rows = {}
        for table in chosen:
            choice, taken = choices.get(table.name), _changes(table).take()
            written = None if order.base else taken
            if choice is not None:
                taken, written = self._kept(table, taken, choice, base=order.base)
            pending[table.name] = taken, None if choice is None else written
            rows[table.name] = copied(table, written)
        kinds = {t.name: _kind_of(t) for t in chosen}
        path = order.path(self._owner, self._owners)
        self._background.start(lambda: _write(path, rows, kinds, packed=not order.base))
        return False

    def close(self) -> None:
        """Wait for what is being written."""
        self._background.result()

    def _kept(
        self, table: SparseTable, taken: Changed, choice: Choice, *, base: bool
    ) -> tuple[Changed, Changed]:
        """Return of the changes that were taken those to put back, if need be, and to write.

        Changes that ``choice`` leaves out are noted again: a later increment may have them. What a
        member had that never was complete is due, whatever it is worth now.
        """
        ids = _all_ids(table) if base else taken.touched
        due = self._due.pop(table.name, ids[:0])
        chosen = replace(choice, least_delta=None) if base else choice
        kept = np.union1d(chosen.of(table, ids), np.intersect1d(due, ids))
        if isinstance(table, PolicyTable) and table.policy.score:
            table.begin_deltas(kept)
        if base:
            return taken, Changed(kept, taken.deleted[:0])
        _changes(table).touch(np.setdiff1d(ids, kept))
        written = Changed(kept, taken.deleted, taken.whole)
        return written, written

    def _settle(self, tables: Sequence[SparseTable], committed: int) -> None:
        for sequence in sorted(self._pending, reverse=True):
            taken = self._pending.pop(sequence)
            for table in tables:
                if sequence > committed and table.name in taken:
                    changed, written = taken[table.name]
                    _changes(table).put_back(changed)
                    if written is not None:
                        before = self._due.get(table.name, written.touched[:0])
                        self._due[table.name] = np.union1d(before, written.touched)


def _changes(table: SparseTable) -> Changes:
    assert table.changes is not None, "it is published"
    return table.changes


def copied(table: SparseTable, changed: Changed | None) -> TableRows:
    """Return copies of changed rows, or of all of them (None), in the order of their keys."""
    if changed is None:
        ids, deleted = _all_ids(table), np.empty(0, np.int64)
    else:
        ids, deleted = changed.touched.copy(), changed.deleted.copy()
    sort_by_mix(ids)
    sort_by_mix(deleted)
    rows = _kind_of(table).space(len(ids))
    if table.tier is not None and len(ids):
        rows = table.tier.space(rows.shape, rows.dtype)
    table.read(ids, rows)
    return TableRows(mixes_of(ids), lambda begin, end: rows[begin:end], mixes_of(deleted))


def _all_ids(table: SparseTable) -> np.ndarray:
    ids = np.empty(len(table), np.int64)
    for first in range(0, len(table), EXPORTED_ROWS):
        ids[first : first + EXPORTED_ROWS] = table.export(first, first + EXPORTED_ROWS)[0]
    return ids


def _kind_of(table: SparseTable) -> TableKind:
    beginning = {k: v for k, v in facts_of(table).items() if k == STORAGE}
    beginning |= table.without_row.to_plain()
    if table.storage.rows != "float32":
        beginning["row_bytes"] = table.row_bytes
    return TableKind(table.dim, int(table.seed), beginning)


def _write(
    path: Path, rows: Mapping[str, TableRows], kinds: Mapping[str, TableKind], *, packed: bool
) -> None:
    """Write rows, then what they are; or else why they cannot be written."""
    sizes = {name: kind.row_bytes for name, kind in kinds.items()}
    try:
        file = write_rows(path, rows, sizes, packed=packed)
        facts: dict[str, Any] = {"file": asdict(file)}
        facts["tables"] = {name: asdict(kind) for name, kind in kinds.items()}
        write_whole(facts_path(path), json.dumps(facts), durable=True)
    except OSError as error:
        try:
            write_whole(failure_path(path), f"{path}: {error.strerror}")
        except OSError:  # on a full disk the name must do
            with suppress(OSError):
                failure_path(path).touch()
