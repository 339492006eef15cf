"""Reading checkpoints: every byte is compared with its checksum before it is used.

Data is read from where the facts say that it lies, straight into the arrays that take it; HDF5's
library only decompresses, after the file around the chunks has been found whole.
"""

from __future__ import annotations

import bisect
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from hpcdist.checkpoint.facts import Manifest, Part, Stored, from_json
from hpcdist.checkpoint.layout import (
    HEAD_BYTES,
    MAX_FACTS,
    Cut,
    Head,
    damaged,
    digest,
    parse_head,
)
from hpcdist.checkpoint.write import filter_plugin, rest_of
from hpcdist.errors import CheckpointError

Job = Callable[[], None]
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
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
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
        found = from_json(facts, self.name)
        extents = []
        if isinstance(found, Part):
            for path, stored in found.stored.items():
                self._check_extents(path, stored, size)
                extents += list(zip(stored.offsets, stored.sizes))
        if rest_of(descriptor, size, extents) != head.rest:
            raise damaged(self.name, "its structure (the bytes around the data)")
        return found

    def _facts(self, head: Head) -> bytes:
        if not (head.facts_offset >= HEAD_BYTES and head.facts_bytes <= MAX_FACTS):
            raise damaged(self.name, "its head")
        facts = os.pread(self._file.fileno(), head.facts_bytes, head.facts_offset)
        if digest(facts) != head.facts:
            raise damaged(self.name, "its list of contents")
        return facts

    def _check_extents(self, path: str, stored: Stored, size: int) -> None:
        found = _cut(stored)
        itemsize = np.dtype(stored.dtype).itemsize
        pieces = found.pieces(math.prod(stored.shape))
        whole = found.size * itemsize + 4  # or, where many have written one file, as in memory
        fits = len(stored.offsets) == len(pieces) and all(
            o >= HEAD_BYTES and o + s <= size and (stored.packed or s in (whole, count * itemsize))
            for o, s, (_, count) in zip(stored.offsets, stored.sizes, pieces)
        )
        if not fits:
            raise CheckpointError(f"{self.name}: dataset {path!r}: malformed list of chunks")

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
                f"{self.name}: dataset {path!r} is {stored.dtype}, wanted {out.dtype}"
            )
        first, last = begin * width, end * width
        pieces = _cut(stored).pieces(math.prod(stored.shape))
        starts = [p[0] for p in pieces]
        chosen = range(
            max(0, bisect.bisect_right(starts, first) - 1), bisect.bisect_left(starts, last)
        )
        if first == last:
            return []
        if stored.packed:
            return [lambda: self._unpack(path, stored, chosen, begin, end, out)]
        flat = out.reshape(-1).view(np.uint8)
        groups = [chosen[i : i + GROUP] for i in range(0, len(chosen), GROUP)]

        def job(group: Sequence[int]) -> Job:
            return lambda: self._read(path, stored, pieces, group, first, last, flat)

        return [job(group) for group in groups]

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
        with self._reader() as descriptor:
            for i in group:
                start, count = pieces[i]
                low, high = max(first, start), min(last, start + count)
                target = flat[(low - first) * itemsize : (high - first) * itemsize]
                whole = (low, high) == (start, start + count)
                parts = [scratch[: stored.sizes[i]]]
                if whole:
                    parts = [target, scratch[: stored.sizes[i] - len(target)]]
                self._read_chunk(descriptor, path, stored, i, parts)
                if not whole:
                    target[:] = scratch[(low - start) * itemsize : (high - start) * itemsize]

    @contextmanager
    def _reader(self) -> Iterator[int]:
        """Give a descriptor for one thread: the system reads ahead of each by itself."""
        try:
            file = self._spare.pop()
        except IndexError:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115
        try:
            yield file.fileno()
        finally:
            self._spare.append(file)

    def _read_chunk(
        self, descriptor: int, path: str, stored: Stored, i: int, parts: list[np.ndarray]
    ) -> None:
        views = [memoryview(part) for part in parts]  # type: ignore[arg-type]
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

    def _unpack(
        self, path: str, stored: Stored, chosen: Sequence[int], begin: int, end: int, out: Any
    ) -> None:
        """Let HDF5 decompress rows, after checking the chunks that hold them."""
        for i in chosen:
            self._checker(path, stored, i)()
        filter_plugin()
        try:
            with h5py.File(self.path, "r") as file:
                target = out.reshape(end - begin, *stored.shape[1:])
                file[path].read_direct(target, np.s_[begin:end])
        except (OSError, KeyError) as error:
            raise CheckpointError(f"{self.name}: dataset {path!r}: {error}") from error

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
    bounds = [k * len(jobs) // count for k in range(count + 1)]
    shares = [deque(jobs[begin:end]) for begin, end in pairwise(bounds)]

    def work(own: deque[Job]) -> None:
        try:
            for share in (own, *shares):
                while (job := _taken(share)) is not None:
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


def _taken(share: deque[Job]) -> Job | None:
    try:
        return share.popleft()
    except IndexError:
        return None


def _cut(stored: Stored) -> Cut:
    return Cut(stored.chunk, stored.axis, max(1, stored.shape[stored.axis]))
