"""`Lookup`: rows of published tables in any process, always of the newest complete version."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

from hpcdist.base.checks import directory
from hpcdist.base.errors import PublicationError
from hpcdist.ps.published.files import read_member, read_publication
from hpcdist.ps.published.members import NAME, Member, MemberChain, resolve
from hpcdist.ps.published.sorted_rows import Rows
from hpcdist.ps.published.version import INITIAL, Version, load

LOOK_S = 0.2  # how often the directory is looked at

logger = logging.getLogger("hpcdist.serving")
Stamp = tuple[int, int, int]  # of a file: when it changed, its size, its number


class Lookup:
    """Rows of the tables that training publishes to a directory, in any process: no MPI, no job.

    The files are mapped, so processes of a machine share their pages. A thread looks for versions,
    and takes one when it is complete and all its checksums agree: look-ups that have begun are of
    the version before. One that is damaged is refused, which is logged once, and the last good one
    goes on serving.

    >>> lookup = hpcdist.serving.Lookup("published")  # doctest: +SKIP
    >>> rows = lookup.pull("users", [3, 5])  # doctest: +SKIP
    """

    def __init__(self, dirname: str | Path, *, watch: bool = True) -> None:
        """Take the newest complete version; without ``watch`` only `refresh` takes another.

        PublicationError if the directory has none.
        """
        self._directory = directory("Lookup", dirname, PublicationError)
        self._members: dict[str, tuple[Stamp, Member]] = {}
        self._bad: dict[str, Stamp] = {}  # manifests whose files are damaged
        self._told: set[tuple[str, Stamp]] = set()
        self._lock = threading.Lock()
        self._current: Version | None = None
        self.refused: dict[str, str] = {}
        self.refresh()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if watch:
            self._thread = threading.Thread(target=self._watch, name="hpcdist-serving", daemon=True)
            self._thread.start()

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def current(self) -> Version:
        """The version that is served now; look-ups in it stay of one version.

        PublicationError after `close`.
        """
        version = self._current
        if version is None:
            raise PublicationError(f"{self._directory}: this Lookup was closed")
        return version

    @property
    def version(self) -> int:
        """The number of the version that is served now."""
        return self.current.number

    def pull(self, table: str, ids: Any, *, missing: str = INITIAL) -> Rows:
        """Return the rows of ids, float32 [*ids.shape, width], a copy, all of one version.

        ids: integers of any shape. Ids without a row have, by ``missing``: their "initial" values,
        as in training, "zeros", or are an "error". TableError for other ids or tables.
        """
        return self.current.pull(table, ids, missing=missing)

    def refresh(self) -> bool:
        """Look for a newer version now, and take it; return whether there was one.

        PublicationError if there is none at all.
        """
        with self._lock:
            before = self._current
            while (chain := self._newest()) is not None:
                if before is not None and chain.version <= before.number:
                    return False
                try:
                    self._current = load(self._directory, chain, before)
                except PublicationError as error:
                    self._refuse(chain, str(error))
                else:
                    return True
            if before is None:
                reasons = "; ".join(sorted(self.refused.values())) or "it has no members"
                raise PublicationError(
                    f"{self._directory}: there is no version that is complete: {reasons}"
                )
            return False

    def close(self) -> None:
        """Watch no more, and let go of the files. Harmless if it is closed."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._current = None

    # -- inside --

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self.refresh()
            except Exception:
                logger.exception("%s: cannot be looked at; serving goes on", self._directory)

    def _newest(self) -> MemberChain | None:
        """Return the newest chain of members that are not refused; note and tell who is."""
        stamps = _stamps(self._directory)
        refused = {}
        for name in self._members.keys() - stamps.keys():
            del self._members[name]
        for name, stamp in stamps.items():
            if name in self._members and self._members[name][0] == stamp:
                continue
            self._members.pop(name, None)
            try:
                self._members[name] = stamp, read_member(self._directory / name)
            except PublicationError as error:
                refused[name] = str(error)
        good = {
            name: member
            for name, (stamp, member) in self._members.items()
            if self._bad.get(name) != stamp
        }
        served = self._current.chain.last.publication if self._current else None
        chain, why = resolve(good, served or read_publication(self._directory))
        bad = {n: w for n, w in self.refused.items() if self._bad.get(n) == stamps.get(n, ())}
        self.refused = {**bad, **refused, **why}
        for name in {**refused, **why}:
            self._tell(name, stamps[name])
        return chain

    def _refuse(self, chain: MemberChain, why: str) -> None:
        """Refuse the member of a chain whose files are damaged."""
        stamps = _stamps(self._directory)
        culprit = next((m.name for m in chain.members if m.name in why), chain.last.name)
        stamp = stamps.get(culprit, (0, 0, 0))
        self._bad[culprit] = stamp
        self.refused[culprit] = why
        self._tell(culprit, stamp)

    def _tell(self, name: str, stamp: Stamp) -> None:
        if (name, stamp) not in self._told:
            self._told.add((name, stamp))
            logger.warning("%s: refused: %s", self._directory, self.refused[name])


def _stamps(directory: Path) -> dict[str, Stamp]:
    """Return the manifests in a directory; PublicationError if it cannot be listed."""
    found = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if NAME.fullmatch(entry.name):
                    facts = entry.stat(follow_symlinks=False)
                    found[entry.name] = facts.st_mtime_ns, facts.st_size, facts.st_ino
    except FileNotFoundError:
        raise PublicationError(f"{directory}: there is no such directory") from None
    except OSError as error:
        raise PublicationError(f"{directory}: cannot be read: {error.strerror}") from None
    return found
