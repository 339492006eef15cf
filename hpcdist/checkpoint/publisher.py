"""Publishing: versions of a job's tables, written to a directory beside training."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpcdist.base.checks import directory, integer, names
from hpcdist.base.errors import CheckpointError, PublicationError, TableError
from hpcdist.base.plain_data import typed
from hpcdist.base.replaced import make_folders
from hpcdist.checkpoint.background import Background
from hpcdist.checkpoint.kept import Kept
from hpcdist.checkpoint.published_rows import (
    PublishedRows,
    PublishOrder,
    check_choices,
    facts_path,
    failure_path,
)
from hpcdist.checkpoint.ranks import PATIENCE, peers_here, together
from hpcdist.checkpoint.rows import Choice
from hpcdist.checkpoint.serving import PUBLISH
from hpcdist.ps.published.compaction import drop_before, drop_unnamed
from hpcdist.ps.published.dense import OnnxModel
from hpcdist.ps.published.files import read_member, read_publication, write_dense, write_member
from hpcdist.ps.published.members import (
    BASE,
    DELTA,
    NAME,
    DenseFile,
    Member,
    RowsFile,
    TableKind,
    link_of,
    resolve,
)

POLL_S = 0.02

logger = logging.getLogger("hpcdist.serving")


@dataclass
class _Counts:
    """How far a script is, and what is published of it."""

    steps: int = 0
    newest: int | None = None  # the step of the newest complete version of this run


class TablePublisher:
    """Publishes tables every so many steps: a base, then increments, for `hpcdist.serving.Lookup`.

    Every trainer makes one and calls `after_step` after each step. Versions are written beside
    training. One that cannot be written, as on a full disk, is put off: that is logged once, the
    next one holds its rows too, and training goes on.
    """

    def __init__(
        self,
        kept: Callable[[], Kept],
        dirname: str | Path,
        *,
        every: int = 100,
        base_every: int = 24,
        tables: Sequence[str] | None = None,
        dense: OnnxModel | None = None,
        keep: Mapping[str, Choice] | None = None,
    ) -> None:
        """``kept`` is asked for the tables of each version; see `hpcdist.checkpoint.Publisher`."""
        self._kept = kept
        self._every = integer("every", every, 1)
        self._base_every = integer("base_every", base_every, 1)
        self._directory = _writable(directory("Publisher", dirname, PublicationError).resolve())
        if dense is not None and not isinstance(dense, OnnxModel):
            raise PublicationError(f"Publisher: dense: expected an OnnxModel, got {dense!r}")
        self._tables = None if tables is None else sorted(names("Publisher: tables", tables))
        policies = kept().policies if keep or tables else {}
        if unknown := sorted({*(self._tables or ())} - {*policies}):
            raise TableError(f"Publisher: tables: the Program has no table {unknown[0]!r}")
        choices = check_choices(keep or {}, policies)
        self._keep = {name: asdict(choice) for name, choice in choices.items()}
        self._counts = _Counts()
        self._published_at = -1  # the step of what was published last
        self._rows: PublishedRows | None = None
        # On trainer 0:
        self._background = Background()
        self._last: Member | None = None  # the newest that is complete, of this run
        self._since_base = 0
        self._base: Member | None = None  # the newest of this run
        self._publication, self._previous, self._first = "", "", 1
        self._put_off = False
        self._dense = dense
        if dense is not None and peers_here().trainer == 0:
            dense.prepare()
        self._left_open = weakref.finalize(self, _tell_of_the_rest, self._directory, self._counts)

    def is_due(self, step: int) -> bool:
        """Return whether `after_step` publishes after this step."""
        return step % self._every == 0

    def after_step(self, step: int | None = None) -> None:
        """Count a step, and publish if it is time. Every trainer calls this.

        ``step`` is its number, by default that of calls so far.
        """
        self._counts.steps = self._counts.steps + 1 if step is None else step
        if self.is_due(self._counts.steps):
            self.publish()

    def publish(self, step: int | None = None, *, base: bool = False) -> bool:
        """Begin to publish a version now; return False if the one before is still being written.

        Every trainer calls this, between two steps. ``step``: as of `after_step`. ``base``: all
        rows, whether or not a base is due.
        """
        self._counts.steps = self._counts.steps if step is None else step
        kept = self._kept()
        peers = kept.peers
        first = peers.trainer == 0

        def decide() -> Any:
            kept.settle()
            return self._next_order(base) if first else None

        plain = together(peers, decide)[0]
        if plain is None:
            return False
        order = PublishOrder(**plain)

        def begin() -> bool:
            if peers.servers:
                return first and any(peers.ask({"do": PUBLISH, "order": asdict(order)}))
            if self._rows is None:
                self._rows = PublishedRows(peers.trainer, peers.trainers)
            return self._rows.begin(kept.tables, order)

        if any(together(peers, begin)):
            order = PublishOrder(**{**plain, "base": True})
            together(peers, begin)
        self._published_at = self._counts.steps
        if first:
            owners, step = peers.servers or peers.trainers, self._counts.steps
            deadline_s = PATIENCE * peers.deadline_s
            dense = None if self._dense is None else self._dense.encode()
            self._background.start(lambda: self._commit(order, owners, step, deadline_s, dense))
        return True

    def wait(self) -> bool:
        """Wait for the version that is being written; return whether it is complete. Collective."""
        peers = peers_here()

        def settled() -> bool:
            self._background.result()
            return not self._put_off

        return bool(together(peers, settled)[0])

    def close(self, step: int | None = None) -> None:
        """Publish what has changed since the last version, and wait for it. Collective."""
        self._left_open.detach()
        self.wait()
        self._counts.steps = self._counts.steps if step is None else step
        if self._published_at != self._counts.steps:
            self.publish()
            self.wait()
        if self._rows is not None:
            self._rows.close()

    # -- trainer 0 --

    def _next_order(self, base: bool) -> dict[str, Any] | None:
        """Return the order of the next version; None while one is being written, or none can be."""
        if self._background.busy:
            return None
        attempt = secrets.token_hex(8)
        try:
            make_folders(self._directory)
            # An owner that can write nothing cannot say so either.
            tried = self._directory / f"{self._first:09d}.{attempt}.tried"
            tried.touch()
            tried.unlink()
            if not self._publication:
                self._look()
        except OSError as error:
            self._say(f"{self._directory}: {error.strerror}")
            return None
        last = self._last
        base = base or last is None or self._since_base + 1 >= self._base_every
        sequence = self._first if last is None else last.sequence + 1
        committed = -1 if last is None else last.sequence
        facts = sequence, attempt, committed, base, self._tables, self._keep
        return asdict(PublishOrder(str(self._directory), *facts))

    def _look(self) -> None:
        """Find what an earlier run has published here: this one goes on with a base."""
        members, highest = {}, 0
        for path in self._directory.iterdir():
            if match := NAME.fullmatch(path.name):
                highest = max(highest, int(match[1]))
                try:
                    members[path.name] = read_member(path)
                except PublicationError as error:
                    logger.warning("%s: not continued: %s", self._directory, error)
        chain, _ = resolve(members, read_publication(self._directory))
        self._first = highest + 1
        self._publication = chain.last.publication if chain else secrets.token_hex(16)
        self._previous = link_of(chain.last) if chain else ""

    def _commit(
        self, order: PublishOrder, owners: int, step: int, deadline_s: float, dense: bytes | None
    ) -> None:
        """Write the dense part, wait for all owners' rows, and write the manifest."""
        paths = [order.path(owner, owners) for owner in range(owners)]
        try:
            facts = [_await(path, deadline_s) for path in paths]
            member = replace(self._member(order, step, facts), dense=self._written(order, dense))
            write_member(self._directory, member, founds=self._last is None)
        except (CheckpointError, PublicationError, OSError) as error:
            self._say(getattr(error, "strerror", None) or str(error))
            self._clean([*paths, order.dense_path], rows=True)
            return
        self._last, self._previous = member, link_of(member)
        self._counts.newest = member.step
        self._since_base = 0 if order.base else self._since_base + 1
        if self._put_off:
            logger.warning("%s: publishing goes on with %s", self._directory, member.name)
        self._put_off = False
        self._clean(paths, rows=False)
        if order.base:
            self._base, before = member, self._base
            self._drop(before)

    def _written(self, order: PublishOrder, dense: bytes | None) -> DenseFile | None:
        if self._dense is None or dense is None:
            return None
        return write_dense(order.dense_path, dense, self._dense.inputs, self._dense.rows)

    def _member(self, order: PublishOrder, step: int, facts: Sequence[Mapping[str, Any]]) -> Member:
        try:
            kinds = [typed(Mapping[str, TableKind], one["tables"]) for one in facts]
            files = tuple(typed(RowsFile, one["file"]) for one in facts)
        except (KeyError, ValueError) as error:
            raise PublicationError(f"malformed facts of owners: {error}") from None
        if any(one != kinds[0] for one in kinds):
            raise PublicationError(f"owners have other tables: {kinds}")
        kind = BASE if order.base else DELTA
        return Member(
            order.sequence, kind, self._publication, self._previous, step, kinds[0], files
        )

    def _drop(self, base: Member | None) -> None:
        """Delete what came before a base, which stays, if the newest is damaged later."""
        try:
            if base is not None:
                drop_before(self._directory, base)
        except OSError as error:  # they can be read, too
            logger.warning("%s: old members stay: %s", self._directory, error.strerror)

    def _say(self, why: str) -> None:
        if not self._put_off:
            logger.warning(
                "%s: publishing is put off: %s; training goes on, and the next version will hold "
                "these rows too",
                self._directory,
                why,
            )
        self._put_off = True

    def _clean(self, paths: Sequence[Path], *, rows: bool) -> None:
        """Delete what owners have left beside their rows, and these if they are in no member."""
        try:
            for path in paths:
                for left in (facts_path(path), failure_path(path), *([path] if rows else [])):
                    left.unlink(missing_ok=True)
            if not rows:
                drop_unnamed(self._directory, int(paths[0].name[:9]))
        except OSError as error:
            logger.debug("%s: files stay: %s", self._directory, error)


def _tell_of_the_rest(directory: Path, counts: _Counts) -> None:
    """Warn, where nobody has closed a publisher, of the steps that are in no version."""
    if counts.newest is not None and counts.newest != counts.steps:
        logger.warning(
            "%s: step %d was the last one, but the newest version is of step %d: close() "
            "publishes the rest",
            directory,
            counts.steps,
            counts.newest,
        )


def _await(path: Path, deadline_s: float) -> Mapping[str, Any]:
    """Wait until an owner has written its rows; return its facts. CheckpointError if it cannot."""
    facts, failure = facts_path(path), failure_path(path)
    began = time.monotonic()
    while not facts.exists():
        if failure.exists():
            raise CheckpointError(
                failure.read_text(errors="replace")
                or f"{path}: cannot be written, nor can the reason: the disk may be full"
            )
        if time.monotonic() - began > deadline_s:
            raise CheckpointError(
                f"{path}: did not appear within {deadline_s:g} s; all ranks must see the same "
                "directory"
            )
        time.sleep(POLL_S)
    found = json.loads(facts.read_text())
    if not isinstance(found, dict):
        raise PublicationError(f"{facts}: is malformed")
    return found


def _writable(path: Path) -> Path:
    """Return a directory that is there, or can be made; PublicationError if it never can be."""
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir():
        raise PublicationError(f"Publisher: expected a directory, got {path}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PublicationError(f"Publisher: {path}: this process must not write to {there}")
    return path
