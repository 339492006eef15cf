"""Compaction: one base in place of a base and its increments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcdist.base.errors import PublicationError
from hpcdist.ps.published.files import TableRows, read_member, write_member, write_rows
from hpcdist.ps.published.lookup import Lookup
from hpcdist.ps.published.members import BASE, FILE, NAME, Member, link_of
from hpcdist.ps.published.sorted_rows import Ids, Kept, mixes_of
from hpcdist.ps.published.version import PublishedTable

LEFT = re.compile(r"\.(facts|failed)$")  # what owners say of their rows, until all are there


def compact(dirname: str | Path, *, keep: bool = False) -> Path:
    """Write the newest complete version as one base; return the path of its manifest.

    Increments that are published later follow it. Members that it makes superfluous are deleted,
    unless ``keep``: readers that have mapped them go on. The same chain gives the same bytes.
    PublicationError if there is no complete version, OSError if the base cannot be written.

    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> table = hpcdist.ps.connect("users", 2, publish=directory, publish_every=1)
    >>> for step in range(2):
    ...     table.push([3, 5 + step], np.ones((2, 2), np.float32)).wait()
    >>> table.close()
    >>> path = hpcdist.serving.compact(directory)
    >>> with hpcdist.serving.Lookup(directory) as lookup:
    ...     lookup.pull("users", [3, 5, 6]).shape
    (3, 2)
    """
    with Lookup(dirname, watch=False) as lookup:
        directory = Path(dirname)
        version = lookup.current
        chain, last = version.chain, version.chain.last
        if len(chain.members) == 1:
            return directory / last.name
        rows = {name: _rows_of(version.table(name)) for name in version.tables}
        name = f"{last.sequence:09d}.{link_of(last)}.0-of-1.rows"
        sizes = {name: kind.row_bytes for name, kind in last.tables.items()}
        file = write_rows(directory / name, rows, sizes)
        base = replace(last, kind=BASE, files=(file,), link=link_of(last))
        write_member(directory, base, founds=True)
    if not keep:
        drop_before(directory, base)
    return directory / base.name


def _rows_of(table: PublishedTable) -> TableRows:
    ids: Ids = table.ids()

    def rows_at(begin: int, end: int) -> Kept:
        return table.kept(ids[begin:end])[0]

    return TableRows(mixes_of(ids), rows_at, np.empty(0, np.uint64))


def drop_before(directory: Path, base: Member) -> None:
    """Delete members that a base makes superfluous, and files that no member names any more.

    Manifests go first: whoever sees one finds its files, or does not see it.
    """
    for path in sorted(directory.iterdir()):
        match = NAME.fullmatch(path.name)
        if match and int(match[1]) <= base.sequence and path.name != base.name:
            path.unlink(missing_ok=True)
    drop_unnamed(directory, base.sequence)


def drop_unnamed(directory: Path, up_to: int) -> None:
    """Delete files of rows, of members up to a number, that no manifest names."""
    paths = [(LEFT.sub("", path.name), path) for path in directory.iterdir()]
    named = set(_named(directory))
    for name, path in paths:
        unnamed = name != path.name or name not in named
        if FILE.fullmatch(name) and unnamed and int(name[:9]) <= up_to:
            path.unlink(missing_ok=True)


def _named(directory: Path) -> Iterable[str]:
    for path in directory.iterdir():
        if NAME.fullmatch(path.name):
            try:
                yield from (file.file for file in read_member(path).all_files)
            except PublicationError:  # it names nothing that could be read
                continue
