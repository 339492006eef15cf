"""A parameter server's side of checkpoints: requests of trainer 0, served between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.background import Background
from hpcdist.checkpoint.files import open_plain
from hpcdist.checkpoint.kept import Arrays, KeptOnServer, LocalPiece
from hpcdist.checkpoint.local import (
    Content,
    Label,
    check_loadable,
    check_table,
    counted,
    load_shards,
    load_table,
)
from hpcdist.checkpoint.manifest import part_name
from hpcdist.checkpoint.one_file import check_possible, write_together
from hpcdist.checkpoint.partial import FittingShards, fitting
from hpcdist.checkpoint.recent import note
from hpcdist.checkpoint.rows import Choice, hottest, inference_runs
from hpcdist.checkpoint.sources import Source, open_saved
from hpcdist.comm.base import Transport
from hpcdist.ps.given_values import GIVE, take
from hpcdist.ps.messages import ASSIGN
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.table import SparseTable

if TYPE_CHECKING:
    from hpcdist.checkpoint.published_rows import PublishedRows

MAX_WORDS = 10_000  # bytes of why a part could not be written
SILENT = "{}: cannot be written: the log of its writer says why"
SAVE, CHECK, LOAD, LIST, FINITE = "save", "check", "load", "list", "finite"
PUBLISH = "publish"  # rows that have changed
SHRINK = "shrink"
HOTTEST = "hottest"  # how often rows are shown


class ServerStore:
    """Saves and loads what one of ``servers`` parameter servers keeps.

    ``after_load`` works out what follows from it.
    """

    def __init__(
        self,
        kept: KeptOnServer,
        servers: int,
        after_load: Callable[[], None],
        group: Transport | None = None,
    ) -> None:
        """``group`` is the transport of all servers, if they are to write one file together."""
        self._after_load = after_load
        self.settle: Callable[[], None] = _nothing  # until answers with parameters have left
        self._kept, self._index = kept, kept.index
        self._servers = servers
        self._group = group
        self._memory: dict[str, np.ndarray] = {}
        self._background = Background()
        self._published: PublishedRows | None = None  # once it is asked to publish

    def answer(self, request: Any) -> Any:
        """Do what trainer 0 asks for, and return the answer."""
        actions: dict[str, Callable[..., Any]] = {
            SAVE: self._save,
            CHECK: self._check,
            LOAD: self._load,
            LIST: self._list,
            ASSIGN: self._assign,
            GIVE: self._take,
            PUBLISH: self._publish,
            FINITE: lambda: self._content().not_finite(),
            HOTTEST: self._hottest,
            SHRINK: lambda: shrunk(self._kept.tables),
        }
        try:
            action = actions[request["do"]]
            arguments = {k: v for k, v in request.items() if k != "do"}
        except (KeyError, TypeError, AttributeError):
            raise CheckpointError(f"unknown request {request!r}") from None
        return action(**arguments)

    def close(self) -> None:
        """Wait for what is still being written; trainer 0 has word of what fails."""
        self._background.result()
        if self._published is not None:
            self._published.close()

    def _save(
        self,
        directory: str,
        manifest: str,
        attempt: int,
        step: int,
        program: str,
        compression: str | None,
        asynchronous: bool,
        single_file: bool,
        rows_of: Sequence[str] | None = None,
        choices: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Write this server's part; with ``rows_of`` only rows of these tables, to be looked up.

        ``choices``: which ones, the fields of each table's `Choice`.
        """
        note(directory)
        self._background.result()
        content = self._content()
        if rows_of is not None:
            chosen = {name: Choice(**fields) for name, fields in (choices or {}).items()}
            runs = partial(inference_runs, choices=chosen)
            content = Content((), Arrays(), self._tables(rows_of), runs)
        index = None if single_file else self._index
        path = Path(directory) / part_name("server", index, self._servers, attempt, manifest)
        label = Label(f"server {self._index}", step, program)
        if single_file:
            check_possible(self._group, asynchronous=asynchronous, compression=compression)
            assert self._group is not None
            write_together(path, content, label, self._group)
        elif asynchronous:
            content.snapshot(self._memory)
            self._background.start(lambda: write_or_say(content, path, label, compression))
        else:
            content.write(path, label, compression)

    def _content(self) -> Content:
        return Content(self._kept.saved(), self._kept.values, self._kept.tables)

    def _check(
        self,
        path: str,
        data: bool,
        filename: str | None = None,
        names: Any = None,
        partial: bool = False,
        leave: Sequence[str] = (),
    ) -> list[Any]:
        """Raise the error that loading would; ``data`` as for `check_loadable`.

        Returns what is taken and what is not, by name, if it may be ``partial``. Variables in
        ``leave`` stay as they are.
        """
        with open_saved(Path(path), filename, names or []) as source:
            fit = self._fitting(source, names, partial, leave)
            check_loadable(source, fit.pieces, data=data)
            for table in fit.tables:
                check_table(source, table, self._index, self._servers, partial=partial)
            return [fit.taken, fit.left]

    def _load(
        self,
        path: str,
        filename: str | None = None,
        names: Any = None,
        partial: bool = False,
        leave: Sequence[str] = (),
    ) -> None:
        """Load what is held here, or as much of it as is among ``names`` of whole variables."""
        with open_saved(Path(path), filename, names or []) as source:
            fit = self._fitting(source, names, partial, leave)
            load_shards(source, fit.pieces, self._kept.values)
            for table in fit.tables:
                load_table(source, table, self._index, self._servers)
        self._back_up()
        self._after_load()

    def _back_up(self) -> None:
        """Give the copies that DC-ASGD keeps of parameters their present values."""
        find = self._kept.values.array_of
        for parameter, copies in self._kept.backups.items():
            for copy in copies:
                np.copyto(find(copy), find(parameter))

    def _publish(self, order: Mapping[str, Any]) -> bool:
        """Begin to write rows that have changed; return whether it must be a base instead."""
        from hpcdist.checkpoint.published_rows import PublishedRows, PublishOrder

        if self._published is None:
            self._published = PublishedRows(self._index, self._servers)
        return self._published.begin(self._tables(None), PublishOrder(**order))

    def _hottest(self, table: str, choice: Mapping[str, float], count: int) -> list[float]:
        (found,) = self._tables([table])
        return hottest(found, Choice(**choice), count)

    def _assign(self, values: Mapping[str, float]) -> None:
        """Set variables of one element; a server that updates nothing may have none of them."""
        for name, value in values.items():
            array = self._kept.values.array_of(name)
            if array is not None:
                array[...] = value

    def _take(self, name: str, at: int, data: str, server: int | None = None) -> None:
        """Take a part of a value, if it is for this server; without such a variable do nothing."""
        array = self._kept.values.array_of(name)
        if array is not None and server in (None, self._index):
            self.settle()
            take(array, name, at, data)
            self._back_up()

    def _fitting(
        self, source: Source, names: Any, partial: bool, leave: Sequence[str]
    ) -> FittingShards:
        pieces = [h for h in self._pieces_of(source, names) if h.local not in leave]
        tables = self._tables(names)
        if partial:
            return fitting(source, pieces, tables)
        return FittingShards(tuple(pieces), tuple(tables), {}, {})

    def _pieces_of(self, source: Source, names: Any) -> list[LocalPiece]:
        anew, counter = self._kept.recomputed, self._kept.counter
        return [
            counted(source, h, counter)
            for h in self._kept.held()
            if (names is None or h.piece.name in names)
            and (source.has(h.piece.name) or h.local not in anew)
        ]

    def _tables(self, names: Any) -> list[SparseTable]:
        return [table for table in self._kept.tables if names is None or table.name in names]

    def _list(self) -> list[Any]:
        return [[h.local, asdict(h.piece)] for h in self._kept.saved()]


def shrunk(tables: Sequence[SparseTable]) -> dict[str, int]:
    """End a day of those tables that have a policy; return how many rows each has forgotten."""
    return {table.name: table.shrink() for table in tables if isinstance(table, PolicyTable)}


def write_or_say(content: Content, path: Path, label: Label, compression: str | None) -> None:
    """Write a part; if that fails, leave word beside it, for who waits for the part."""
    try:
        content.write(path, label, compression)
    except Exception as error:
        # On a full disk the name must do.
        with suppress(OSError), failure_of(path).open("x", encoding="utf-8") as file:
            file.write(f"{label.writer}: {error}")
        raise


def failure_words(path: Path) -> str | None:
    """Return why a part could not be written; None if nobody has said that it could not."""
    try:
        with open_plain(failure_of(path)) as file:
            return file.read(MAX_WORDS).decode(errors="replace") or SILENT.format(path)
    except CheckpointError:
        return None


def failure_of(path: Path) -> Path:
    """Return the file that says why a part could not be written."""
    return path.with_name(f"{path.name}.failed")


def _nothing() -> None:
    """Do nothing."""
