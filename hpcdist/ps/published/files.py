"""Files of a publication: manifests and rows, read with all checks, written whole."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from hpcdist.base.errors import PublicationError
from hpcdist.base.replaced import in_place_of, write_whole
from hpcdist.ps.published import packing
from hpcdist.ps.published.members import (
    MAX_MANIFEST,
    DenseFile,
    Member,
    RowsFile,
    RowsInput,
    TableKind,
    TableSection,
    parse,
)
from hpcdist.ps.published.sorted_rows import Keys, Layer, Rows

PUBLICATION = "publication"  # the file that names the publication of a directory
MAX_NAME = 32
CHUNK = 4 << 20  # bytes that are written, or compared with a checksum, at once


@dataclass(frozen=True)
class TableRows:
    """What a file shall hold of a table: keys in ascending order, their rows, keys of deleted rows.

    ``rows_at(begin, end)`` returns rows, float32 [end - begin, width] or as they are kept: they may
    be made while written.
    """

    keys: Keys
    rows_at: Callable[[int, int], Rows]
    deleted: Keys


def write_rows(
    path: Path,
    tables: Mapping[str, TableRows],
    sizes: Mapping[str, int],
    *,
    packed: bool = False,
) -> RowsFile:
    """Write a file of rows; return what its member says of it. OSError if it cannot be written.

    ``sizes``: the bytes of a row of each table. Increments are ``packed``.
    """
    sections: dict[str, TableSection] = {}
    digest, offset = xxhash.xxh3_128(), 0
    with in_place_of(path) as descriptor, open(descriptor, "wb", closefd=False) as file:

        def put(data: memoryview | bytes) -> int:
            digest.update(data)
            return file.write(data)

        for name, table in tables.items():
            size, section = sizes[name], TableSection(len(table.keys), len(table.deleted), offset)
            if packed:
                like = _like(table, sections, tables)
                size_packed = sum(map(put, _packed(table, like)))
                section = replace(section, like=like, packed=size_packed, by_id=size_packed > 0)
            else:
                put(np.ascontiguousarray(table.keys).data.cast("B"))
                for rows in _blocks(table, max(1, CHUNK // size)):
                    put(np.ascontiguousarray(rows).data.cast("B"))
                put(np.ascontiguousarray(table.deleted).data.cast("B"))
            sections[name], end = section, section.end(size)
            put(bytes(-end % 8))
            offset = end + -end % 8
    return RowsFile(path.name, offset, digest.hexdigest(), sections)


def _blocks(table: TableRows, step: int) -> Iterator[Rows]:
    for begin in range(0, len(table.keys), step):
        yield table.rows_at(begin, min(begin + step, len(table.keys)))


def _like(
    table: TableRows, sections: Mapping[str, TableSection], tables: Mapping[str, TableRows]
) -> str:
    """Return an earlier table that has rows of the same ids, as wide and deep ones do, or ""."""
    for name, section in sections.items():
        if not section.like and len(table.keys) and np.array_equal(tables[name].keys, table.keys):
            return name
    return ""


def _packed(table: TableRows, like: str) -> Iterator[bytes]:
    ids, order = packing.by_id(table.keys)
    if not like:
        yield from packing.packed_ids(ids)
    if len(ids):
        rows = np.concatenate([*_blocks(table, packing.BLOCK)])
        for begin in range(0, len(ids), packing.BLOCK):
            yield from packing.packed_rows(rows[order[begin : begin + packing.BLOCK]])
    yield from packing.packed_ids(packing.by_id(table.deleted)[0])


def write_dense(
    path: Path, model: bytes, inputs: Sequence[str], rows: Mapping[str, RowsInput]
) -> DenseFile:
    """Write a dense part; return what its member says of it. OSError if it cannot be written."""
    write_whole(path, model, durable=True)
    digest = xxhash.xxh3_128_hexdigest(model)
    return DenseFile(path.name, len(model), digest, tuple(inputs), rows)


def read_dense(directory: Path, member: Member) -> bytes | None:
    """Read a member's dense part, None if it has none; PublicationError if it is damaged."""
    if member.dense is None:
        return None
    return bytes(_mapped(directory / member.dense.file, member.dense, member.name))


def write_member(directory: Path, member: Member, *, founds: bool = False) -> None:
    """Write a manifest: from then on the member is published.

    With ``founds``, or where nothing says so yet, its publication is that of the directory.
    """
    if founds or read_publication(directory) is None:
        write_whole(directory / PUBLICATION, member.publication, durable=True)
    write_whole(directory / member.name, member.encode(), durable=True)


def read_publication(directory: Path) -> str | None:
    """Return the publication that a directory is of; None if nothing says so, or it is damaged."""
    try:
        with open(_plain(directory / PUBLICATION), "rb") as file:
            name = file.read(MAX_NAME + 1).decode("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    return name if re.fullmatch(r"[0-9a-f]{32}", name) else None


def read_member(path: Path) -> Member:
    """Read a manifest; PublicationError if it is damaged, or cannot be read."""
    try:
        with open(_plain(path), "rb") as file:
            data = file.read(MAX_MANIFEST + 1)
    except OSError as error:
        raise PublicationError(f"{path.name}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_MANIFEST:
        raise PublicationError(f"{path.name}: is larger than a manifest may be")
    return parse(path.name, data)


def open_layers(directory: Path, member: Member) -> dict[str, list[Layer]]:
    """Map a member's files; return each table's layers: rows by owner, then what is deleted.

    PublicationError, which names the file, if one is missing, torn, damaged or out of order.
    """
    found: dict[str, list[Layer]] = {name: [] for name in member.tables}
    for file in member.files:
        memory = _mapped(directory / file.file, file, member.name)
        try:
            for name, kind in member.tables.items():
                found[name] += _layers(memory, file.tables, name, kind)
        except ValueError as error:
            raise PublicationError(f"{file.file} of {member.name}: {error}") from None
    return found


def _layers(
    memory: bytes | mmap.mmap, sections: Mapping[str, TableSection], name: str, kind: TableKind
) -> list[Layer]:
    layers, section = [], sections[name]
    if section.packed:
        packed = _unpack(memory, section)
        of_keys = _unpack(memory, sections[section.like]) if section.like else packed
        return _unpacked(packed, *of_keys.keys(section.rows), section, kind)
    offset = section.offset + 8 * section.rows
    if section.rows:
        keys = np.frombuffer(memory, np.uint64, section.rows, section.offset)
        like = kind.space(0)
        elements = np.frombuffer(memory, like.dtype, section.rows * like.shape[1], offset)
        layers.append(Layer(keys, elements.reshape(section.rows, like.shape[1])))
    if section.deleted:
        offset += section.rows * kind.row_bytes
        gone = np.frombuffer(bytes(memory[offset : offset + 8 * section.deleted]), np.uint64)
        layers.append(_gone(gone, kind))
    return layers


def _unpack(memory: bytes | mmap.mmap, section: TableSection) -> packing.Unpacked:
    begin = section.offset
    data = memoryview(memory)[begin : begin + section.packed]
    return packing.Unpacked(data, by_id=section.by_id)


def _unpacked(
    unpacked: packing.Unpacked,
    keys: Keys,
    order: np.ndarray,
    section: TableSection,
    kind: TableKind,
) -> list[Layer]:
    """Return a packed section's layers, in memory; ``keys``, whose rows stand in ``order``."""
    rows = kind.space(section.rows)
    unpacked.rows(rows)
    gone, _ = unpacked.keys(section.deleted)
    unpacked.end()
    layers = [Layer(keys, rows[order])] if len(keys) else []
    return [*layers, _gone(gone, kind)] if len(gone) else layers


def _gone(keys: Keys, kind: TableKind) -> Layer:
    """Return the layer of deleted rows."""
    return Layer(keys, np.zeros_like(kind.space(len(keys))), np.ones(len(keys), bool))


def _mapped(path: Path, expected: RowsFile | DenseFile, member: str) -> bytes | mmap.mmap:
    """Map a file and compare it with its checksum."""
    try:
        descriptor = _plain(path)
    except FileNotFoundError:
        raise PublicationError(f"{member}: its file {path.name} is missing") from None
    except OSError as error:
        raise PublicationError(
            f"{member}: its file {path.name} cannot be read: {error.strerror}"
        ) from None
    try:
        size = os.fstat(descriptor).st_size
        if size != expected.bytes:
            raise PublicationError(
                f"{member}: its file {path.name} is torn: it has {size} bytes, expected "
                f"{expected.bytes}"
            )
        memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if size else b""
    finally:
        os.close(descriptor)
    digest = xxhash.xxh3_128()
    view = memoryview(memory)
    for begin in range(0, size, CHUNK):
        digest.update(view[begin : begin + CHUNK])
    if digest.hexdigest() != expected.digest:
        raise PublicationError(f"{member}: its file {path.name} is damaged (its checksum differs)")
    return memory


def _plain(path: Path) -> int:
    """Open a file that is neither a link nor a pipe; return its descriptor."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file")
    return descriptor
