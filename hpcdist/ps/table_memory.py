"""The memory of a table: index segments that grow or split, chunks of records that never move."""

from __future__ import annotations

import numpy as np

from hpcdist.base.division import round_up
from hpcdist.base.errors import TableError
from hpcdist.comm.base import Array
from hpcdist.ps import index_kernels as kernels
from hpcdist.ps.index_kernels import ENTRIES, LINE_BYTES, REMOVED, REMOVED_ROWS, ROWS, USED
from hpcdist.ps.mapped_memory import HUGE_PAGE_BYTES, PAGE_BYTES, Pieces, zeros

CHUNK_BYTES = 16 << 20  # at most, unless one record is larger
SMALL_BYTES = 32 << 20  # of records in pages of the usual size: the last large one is half unused
# A segment that would become larger than this is split; moving its entries takes about 0.1 ms.
SEGMENT_LINES = 4096
FULL = 0.93  # of a segment's entries
# The mean growth of a segment, in times. Beside wide records the index may be loose: its entries
# are moved half as often.
WIDE_BYTES = 48
LARGER, LARGER_WIDE = 1.28, 2.0
UNEVEN = 0.1  # ids made to have the same tag are not parted by more and more splits
MOST_ROWS = 2**32 - 1  # they are numbered from 1 in 32 bits


class TableMemory:
    """Memory for records of ``stride`` bytes and for an index of them.

    The arrays are what the kernels take; `grow` may replace them. Each segment grows at its own
    pace, so index and rows never stop to grow all at once, and memory follows the rows smoothly.
    """

    def __init__(self, name: str, stride: int) -> None:
        self.name, self.stride = name, stride
        self.shift = max(0, (CHUNK_BYTES // stride).bit_length() - 1)
        self.book = np.zeros(4, np.int64)
        self.directory = np.zeros(1, np.int64)
        self.segments = np.zeros((8, 6), np.int64)
        self.chunks = np.zeros(8, np.int64)
        wide = stride >= WIDE_BYTES
        self._larger = LARGER_WIDE if wide else LARGER
        self._pieces = Pieces(close=wide)
        self._segment_count = 0
        self._removed = np.empty(0, np.uint32)
        self.chunk_memory: list[Array] = []
        self._place_segment(0, 0, 0, 0)

    @property
    def rows(self) -> int:
        """How many records are in use."""
        return int(self.book[ROWS] - self.book[REMOVED_ROWS])

    @property
    def most_rows(self) -> int:
        """How many records can be numbered, in whole chunks."""
        return MOST_ROWS >> self.shift << self.shift

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken: of the last chunk, what has been touched."""
        index = self._pieces.nbytes
        index += self.directory.nbytes + self.segments.nbytes + self.chunks.nbytes
        touched = int(self.book[ROWS]) * self.stride
        page = HUGE_PAGE_BYTES if touched > SMALL_BYTES else PAGE_BYTES
        return index + self._removed.nbytes + round_up(touched, page)

    def listed(self, start: int, count: int, layout: Array) -> tuple[Array, Array]:
        """Return the ids and the addresses of records from number ``start`` on: int64 [count]."""
        ids, records = np.empty((2, count), np.int64)
        if count:
            ends = np.cumsum(self.segments[: self._segment_count, USED])
            segment = int(np.searchsorted(ends, start, side="right"))
            skip = start - int(ends[segment - 1] if segment else 0)
            where = self.segments, segment, skip
            kernels.list_records(*where, ids, records, self.chunks, layout)
        return ids, records

    def reserve(self, count: int) -> None:
        """Make room for ``count`` more rows on the stack of removed ones."""
        wanted, before = int(self.book[REMOVED_ROWS]) + count, self._removed
        if wanted > len(before):
            self._removed = np.empty(max(wanted, len(before) * 5 // 4), np.uint32)
            self._removed[: len(before)] = before
            self.book[REMOVED] = self._removed.ctypes.data

    def removed_last(self, count: int) -> Array:
        """Return the addresses of the records that were removed last, none used again: int64."""
        end = int(self.book[REMOVED_ROWS])
        rows = self._removed[end - count : end].astype(np.int64)
        within: Array = (rows & (1 << self.shift) - 1) * self.stride
        within += self.chunks[rows >> self.shift]
        return within

    def compile(self) -> None:
        """Load the kernels that `grow` needs."""
        kernels.count_bit(0, 0, np.uint64(0))
        kernels.move_entries(0, 0, 0, 0, 0, 0, np.uint64(0))

    def grow(self) -> None:
        """Get the memory for want of which a kernel has stopped."""
        segment = int(self.book[kernels.SEGMENT_TO_GROW])
        try:
            if segment == kernels.NO_ROOM:
                self._add_chunk()
            else:
                self._grow_segment(segment)
        except OSError as error:
            raise TableError(
                f"table {self.name!r} has {self.rows} rows in {self.nbytes / 2**30:.1f} GiB and "
                f"cannot allocate memory for more ({error}); use more servers or more nodes"
            ) from error

    def _add_chunk(self) -> None:
        count = len(self.chunk_memory)
        if count == len(self.chunks):
            self.chunks = np.concatenate([self.chunks, np.zeros_like(self.chunks)])
        size = self.stride << self.shift
        # In large pages a row at random costs no page walk.
        memory = zeros(size, large_from=max(0, SMALL_BYTES - count * size))
        self.chunk_memory.append(memory)
        self.chunks[count] = memory.ctypes.data

    def _grow_segment(self, number: int) -> None:
        old, lines, used, _, depth, prefix = self.segments[number].tolist()
        second, ones, bit = number, 0, 1 << depth
        if used * self._larger / FULL > SEGMENT_LINES * ENTRIES and depth < 32:
            ones = kernels.count_bit(old, lines, np.uint64(bit))
        if UNEVEN < ones / used < 1 - UNEVEN:
            second = self._segment_count
            if bit == len(self.directory):
                self.directory = np.concatenate([self.directory, self.directory])
            self._place_segment(number, used - ones, depth + 1, prefix)
            self._place_segment(second, ones, depth + 1, prefix | bit)
            self.directory[prefix | bit :: 2 * bit] = second
        else:
            self._place_segment(number, used, depth, prefix)
            bit = 0
        first_at, first_lines = self.segments[number, :USED].tolist()
        second_at, second_lines = self.segments[second, :USED].tolist()
        kernels.move_entries(
            old, lines, first_at, first_lines, second_at, second_lines, np.uint64(bit)
        )
        self._pieces.give(old, lines * LINE_BYTES)

    def _place_segment(self, number: int, used: int, depth: int, prefix: int) -> None:
        """Give a segment empty lines for the entries it will have, and for more to come."""
        # Each has another share, in no order, lest all segments grow at the same time.
        share = (number * 0x9E3779B1 + used * 0x85EBCA77 >> 8) % 1024 / 1024
        lines = 1 + int(used * (1 + (self._larger - 1) * (0.5 + share)) / FULL / ENTRIES)
        size = round_up(lines * LINE_BYTES, PAGE_BYTES)
        address = self._pieces.take(size)
        if number == self._segment_count:
            self._segment_count += 1
            if number == len(self.segments):
                self.segments = np.concatenate([self.segments, np.zeros_like(self.segments)])
        lines = size // LINE_BYTES
        # In the order of the columns.
        self.segments[number] = address, lines, used, int(lines * ENTRIES * FULL), depth, prefix
