"""Rows of a table that are not in memory: those not used of late lie in a file on local disk.

Ids, the index and what a policy knows of rows stay in memory; values and optimizer state come and
go. So everything is decided as without a file, and all bits are the same.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array
from hpcdist.ps.mapped_memory import zeros

SLOT_BYTES = 8  # that memory takes for a row besides its values and state: whose it is
GROWTH_BYTES = 64 << 20  # by which a large file grows, unless the disk has less
BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Tier:
    """The directory of a table's file, and what each owner keeps in memory: rows, or their bytes.

    One of the two is 0.
    """

    directory: str
    rows: int = 0
    nbytes: int = 0


class RowTier:
    """Where the rows of a table are: at most so many in memory, the others in a file.

    The file has no name, so it is gone with the process, however that ends. Rows go down when
    others need their places, those first that were not used since a hand passed which goes round
    (a clock): all of one call in one batch, which is written before any other is read.
    """

    def __init__(
        self, table: str, tier: Tier, size: int, begin: Callable[[Array, Array], None]
    ) -> None:
        """Make the file; TableError if it cannot be. size: bytes of a row and its state.

        ``begin`` gives rows (ids, addresses) that are new their first values.
        """
        from hpcdist.ps import tier_kernels

        self.name, self.tier, self.size = table, tier, size
        self._begin, self._kernels = begin, tier_kernels
        bound = tier.rows or tier.nbytes // (size + SLOT_BYTES)
        self.capacity = min(bound, tier_kernels.MOST)
        if not self.capacity:
            raise TableError(
                f"table {table!r}: RowPolicy(memory_bytes={tier.nbytes}): a row takes "
                f"{size + SLOT_BYTES} bytes: give more"
            )
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        name, tier, kernels = self.name, self.tier, self._kernels
        try:
            # In large pages: slots come at random.
            self._memory = zeros(self.capacity * self.size, 0)
            self._owners = zeros(8 * self.capacity).view(np.int64)
        except OSError as error:
            raise TableError(
                f"table {name!r}: {self.nbytes_at_most / 2**30:.1f} GiB of memory for rows cannot "
                f"be had on {socket.gethostname()} ({error}): give a lower "
                f"{'memory_rows' if tier.rows else 'memory_bytes'}"
            ) from None
        self._book = np.zeros(kernels.HAND + 1, np.int64)
        self._freed = np.empty(0, np.uint32)
        self._scratch = np.empty(0, np.uint8)
        self._buffer = np.empty(max(self.size, BUFFER_BYTES), np.uint8)
        self._places = 0  # that the file has
        try:
            file = tempfile.TemporaryFile(dir=tier.directory, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise TableError(
                f"table {name!r}: RowPolicy(disk={tier.directory!r}): no file can be made there on "
                f"{socket.gethostname()} ({error.strerror}): name a directory on a disk of each "
                "machine that keeps rows"
            ) from None
        self.file = file
        none = np.empty(0, np.int64)
        self.bodies(none, none)
        self.bodies(none, none, keep=False)
        self.drop(none)

    @property
    def most_rows(self) -> int:
        """How many rows can be numbered."""
        return self._kernels.MOST

    @property
    def rows_in_memory(self) -> int:
        """How many rows are in memory."""
        return int(self._book[self._kernels.SLOTS] - self._book[self._kernels.FREE_SLOTS])

    @property
    def rows_on_disk(self) -> int:
        """How many rows are in the file."""
        return int(self._book[self._kernels.PLACES] - self._book[self._kernels.FREED])

    @property
    def disk_bytes(self) -> int:
        """How large the file is."""
        return self._places * self.size

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken: of rows, those that have been used."""
        used = int(self._book[self._kernels.SLOTS]) * (self.size + SLOT_BYTES)
        return used + self._freed.nbytes + self._scratch.nbytes + self._buffer.nbytes

    @property
    def nbytes_at_most(self) -> int:
        """Bytes of memory for rows, once all of it is used."""
        return self.capacity * (self.size + SLOT_BYTES)

    def in_memory(self, records: Array, bodies: Array) -> bool:
        """Write to ``bodies`` what `bodies` returns of rows that are in memory, 0 of others.

        Return whether all are. They count as used.
        """
        where = self._memory.ctypes.data, self.size
        return not self._kernels.rows_in_memory(records, bodies, *where)

    def bodies(self, ids: Array, records: Array, *, keep: bool = True) -> Array:
        """Return where the rows of records are, as if records began there; 0 for no record.

        Not more records than `capacity`; their rows come into memory. Not ``keep``: none comes or
        goes, and those that are not there are read beside it, as they are until the next call.
        """
        kernels, count = self._kernels, len(records)
        bodies, begin = np.empty(count, np.int64), self._memory.ctypes.data
        up = np.empty((count, 3), np.int64)
        if keep:
            assert count <= self.capacity, "callers take pieces"
            self.reserve(count)
            down = np.empty((count, 3), np.int64)
            self.in_memory(records, bodies)
            slots = self._book, self._owners, self._freed
            facts = begin, self.size, *slots, down, up
            downs, ups = kernels.raise_rows(records, bodies, *facts)
            self._transfer(down[:downs], begin, write=True)
        else:
            ups = kernels.find_rows(records, bodies, begin, self.size, up)
            if ups * self.size > len(self._scratch):
                self._scratch = zeros(ups * self.size)
            begin = self._scratch.ctypes.data
        up = up[:ups]
        bodies[up[:, 2]] = begin + up[:, 0] * self.size - 4
        self._transfer(up[up[:, 1] >= 0], begin, write=False)
        new = up[up[:, 1] < 0, 2]
        self._begin(ids[new], bodies[new])
        return bodies

    def drop(self, records: Array) -> None:
        """Free what the rows of records take."""
        self._room_for_freed(len(records))
        self._kernels.drop_rows(records, self._book, self._owners, self._freed)

    def reserve(self, count: int) -> None:
        """Make sure that so many rows can come into memory; TableError, and no change, if not."""
        book, kernels = self._book, self._kernels
        free = self.capacity - self.rows_in_memory
        places = int(book[kernels.PLACES] - book[kernels.FREED]) + max(0, count - free)
        if places > kernels.MOST:
            raise TableError(
                f"table {self.name!r}: {places} rows on disk are too many: use more servers"
            )
        self._room_for_freed(count)
        if places <= self._places:
            return
        growth = min(self._places, GROWTH_BYTES // self.size)
        for wanted in (places + growth, places):
            try:
                os.posix_fallocate(self.file.fileno(), 0, wanted * self.size)
                self._places = wanted
                return
            except OSError as error:
                failed = error
        raise self._failed(failed, f"its file cannot grow to {places * self.size} bytes")

    def space(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an array on the disk, of zeros; TableError if it does not fit there."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            with tempfile.TemporaryFile(dir=self.tier.directory) as file:
                os.posix_fallocate(file.fileno(), 0, nbytes)
                array: Array = np.memmap(file, dtype, "r+", 0, tuple(shape))
                return array
        except OSError as error:
            what = f"there is no room for a copy of {nbytes} bytes, to be saved"
            raise self._failed(error, what) from None

    # -- inside --

    def _room_for_freed(self, count: int) -> None:
        wanted, before = int(self._book[self._kernels.FREED]) + count, self._freed
        if wanted > len(before):
            self._freed = np.empty(max(wanted, len(before) * 5 // 4), np.uint32)
            self._freed[: len(before)] = before

    def _transfer(self, rows: Array, begin: int, *, write: bool) -> None:
        """Write rows, or read them."""
        rows = np.ascontiguousarray(rows[np.argsort(rows[:, 1])])
        file = self.file.fileno()
        done = self._kernels.transfer(file, rows, begin, self.size, self._buffer, write)
        if done == len(rows):
            return
        place, nbytes = int(rows[done, 1]) * self.size, memoryview(bytearray(self.size))
        try:  # again: a kernel does not learn why
            count = os.pwrite(file, nbytes, place) if write else os.preadv(file, [nbytes], place)
            error = OSError(errno.EIO, f"{count} of {self.size} bytes")
        except OSError as why:
            error = why
        way = "written" if write else "read"
        raise self._failed(error, f"rows cannot be {way} there; the table cannot be used further")

    def _failed(self, error: OSError, what: str) -> TableError:
        return TableError(
            f"table {self.name!r}, RowPolicy(disk={self.tier.directory!r}) on "
            f"{socket.gethostname()}: {what} ({error.strerror}); {self.rows_in_memory} rows are in "
            f"memory, {self.rows_on_disk} on disk; make room there, name another directory, or use "
            "more servers, and resume from the last checkpoint"
        )
