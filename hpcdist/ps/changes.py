"""Which rows of a table were changed or deleted since they were last published."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcdist.comm.base import Array

MOST = 1 << 16  # ids that are noted before repeats are looked for


@dataclass(frozen=True)
class Changed:
    """Ids, none twice: of rows to publish anew, and of rows that are gone. ``whole``: all rows."""

    touched: Array
    deleted: Array
    whole: bool = False


class Changes:
    """The changes of a table since the last `take`. At first everything has changed.

    A table calls this for what it does; memory follows the number of different ids.
    """

    def __init__(self) -> None:
        self.whole = True
        self._log: list[tuple[Array, bool]] = []  # ids, and whether they are gone
        self._noted, self._room = 0, MOST

    def touch(self, ids: Array) -> None:
        """Note rows that have other values now."""
        self._note(ids, gone=False)

    def drop(self, ids: Array) -> None:
        """Note rows that were deleted."""
        self._note(ids, gone=True)

    def all(self) -> None:
        """Note that any row may be another: the next publication has all of them."""
        self.whole = True
        self._log.clear()
        self._noted = 0

    def take(self) -> Changed:
        """Return the changes, and begin anew."""
        touched, deleted = self._summed()
        changed = Changed(touched, deleted, self.whole)
        self.all()
        self.whole = False
        return changed

    def put_back(self, changed: Changed) -> None:
        """Take back what was not published after all; changes noted meanwhile are later ones."""
        if changed.whole:
            self.all()
        if not self.whole:
            self._log[:0] = [(changed.touched, False), (changed.deleted, True)]
            self._noted += len(changed.touched) + len(changed.deleted)

    def _note(self, ids: Array, *, gone: bool) -> None:
        if self.whole or not len(ids):
            return
        self._log.append((np.array(ids, np.int64), gone))
        self._noted += len(ids)
        if self._noted > self._room:
            touched, deleted = self._summed()
            self._log[:] = [(touched, False), (deleted, True)]
            self._noted = len(touched) + len(deleted)
            self._room = max(MOST, 2 * self._noted)

    def _summed(self) -> tuple[Array, Array]:
        """Return the ids of touched and of deleted rows: for each id what came last."""
        if not self._log:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        ids = np.concatenate([ids for ids, _ in reversed(self._log)])
        gone = np.concatenate([np.full(len(i), gone) for i, gone in reversed(self._log)])
        unique, first = np.unique(ids, return_index=True)
        return unique[~gone[first]], unique[gone[first]]
