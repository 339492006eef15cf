"""Publications made by hand, with what each version holds, for tests of readers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hpcdist.serving.files import TableRows, write_member, write_rows
from hpcdist.serving.members import BASE, DELTA, Member, TableKind, link_of
from hpcdist.serving.sorted_rows import mixes_of

WIDTH = 3
KIND = TableKind(WIDTH, 7, {"kind": "constant", "a": 0.5, "b": 1.0})
Rows = dict[int, np.ndarray]


def table_rows(rows: Rows, deleted: set[int]) -> TableRows:
    """Return rows by id as a file has them."""
    ids = np.array(sorted(rows), np.int64)
    ids = ids[np.argsort(mixes_of(ids))]
    values = np.array([rows[int(i)] for i in ids], np.float32).reshape(len(ids), WIDTH)
    gone = np.sort(mixes_of(np.array(sorted(deleted), np.int64)))
    return TableRows(mixes_of(ids), lambda begin, end: values[begin:end], gone)


@dataclass
class Publication:
    """A directory that versions of table ``t`` are published to, by hand."""

    directory: Path
    owners: int = 1
    publication: str = field(default_factory=lambda: secrets.token_hex(16))
    versions: list[Rows] = field(default_factory=list)  # what each holds, from number 1 on
    previous: str = ""

    def publish(self, changed: Rows, deleted: set[int] = frozenset(), *, base=False) -> Member:
        """Publish the next version."""
        before = self.versions[-1] if self.versions else {}
        now = {i: row for i, row in {**before, **changed}.items() if i not in deleted}
        number = len(self.versions) + 1
        written, gone = (now, set()) if base else (changed, set(deleted))
        files, attempt = [], secrets.token_hex(4)
        for k in range(self.owners):
            name = f"{number:09d}.{attempt}.{k}-of-{self.owners}.rows"
            part = table_rows(
                {i: row for i, row in written.items() if self._owner(i) == k},
                {i for i in gone if self._owner(i) == k},
            )
            packed = not base and number % 3 > 0  # as it was done before, too
            files.append(
                write_rows(self.directory / name, {"t": part}, {"t": 4 * WIDTH}, packed=packed)
            )
        kind = BASE if base else DELTA
        member = Member(
            number, kind, self.publication, self.previous, number, {"t": KIND}, tuple(files)
        )
        write_member(self.directory, member)
        self.versions.append(now)
        self.previous = link_of(member)
        return member

    def _owner(self, id: int) -> int:
        mix = int(mixes_of(np.array([id], np.int64))[0])
        return (mix >> 32) * self.owners >> 32

    def expected(self, number: int, ids: list[int]) -> np.ndarray:
        """Return the rows of ids in a version."""
        first = np.full(WIDTH, 0.5, np.float32)
        rows = self.versions[number - 1]
        return np.array([rows.get(i, first) for i in ids], np.float32)


def random_publication(directory: Path, draw: np.random.RandomState, versions: int) -> Publication:
    """Publish some versions with random changes and deletions, and bases between them."""
    made = Publication(directory, owners=draw.randint(1, 4))
    for number in range(versions):
        ids = draw.randint(-20, 20, draw.randint(0, 12))
        gone = set(draw.randint(-20, 20, draw.randint(0, 4)).tolist())
        changed = {int(i): draw.rand(WIDTH).astype(np.float32) for i in ids if int(i) not in gone}
        made.publish(changed, gone, base=not number or draw.rand() < 0.2)
    return made
