"""Members of a publication: a base, or the increment since the member before. Facts only; pure.

A member is a manifest (JSON) that names files of rows with their checksums, and the digest of the
member before it. So nothing can be missing, repeated, exchanged or changed without being noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hpcdist.base.errors import PublicationError, TableError
from hpcdist.base.plain_data import typed
from hpcdist.ps.published import packing

FORMAT, PACKED, BY_ID = 1, 2, 3  # of manifests; with packed sections; with those in order of ids
BASE, DELTA = "base", "delta"
NAME = re.compile(r"(\d{9})\.(base|delta)\.json")
FILE = re.compile(r"\d{9}\.[0-9a-f]{1,32}\.(\d+-of-\d+\.rows|onnx)")
MAX_MANIFEST = 64 << 20  # bytes
MAX_WIDTH = 1 << 24


@dataclass(frozen=True)
class TableKind:
    """What rows of a table are: their width, and their values before anybody moved them.

    In ``initializer`` are also the ``storage`` of rows that training does not keep in float32, and
    the ``row_bytes`` of those that are published as they are kept.
    """

    width: int
    seed: int
    initializer: Mapping[str, Any]

    @property
    def storage(self) -> Any:
        """The `hpcdist.ps.row_storage.RowStorage` of rows as they are published; None: float32."""
        if "row_bytes" not in self.initializer:
            return None
        from hpcdist.ps.row_storage import RowStorage

        return RowStorage.from_plain(self.initializer["storage"])

    @property
    def row_bytes(self) -> int:
        """The bytes of a row in a file."""
        return int(self.initializer.get("row_bytes", 4 * self.width))

    def space(self, count: int) -> NDArray[Any]:
        """Return an array for so many rows as they are published."""
        if "row_bytes" in self.initializer:
            return np.empty((count, self.row_bytes), np.uint8)
        return np.empty((count, self.width), np.float32)


@dataclass(frozen=True)
class TableSection:
    """A table's rows in a file: ``rows`` keys and rows, then ``deleted`` keys, from ``offset``.

    ``packed``: the bytes that they take, if they are packed as `packing` says, then mostly in order
    of ids (``by_id``); ``like``: the table in the same file whose keys of rows are these, too,
    which are not written again.
    """

    rows: int
    deleted: int
    offset: int
    packed: int = 0
    like: str = ""
    by_id: bool = False

    def end(self, row_bytes: int) -> int:
        """Return the byte behind the section."""
        return self.offset + (self.packed or self.plain_bytes(row_bytes))

    def plain_bytes(self, row_bytes: int) -> int:
        """Return the bytes of all keys and rows as they are in memory."""
        return self.rows * (8 + row_bytes) + 8 * self.deleted

    @property
    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""
        rare = ("packed", "like", "by_id")
        return {name: value for name, value in vars(self).items() if name not in rare or value}


@dataclass(frozen=True)
class RowsFile:
    """A file of rows of one owner: its name, bytes, checksum, and a section for each table."""

    file: str
    bytes: int
    digest: str
    tables: Mapping[str, TableSection]


@dataclass(frozen=True)
class RowsInput:
    """An input of a dense part: rows of ``table`` by the ids that ``ids`` names.

    Where an id is ``padding`` they are zeros. ``last_is_one``: ids [..., 1] give rows [..., width].
    """

    table: str
    ids: str
    padding: int | None = None
    last_is_one: bool = False


@dataclass(frozen=True)
class DenseFile:
    """The file of a version's dense part, in ONNX: its inputs, and which are rows of tables."""

    file: str
    bytes: int
    digest: str
    inputs: tuple[str, ...]
    rows: Mapping[str, RowsInput]


@dataclass(frozen=True)
class Member:
    """One version's manifest.

    ``publication`` is the same for all members that belong together. ``previous`` is the `link` of
    the member before. A base that stands for a chain of increments has the last one's ``link``.
    """

    sequence: int
    kind: str
    publication: str
    previous: str
    step: int
    tables: Mapping[str, TableKind]
    files: tuple[RowsFile, ...]
    link: str = ""  # of a compacted base; else the member's own digest
    dense: DenseFile | None = None

    @property
    def name(self) -> str:
        """The name of the manifest."""
        return member_name(self.sequence, self.kind)

    def rows(self, table: str) -> int:
        """Return how many rows of a table this member holds."""
        return sum(file.tables[table].rows for file in self.files)

    def deleted(self, table: str) -> int:
        """Return how many rows of a table this member deletes."""
        return sum(file.tables[table].deleted for file in self.files)

    @property
    def nbytes(self) -> int:
        """The bytes of its files."""
        return sum(file.bytes for file in self.all_files)

    @property
    def all_files(self) -> tuple[RowsFile | DenseFile, ...]:
        """All files that it names."""
        return self.files if self.dense is None else (*self.files, self.dense)

    @cached_property
    def chained(self) -> str:
        """What the next member must name as ``previous``; many are compared at each look."""
        return self.link or _digest(self._facts)

    def encode(self) -> bytes:
        """Return the manifest's bytes, with their digest."""
        return _canonical({**self._facts, "digest": _digest(self._facts)})

    @cached_property
    def _facts(self) -> dict[str, Any]:
        sections = [section for file in self.files for section in file.tables.values()]
        packed = PACKED if any(section.packed for section in sections) else FORMAT
        by_id = any(section.by_id for section in sections)
        facts = {"format": BY_ID if by_id else packed, **asdict(self)}
        for plain, file in zip(facts["files"], self.files):
            plain["tables"] = {name: section.facts for name, section in file.tables.items()}
        return {name: fact for name, fact in facts.items() if name != "dense" or fact}


def member_name(sequence: int, kind: str) -> str:
    """Return the name of a manifest."""
    return f"{sequence:09d}.{kind}.json"


def link_of(member: Member) -> str:
    """Return the text that the next member must name as ``previous``."""
    return member.chained


def parse(name: str, data: bytes) -> Member:
    """Return the member whose manifest these bytes are; PublicationError, by name, if none."""
    try:
        plain = json.loads(data)
        if not isinstance(plain, dict):
            raise ValueError("it is no object")
        digest = plain.pop("digest", None)
        if plain.get("format") not in (FORMAT, PACKED, BY_ID):
            raise PublicationError(
                f"{name}: format {plain.get('format')!r}, this release reads {FORMAT} to {BY_ID}"
            )
        if digest != _digest(plain):
            raise ValueError("its digest differs")
        plain.pop("format")
        member: Member = typed(Member, plain)
        _check(member)
    except (ValueError, KeyError, RecursionError) as error:
        raise PublicationError(f"{name}: is damaged or torn ({error})") from None
    if member.name != name:
        raise PublicationError(
            f"{name}: holds {member.name}: it is repeated, or members have been exchanged"
        )
    return member


def _check(member: Member) -> None:
    """Raise ValueError for facts that contradict each other; they may be anybody's."""
    if member.kind not in (BASE, DELTA):
        raise ValueError(f"kind {member.kind!r:.80}")
    for name, kind in member.tables.items():
        if not 0 < kind.width < MAX_WIDTH:
            raise ValueError(f"table {name!r:.80} has width {kind.width}")
        try:
            wrong = kind.storage and kind.storage.row_bytes(kind.width) != kind.row_bytes
        except (TableError, TypeError) as error:
            raise ValueError(f"table {name!r:.80}: {error}") from None
        if wrong:
            raise ValueError(f"table {name!r:.80} has rows of {kind.row_bytes} bytes")
    for named in member.all_files:
        if not FILE.fullmatch(named.file):
            raise ValueError(f"file {named.file!r:.80}")
    for file in member.files:
        if file.tables.keys() != member.tables.keys():
            raise ValueError(f"{file.file} has other tables")
        for name, section in file.tables.items():
            row_bytes = member.tables[name].row_bytes
            most = packing.MOST * section.packed or file.bytes
            fits = section.plain_bytes(row_bytes) <= most
            if section.like:
                like = file.tables.get(section.like)
                fits &= like is not None and like.rows == section.rows
                fits &= like is not None and bool(like.packed) and not like.like
            if section.offset % 8 or section.end(row_bytes) > file.bytes or not fits:
                raise ValueError(f"{file.file} has no room for its rows of table {name!r:.80}")


def _digest(facts: Mapping[str, Any]) -> str:
    return str(xxhash.xxh3_128_hexdigest(_canonical(facts)))


def _canonical(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()


# -- chains ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MemberChain:
    """A base and the increments that follow it, in order; its last member is the version."""

    members: tuple[Member, ...]

    @property
    def last(self) -> Member:
        """The newest member."""
        return self.members[-1]

    @property
    def version(self) -> int:
        """The number of the version."""
        return self.last.sequence


def resolve(
    members: Mapping[str, Member], publication: str | None = None
) -> tuple[MemberChain | None, dict[str, str]]:
    """Return the newest complete chain of the members, and why others are refused, by name.

    Those of another ``publication`` are foreign; None, or one that no member has: than that of most
    members. Members that the chain makes superfluous are neither.
    """
    best: MemberChain | None = None
    refused: dict[str, str] = {}
    if publication not in {member.publication for member in members.values()}:
        publication = _newest_publication(members)
    own = {name: m for name, m in members.items() if m.publication == publication}
    for name in members.keys() - own.keys():
        refused[name] = f"{name}: is foreign: it belongs to another publication"
    bases = sorted((m for m in own.values() if m.kind == BASE), key=lambda m: m.sequence)
    deltas = {m.sequence: m for m in own.values() if m.kind == DELTA}
    for base in bases:
        chain, why = _followed(base, deltas)
        refused |= why
        if best is None or chain.version >= best.version:
            best = chain
    reached = best.version if best else -1
    for delta in sorted(deltas.values(), key=lambda m: m.sequence):
        if delta.sequence > reached and delta.name not in refused:
            refused[delta.name] = (
                f"{delta.name}: the member before it, {delta.sequence - 1:09d}, is missing or "
                "refused"
            )
    old = {name for name, m in own.items() if m.sequence <= reached}
    return best, {name: why for name, why in refused.items() if name not in old}


def _newest_publication(members: Mapping[str, Member]) -> str | None:
    """Return the publication of most members; of several that of the newest base."""
    counts: dict[str, tuple[int, int]] = {}
    for member in members.values():
        count, newest = counts.get(member.publication, (0, -1))
        newest = max(newest, member.sequence if member.kind == BASE else -1)
        counts[member.publication] = count + 1, newest
    return max(counts, key=lambda p: (*counts[p], p), default=None)


def _followed(base: Member, deltas: Mapping[int, Member]) -> tuple[MemberChain, dict[str, str]]:
    """Return the chain from a base on, and why the member at its end does not follow, if one is."""
    members = [base]
    while (following := deltas.get(members[-1].sequence + 1)) is not None:
        before = members[-1]
        if following.previous != link_of(before):
            why = f"does not follow {before.name}: it is foreign, or members have been exchanged"
        elif following.tables != base.tables:
            why = f"has other tables than {base.name}"
        else:
            members.append(following)
            continue
        return MemberChain(tuple(members)), {following.name: f"{following.name}: {why}"}
    return MemberChain(tuple(members)), {}
