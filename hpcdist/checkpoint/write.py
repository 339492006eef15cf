"""Writing one file of a checkpoint: chunks with checksums, then the facts, then the head."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import tee
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from hpcdist.checkpoint.facts import Part, PartFile, Stored, to_json
from hpcdist.checkpoint.layout import FACTS, HEAD_BYTES, Head, corner, cut, digest
from hpcdist.checkpoint.pipeline import Sealer, WriteBack
from hpcdist.errors import CheckpointError

TEMPORARY = ".tmp"  # behind the name of a file that is not whole yet
FILTERS = ("lz4", "zstd")


@dataclass(frozen=True)
class Entry:
    """An array to be written as the dataset ``path``, with attributes for people and tools."""

    path: str
    array: Any  # contiguous, in host memory, of at least one dimension
    attrs: Mapping[str, Any]


def write_part(
    path: Path, finished: Callable[[], Part], entries: Iterable[Entry], compression: str | None
) -> PartFile:
    """Write a part under ``path``, which comes into being whole and on disk, or not at all.

    ``finished`` is asked what the part holds when all ``entries`` have been written.
    """
    with new_file(path) as (temporary, file):
        stored = _write_all(file, temporary, entries, compression)
        part = finished()
        attrs = {"writer": part.writer, "step": part.step, "program": part.program}
        facts = to_json(replace(part, stored=stored))
        offset = add_facts(file, facts, {"content": "part of a checkpoint", **attrs})
        file.close()
        extents = [e for s in stored.values() for e in zip(s.offsets, s.sizes)]
        head = finish(temporary, facts, offset, extents)
    return PartFile(path.name, head.file_bytes, head.facts)


@contextmanager
def new_file(path: Path) -> Iterator[tuple[Path, Any]]:
    """Give (temporary path, HDF5 file open for writing); name it ``path`` when all went well."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        file = h5py.File(temporary, "w", libver="v110", userblock_size=HEAD_BYTES)
        try:
            yield temporary, file
        finally:
            file.close()
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replaced(path: Path) -> Iterator[Any]:
    """Give a file to write bytes to, which becomes ``path`` when it is whole and on disk."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def add_facts(file: Any, facts: bytes, attrs: Mapping[str, Any]) -> int:
    """Add the facts as a dataset, and attributes of the whole file; return where they lie."""
    data = np.array(facts, h5py.string_dtype("utf-8", len(facts)))
    dataset = file.create_dataset(FACTS, data=data)
    file.attrs.update(attrs)
    file.flush()
    return int(dataset.id.get_offset())


def finish(temporary: Path, facts: bytes, offset: int, extents: Sequence[tuple[int, int]]) -> Head:
    """Write the head of a file that HDF5 has closed, and bring the file to disk.

    ``extents`` are (offset, bytes) of the chunks whose checksums the facts hold.
    """
    with open(temporary, "r+b") as raw:
        size = os.fstat(raw.fileno()).st_size
        rest = rest_of(raw.fileno(), size, extents)
        head = Head(offset, len(facts), digest(facts), size, rest)
        os.pwrite(raw.fileno(), head.encode(), 0)
        os.fsync(raw.fileno())
    return head


def rest_of(descriptor: int, size: int, extents: Sequence[tuple[int, int]]) -> str:
    """Return the checksum of what lies behind the head and outside of ``extents``."""
    state = xxhash.xxh3_128()
    position = HEAD_BYTES
    for offset, length in [*sorted(extents), (size, 0)]:
        while position < offset:
            data = os.pread(descriptor, min(offset - position, 1 << 24), position)
            if not data:
                raise CheckpointError(f"the file ends at byte {position}, expected {size} bytes")
            state.update(data)
            position += len(data)
        position = max(position, offset + length)
    return str(state.hexdigest())


def sync_directory(directory: Path) -> None:
    """Bring names in a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- arrays ----------------------------------------------------------------------------------------
def _write_all(
    file: Any, path: Path, entries: Iterable[Entry], compression: str | None
) -> dict[str, Stored]:
    with WriteBack(path) as disk:
        if compression:
            return {e.path: _write(file, e, compression, disk, None) for e in entries}
        entries, ahead = tee(entries)
        with Sealer(chunk for entry in ahead for chunk in _chunks(entry.array)) as sealer:
            return {e.path: _write(file, e, None, disk, sealer) for e in entries}


def _chunks(array: Any) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the bytes of each chunk, and how many it has in the file: padding and checksum too."""
    itemsize = array.itemsize
    found = cut(array.shape, itemsize)
    raw = array.reshape(-1).view(np.uint8)
    for first, count in found.pieces(array.size):
        yield raw[first * itemsize : (first + count) * itemsize], found.size * itemsize + 4


def _write(
    file: Any, entry: Entry, compression: str | None, disk: WriteBack, sealer: Sealer | None
) -> Stored:
    array = entry.array
    found = cut(array.shape, array.itemsize)
    if not array.size:
        file.create_dataset(entry.path, shape=array.shape, dtype=array.dtype)
        file[entry.path].attrs.update(entry.attrs)
        return Stored(array.shape, array.dtype.name, found.shape, found.axis, False, (), (), ())
    filters = _filters(compression) if compression else {}
    dataset = file.create_dataset(
        entry.path,
        shape=array.shape,
        dtype=array.dtype,
        chunks=found.shape,
        fletcher32=True,
        fillvalue=None,
        **filters,
    )
    dataset.attrs.update(entry.attrs)
    corners = [corner(array.shape, first) for first, _ in found.pieces(array.size)]
    sums = []
    if sealer is None:
        dataset[...] = array
        file.flush()
        for at in corners:
            _, packed = dataset.id.read_direct_chunk(at)
            sums.append(xxhash.xxh3_64_hexdigest(packed))
            disk.wrote(len(packed))
    else:
        for at in corners:
            # As HDF5's filter would make it, which would take longer.
            chunk, checksum = sealer.next()
            dataset.id.write_direct_chunk(at, chunk)
            sums.append(checksum)
            disk.wrote(len(chunk))
    places = _places(dataset, corners)
    return Stored(
        array.shape,
        array.dtype.name,
        found.shape,
        found.axis,
        bool(compression),
        tuple(offset for offset, _ in places),
        tuple(size for _, size in places),
        tuple(sums),
    )


def _places(dataset: Any, corners: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return (offset in the file, bytes) of the chunks at ``corners``."""
    found = {}
    # Before 1.14.4 HDF5 counts from behind the user block.
    begin = HEAD_BYTES if h5py.version.hdf5_version_tuple < (1, 14, 4) else 0

    def note(chunk: Any) -> None:
        found[chunk.chunk_offset] = begin + int(chunk.byte_offset), int(chunk.size)

    if hasattr(dataset.id, "chunk_iter"):  # HDF5 looks for a single one among all of them
        dataset.id.chunk_iter(note)
    else:  # not before 1.10.10
        for at in corners:
            note(dataset.id.get_chunk_info_by_coord(at))
    return [found[at] for at in corners]


def _filters(compression: str) -> dict[str, Any]:
    if compression not in FILTERS:
        raise CheckpointError(
            f"compression: expected one of {', '.join(FILTERS)} or None, got {compression!r}"
        )
    plugin = filter_plugin()
    return dict(plugin.LZ4() if compression == "lz4" else plugin.Zstd(clevel=3))


def filter_plugin() -> Any:
    """Return hdf5plugin, which brings HDF5 the filters of compressed checkpoints."""
    try:
        import hdf5plugin
    except ImportError:
        raise CheckpointError(
            "a compressed checkpoint needs hdf5plugin: pip install hpcdist[compression]"
        ) from None
    return hdf5plugin
