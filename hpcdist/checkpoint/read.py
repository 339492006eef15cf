"""Reading checkpoints: every byte is compared with its checksum before it is used.

Data is read from the positions listed in the facts, directly into the target arrays. The HDF5
library never parses the file, so its links and external files have no effect.
"""

from __future__ import annotations

import bisect
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from hpcdist.base.division import equal_parts
from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.compressed import Unpacker
from hpcdist.checkpoint.files import open_plain
from hpcdist.checkpoint.layout import HEAD_BYTES, MAX_FACTS, Head, damaged, digest, parse_head
from hpcdist.checkpoint.metadata import Manifest, Part, Stored, cut_of, from_json
from hpcdist.checkpoint.write import rest_of

Job = Callable[[], None]
MAX_REST = 64 << 20  # of bytes outside of the chunks, besides what goes with the facts
GROUP = 16  # chunks that one thread reads in a row
THREADS = 4  # on few cores, too: some wait for the disk while others compare checksums


class StoredFile:
    """A file of a checkpoint, open for reading; its head, its facts and all but data are checked.

    ``expected`` is the checksum of its facts that the manifest knows.
    """

    def __init__(self, path: Path, expected: str | None = None) -> None:
        self.path = path
        self.name = str(path)
        self._spare: list[Any] = []  # open files for threads to read with
        self._file = open_plain(path)
        try:
            self.facts = self._check(expected)
        except OSError as error:
            self.close()
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        for file in (self._file, *self._spare):
            file.close()

    @property
    def descriptor(self) -> int:
        """The open file's descriptor, to be mapped."""
        return int(self._file.fileno())

    def __enter__(self) -> StoredFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _check(self, expected: str | None) -> Part | Manifest:
        descriptor = self._file.fileno()
        head = self.head = parse_head(os.pread(descriptor, HEAD_BYTES, 0), self.name)
        size = os.fstat(descriptor).st_size
        if size != head.file_bytes:
            raise CheckpointError(
                f"{self.name}: expected {head.file_bytes} bytes, got {size}: the file is "
                f"{'truncated' if size < head.file_bytes else 'too long'}"
            )
        facts = self._facts(head)
        if expected is not None and head.facts != expected:
            raise CheckpointError(
                f"{self.name}: not the file that the manifest was written for: it was changed, "
                "or comes from another checkpoint"
            )
        part = from_json(facts, self.name)
        extents = _extents(part, self.name, size)
        rest = size - HEAD_BYTES - sum(nbytes for _, nbytes in extents)
        if rest > MAX_REST + 64 * head.facts_bytes:  # more than HDF5 needs: a file with a hole?
            raise CheckpointError(f"{self.name}: {rest} bytes belong to no dataset that it lists")
        if rest_of(descriptor, size, extents) != head.rest:
            raise damaged(self.name, "its structure (the bytes around the data)")
        return part

    def _facts(self, head: Head) -> bytes:
        if head.facts_bytes > MAX_FACTS or head.facts_offset < HEAD_BYTES:
            raise damaged(self.name, "its head")
        facts = os.pread(self._file.fileno(), head.facts_bytes, head.facts_offset)
        if digest(facts) != head.facts:
            raise damaged(self.name, "its list of contents")
        return facts

    # -- data --------------------------------------------------------------------------------------
    def stored(self, path: str) -> Stored:
        """Return where a dataset of this part lies."""
        if not isinstance(self.facts, Part) or path not in self.facts.stored:
            raise CheckpointError(f"{self.name}: has no dataset {path!r}")
        return self.facts.stored[path]

    def jobs(self, path: str, begin: int, end: int, out: np.ndarray) -> list[Job]:
        """Return calls that together fill ``out`` with rows ``begin:end`` of a dataset.

        ``out`` is C-contiguous and of the dataset's dtype. They may run in any threads.
        """
        stored = self.stored(path)
        width = math.prod(stored.shape[1:])
        if not 0 <= begin <= end <= stored.shape[0] or out.size != (end - begin) * width:
            raise CheckpointError(
                f"{self.name}: dataset {path!r} has {stored.shape[0]} rows of {width} elements, "
                f"wanted rows {begin}:{end} in {out.size} elements"
            )
        if out.dtype.name != stored.dtype or not out.flags.c_contiguous:
            raise CheckpointError(
                f"{self.name}: dataset {path!r} is {stored.dtype}, expected {out.dtype}"
            )
        first, last = begin * width, end * width
        pieces = cut_of(stored).pieces(math.prod(stored.shape))
        starts = [p[0] for p in pieces]
        chosen = range(
            max(0, bisect.bisect_right(starts, first) - 1), bisect.bisect_left(starts, last)
        )
        if first == last:
            return []
        flat = out.reshape(-1).view(np.uint8)
        groups = [chosen[i : i + GROUP] for i in range(0, len(chosen), GROUP)]
        return [
            partial(self._read, path, stored, pieces, group, first, last, flat) for group in groups
        ]

    def _read(
        self,
        path: str,
        stored: Stored,
        pieces: Sequence[tuple[int, int]],
        group: Sequence[int],
        first: int,
        last: int,
        flat: np.ndarray,
    ) -> None:
        """Read some chunks: elements ``first:last`` of the dataset become the bytes of ``flat``."""
        itemsize = np.dtype(stored.dtype).itemsize
        scratch = np.empty(max(stored.sizes[i] for i in group), np.uint8)
        unpacker: Unpacker | nullcontext[None] = nullcontext()
        if stored.packed:
            nbytes = math.prod(stored.chunk) * itemsize
            unpacker = Unpacker(nbytes, f"{self.name}: {path!r}")
        with self._reader() as descriptor, unpacker as unpacking:
            for i in group:
                start, count = pieces[i]
                low, high = max(first, start), min(last, start + count)
                target = flat[(low - first) * itemsize : (high - first) * itemsize]
                chunk = scratch[: stored.sizes[i]]
                if unpacking is None and (low, high) == (start, start + count):
                    parts = [target, chunk[: len(chunk) - len(target)]]
                    self._read_chunk(descriptor, path, stored, i, parts)
                    continue
                self._read_chunk(descriptor, path, stored, i, [chunk])
                data = chunk if unpacking is None else unpacking.unpack(chunk.tobytes())
                target[:] = data[(low - start) * itemsize : (high - start) * itemsize]

    @contextmanager
    def _reader(self) -> Iterator[int]:
        """Give a descriptor for one thread: the system reads ahead of each by itself."""
        try:
            file = self._spare.pop()
        except IndexError:
            file = open_plain(self.path)
            if not os.path.sameopenfile(file.fileno(), self._file.fileno()):
                file.close()
                raise CheckpointError(f"{self.name}: was replaced while it was read") from None
        try:
            yield file.fileno()
        finally:
            self._spare.append(file)

    def _read_chunk(
        self, descriptor: int, path: str, stored: Stored, i: int, parts: list[np.ndarray]
    ) -> None:
        views = [part.data for part in parts]
        got = os.preadv(descriptor, views, stored.offsets[i])
        state = xxhash.xxh3_64()
        for view in views:
            state.update(view)
        if got != stored.sizes[i] or state.hexdigest() != stored.sums[i]:
            raise damaged(
                self.name,
                f"dataset {path!r}, chunk {i} of {len(stored.sums)} "
                f"(bytes {stored.offsets[i]}..{stored.offsets[i] + stored.sizes[i] - 1})",
            )

    def check_data(self) -> Iterable[Job]:
        """Yield calls that compare all data with its checksums."""
        assert isinstance(self.facts, Part)
        for path, stored in self.facts.stored.items():
            for i in range(len(stored.sums)):
                yield self._checker(path, stored, i)

    def _checker(self, path: str, stored: Stored, i: int) -> Job:
        def check() -> None:
            with self._reader() as descriptor:
                self._read_chunk(descriptor, path, stored, i, [np.empty(stored.sizes[i], np.uint8)])

        return check


def run(jobs: Sequence[Job]) -> None:
    """Run calls that read, in a few threads; raise the error of one that fails.

    Each thread takes neighbours, as disks like, and at the end what others have not begun.
    """
    count = max(1, min(THREADS, len(jobs)))
    bounds = pairwise(equal_parts(len(jobs), count))
    shares = [deque(jobs[begin:end]) for begin, end in bounds]

    def work(queue: deque[Job]) -> None:
        try:
            for share in (queue, *shares):
                while (job := _next_job(share)) is not None:
                    job()
        except BaseException:
            for share in shares:
                share.clear()
            raise

    try:
        if count == 1:
            work(shares[0])
            return
        with ThreadPoolExecutor(count, "hpcdist-read") as pool:
            for _ in pool.map(work, shares):
                pass
    except OSError as error:
        raise CheckpointError(f"a checkpoint cannot be read: {error}") from error


def _next_job(share: deque[Job]) -> Job | None:
    try:
        return share.popleft()
    except IndexError:
        return None


def _extents(facts: Part | Manifest, file: str, size: int) -> list[tuple[int, int]]:
    """Return (offset, bytes) of all chunks; CheckpointError unless each byte is one chunk's alone.

    So a file holds no more data than it is long, but for what was compressed.
    """
    if isinstance(facts, Manifest):
        return []
    extents = sorted(e for s in facts.stored.values() for e in zip(s.offsets, s.sizes))
    reached = HEAD_BYTES
    for offset, nbytes in extents:
        if offset < reached:
            raise CheckpointError(f"{file}: malformed list of chunks: they overlap")
        reached = offset + nbytes
    if reached > size:
        raise CheckpointError(f"{file}: malformed list of chunks: they end beyond the file")
    return extents
