"""Writing one file of a checkpoint: data with checksums, then the facts, then the head."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from hpcdist.base.errors import CheckpointError
from hpcdist.base.hdf5 import h5py
from hpcdist.base.replaced import in_place_of, make_folders
from hpcdist.checkpoint.background import WriteBack
from hpcdist.checkpoint.compressed import filters
from hpcdist.checkpoint.layout import FACTS, HEAD_BYTES, ChunkCut, Head, corner, cut, digest
from hpcdist.checkpoint.metadata import Part, PartFile, Stored, to_json

ALIGNMENT = 64  # bytes, of where data begins: it may be used where it lies, mapped into memory


@dataclass(frozen=True)
class Entry:
    """An array to be written as the dataset ``path``, with attributes for people and tools."""

    path: str
    array: Any  # contiguous, in host memory, of at least one dimension; or `Made`
    attrs: Mapping[str, Any]


class Made(Protocol):
    """An array that no memory holds whole: it is made, piece by piece, while it is written."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""

    def elements(self, first: int, count: int) -> np.ndarray:
        """Return elements in C order; each piece is asked for once, in order."""


def write_part(
    path: Path, finished: Callable[[], Part], entries: Iterable[Entry], compression: str | None
) -> PartFile:
    """Write a part under ``path``, which appears complete and on disk, or not at all.

    ``finished`` is asked what the part holds when all ``entries`` have been written.
    """
    with new_file(path) as (disk, file):
        with WriteBack(disk.descriptor) as back:
            stored = {e.path: _write(disk, file, e, compression, back) for e in entries}
        part = finished()
        attrs = {"writer": part.writer, "step": part.step, "program": part.program}
        facts = to_json(replace(part, stored=stored))
        offset = add_facts(file, facts, {"content": "part of a checkpoint", **attrs})
        file.close()
        disk.sync()
        extents = [e for s in stored.values() for e in zip(s.offsets, s.sizes)]
        head = finish(disk.descriptor, facts, offset, extents)
    return PartFile(path.name, head.file_bytes, head.facts)


class NewFile:
    """A file that is being written, by HDF5 too, which asks for these methods.

    An error is kept, and from then on nothing is written: HDF5 cannot close a file that cannot be
    written, and would keep it open, and its memory, until the process ends.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.error: OSError | None = None
        self._position = 0

    def check(self) -> None:
        """Raise the first error."""
        if self.error is not None:
            raise self.error

    def sync(self) -> None:
        """Raise the first error; bring all to disk."""
        self.check()
        os.fsync(self.descriptor)

    def put(self, data: Any, offset: int) -> None:
        """Write bytes at ``offset``."""
        view = memoryview(data).cast("B")
        try:
            while len(view) and self.error is None:
                count = os.pwrite(self.descriptor, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            self.error = error

    def write(self, data: Any) -> int:
        """Write bytes where the file stands."""
        size = memoryview(data).nbytes
        self.put(data, self._position)
        self._position += size
        return size

    def readinto(self, out: Any) -> int:
        """Read bytes where the file stands."""
        count = os.preadv(self.descriptor, [out], self._position)
        self._position += count
        return count

    def read(self, size: int) -> bytes:
        """Return bytes where the file stands."""
        data = os.pread(self.descriptor, size, self._position)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to another place."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        if begin is None:
            begin = os.fstat(self.descriptor).st_size
        self._position = begin + offset
        return self._position

    def tell(self) -> int:
        """Return where the file stands."""
        return self._position

    def truncate(self, size: int) -> None:
        """Cut the file off, or make it longer."""
        try:
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            self.error = self.error or error

    def flush(self) -> None:
        """Everything is written at once."""


@contextmanager
def replaced(path: Path) -> Iterator[NewFile]:
    """Yield a file to write to, which becomes ``path`` when it is complete and on disk.

    Raises CheckpointError if it cannot be written: then ``path`` is what it was.
    """
    try:
        with in_place_of(path) as descriptor:
            file = NewFile(descriptor)
            try:
                yield file
            except CheckpointError:
                raise
            except RuntimeError:  # what HDF5 finds wrong after an error of the disk
                if file.error is None:
                    raise
                raise file.error from None
            file.check()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_bytes(path: Path, *parts: Any) -> None:
    """Write a file, and the folders it is in; it is complete, or as it was before."""
    try:
        make_folders(path.parent)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None
    with replaced(path) as file:
        for part in parts:
            file.write(part)


@contextmanager
def new_file(path: Path) -> Iterator[tuple[NewFile, Any]]:
    """Yield a file as `replaced` does, and the HDF5 file in it."""
    with replaced(path) as disk:
        file = h5py.File(
            disk,
            "w",
            libver="v110",
            userblock_size=HEAD_BYTES,
            alignment_threshold=1,
            alignment_interval=ALIGNMENT,
        )
        try:
            yield disk, file
        finally:
            file.close()


def add_facts(file: Any, facts: bytes, attrs: Mapping[str, Any]) -> int:
    """Add the facts as a dataset, and attributes of the whole file; return where they lie."""
    data = np.array(facts, h5py.string_dtype("utf-8", len(facts)))
    dataset = file.create_dataset(FACTS, data=data)
    file.attrs.update(attrs)
    file.flush()
    return int(dataset.id.get_offset())


def finish(descriptor: int, facts: bytes, offset: int, extents: Sequence[tuple[int, int]]) -> Head:
    """Write the head of a file that HDF5 has closed.

    ``extents`` are (offset, bytes) of the chunks whose checksums the facts hold.
    """
    size = os.fstat(descriptor).st_size
    rest = rest_of(descriptor, size, extents)
    head = Head(offset, len(facts), digest(facts), size, rest)
    os.pwrite(descriptor, head.encode(), 0)
    return head


def rest_of(descriptor: int, size: int, extents: Sequence[tuple[int, int]]) -> str:
    """Return the checksum of what lies after the head and outside of ``extents``."""
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


# -- arrays ----------------------------------------------------------------------------------------
def _write(
    disk: NewFile, file: Any, entry: Entry, compression: str | None, back: WriteBack
) -> Stored:
    array = entry.array
    if not array.size:
        file.create_dataset(entry.path, shape=array.shape, dtype=array.dtype)
        file[entry.path].attrs.update(entry.attrs)
        return stored_at(array, 0)
    write = _write_packed if compression else _write_plain
    return write(disk, file, entry, compression, back)


def _write_plain(
    disk: NewFile, file: Any, entry: Entry, compression: str | None, back: WriteBack
) -> Stored:
    """Write an array as it is in memory, past HDF5, which only finds a place for it."""
    dataset = file.create_dataset(
        entry.path, entry.array.shape, entry.array.dtype, dcpl=_allocated_at_once()
    )
    dataset.attrs.update(entry.attrs)

    def write(data: memoryview, offset: int) -> None:
        disk.put(data, offset)
        back.wrote(len(data))

    return stored_at(entry.array, int(dataset.id.get_offset()), write)


def _allocated_at_once() -> Any:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return properties


def stored_at(
    array: np.ndarray | Made, offset: int, write: Callable[[memoryview, int], None] | None = None
) -> Stored:
    """Return the facts of an array whose bytes lie from ``offset`` on.

    ``write`` is called with each chunk, while caches have it, and where it belongs.
    """
    chunks = cut(array.shape, array.itemsize)
    places, sums = [], []
    for first, count in chunks.pieces(array.size):
        begin = offset + first * array.itemsize
        data = _elements(array, first, count).view(np.uint8).data
        sums.append(xxhash.xxh3_64_hexdigest(data))
        places.append((begin, len(data)))
        if write is not None:
            write(data, begin)
    return _stored(array, chunks, places, sums, packed=False)


def _stored(
    array: np.ndarray | Made,
    chunks: ChunkCut,
    places: Sequence[tuple[int, int]],
    sums: Sequence[str],
    *,
    packed: bool,
) -> Stored:
    """Return the facts of an array; ``places``: (offset in the file, bytes) of its chunks."""
    return Stored(
        shape=array.shape,
        dtype=array.dtype.name,
        chunk=chunks.shape,
        axis=chunks.axis,
        packed=packed,
        offsets=tuple(offset for offset, _ in places),
        sizes=tuple(size for _, size in places),
        sums=tuple(sums),
    )


def _elements(array: np.ndarray | Made, first: int, count: int) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array.reshape(-1)[first : first + count]
    return array.elements(first, count)


def _write_packed(
    disk: NewFile, file: Any, entry: Entry, compression: str | None, back: WriteBack
) -> Stored:
    """Compress an array by HDF5, and read back its chunks."""
    array, chunks = entry.array, cut(entry.array.shape, entry.array.itemsize)
    dataset = file.create_dataset(
        entry.path,
        shape=array.shape,
        dtype=array.dtype,
        chunks=chunks.shape,
        **filters(str(compression)),
    )
    dataset.attrs.update(entry.attrs)
    corners = [corner(array.shape, first) for first, _ in chunks.pieces(array.size)]
    dataset[...] = array
    file.flush()
    sums = []
    for at in corners:
        _, packed = dataset.id.read_direct_chunk(at)
        sums.append(xxhash.xxh3_64_hexdigest(packed))
        back.wrote(len(packed))
    return _stored(array, chunks, _places(dataset, corners), sums, packed=True)


def _places(dataset: Any, corners: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return (offset in the file, bytes) of the chunks at ``corners``."""
    place_of = {}
    # Before 1.14.4 HDF5 counts from after the user block.
    begin = HEAD_BYTES if h5py.version.hdf5_version_tuple < (1, 14, 4) else 0

    def note(chunk: Any) -> None:
        place_of[chunk.chunk_offset] = begin + int(chunk.byte_offset), int(chunk.size)

    if hasattr(dataset.id, "chunk_iter"):  # HDF5 looks for a single one among all of them
        dataset.id.chunk_iter(note)
    else:  # not before 1.10.10
        for at in corners:
            note(dataset.id.get_chunk_info_by_coord(at))
    return [place_of[at] for at in corners]
