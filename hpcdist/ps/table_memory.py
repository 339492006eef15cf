"""Where a table's index and records lie: segments that grow or split, chunks that never move."""

from __future__ import annotations

import mmap

import numpy as np

from hpcdist.comm.base import Array
from hpcdist.errors import TableError
from hpcdist.ps import index_kernels as kernels
from hpcdist.ps.index_kernels import ADDRESS, DEPTH, ENTRIES, LINE_BYTES, LINES, PREFIX, ROWS, USED

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20
CHUNK_BYTES = 16 << 20  # at most, unless one record is larger
SMALL = 2  # chunks in pages of the usual size; with large ones the last is half unused
# A segment that would become larger than this is split; moving its entries takes about 0.1 ms.
SEGMENT_LINES = 4096
LARGER = 1.32  # times: the mean growth of a segment
UNEVEN = 0.1  # ids made to have the same tag are not parted by more and more splits
FULL = kernels.FULL_PERCENT / 100
MOST_ROWS = 2**32 - 1  # they are numbered from 1 in 32 bits


class TableMemory:
    """Memory for records of ``stride`` bytes and for an index of them.

    The arrays are what the kernels take; `grow` may replace them. Each segment grows at its own
    pace, so index and rows never stop to grow all at once, and memory follows the rows smoothly.
    """

    def __init__(self, name: str, stride: int) -> None:
        self.name, self.stride = name, stride
        self.shift = max(0, (CHUNK_BYTES // stride).bit_length() - 1)
        self.book = np.zeros(2, np.int64)
        self.directory = np.zeros(1, np.int64)
        self.segments = np.zeros((8, 5), np.int64)
        self.chunks = np.zeros(8, np.int64)
        self._segment_memory: list[Array] = []
        self._chunk_memory: list[Array] = []
        self._place_segment(0, 0, 0, 0)

    @property
    def rows(self) -> int:
        """How many records are in use."""
        return int(self.book[ROWS])

    @property
    def most_rows(self) -> int:
        """How many records can be numbered, in whole chunks."""
        return MOST_ROWS >> self.shift << self.shift

    @property
    def nbytes(self) -> int:
        """Bytes of memory taken: of the last chunk, what has been touched."""
        index = sum(m.nbytes for m in self._segment_memory)
        index += self.directory.nbytes + self.segments.nbytes + self.chunks.nbytes
        page = HUGE_PAGE_BYTES if len(self._chunk_memory) > SMALL else PAGE_BYTES
        return index + _rounded_up(self.rows * self.stride, page)

    def used_by_segment(self) -> Array:
        """Return how many records each segment lists, int64 [segments]."""
        return self.segments[: len(self._segment_memory), USED]

    def compile(self) -> None:
        """Load the kernels that `grow` needs."""
        kernels.count_bit(0, 0, np.uint64(0))
        kernels.move_entries(0, 0, 0, 0, 0, 0, np.uint64(0))

    def grow(self) -> None:
        """Get the memory for want of which a kernel has stopped."""
        wanted = int(self.book[kernels.WANTED])
        try:
            if wanted == kernels.NO_ROOM:
                self._add_chunk()
            else:
                self._grow_segment(wanted)
        except OSError as error:
            raise TableError(
                f"table {self.name!r} has {self.rows} rows in {self.nbytes / 2**30:.1f} GiB and "
                f"gets no memory for more ({error}); use more servers or machines"
            ) from error

    def _add_chunk(self) -> None:
        count = len(self._chunk_memory)
        if count == len(self.chunks):
            self.chunks = np.concatenate([self.chunks, np.zeros_like(self.chunks)])
        size = self.stride << self.shift
        # In large pages a row at random costs no page walk.
        memory = _zeros(size, HUGE_PAGE_BYTES if count >= SMALL else PAGE_BYTES)
        self._chunk_memory.append(memory)
        self.chunks[count] = memory.ctypes.data

    def _grow_segment(self, number: int) -> None:
        _, lines, used, depth, prefix = self.segments[number].tolist()
        old, bit = self._segment_memory[number], 1 << depth
        second, ones = number, 0
        if used * LARGER / FULL > SEGMENT_LINES * ENTRIES and depth < 32:
            ones = kernels.count_bit(old.ctypes.data, lines, np.uint64(bit))
        if UNEVEN < ones / used < 1 - UNEVEN:
            second = len(self._segment_memory)
            if bit == len(self.directory):
                self.directory = np.concatenate([self.directory, self.directory])
            self._place_segment(number, used - ones, depth + 1, prefix)
            self._place_segment(second, ones, depth + 1, prefix | bit)
            self.directory[prefix | bit :: 2 * bit] = second
        else:
            self._place_segment(number, used, depth, prefix)
            bit = 0
        (first_at, first_lines), (second_at, second_lines) = self.segments[
            [number, second], ADDRESS : LINES + 1
        ].tolist()
        kernels.move_entries(
            old.ctypes.data, lines, first_at, first_lines, second_at, second_lines, np.uint64(bit)
        )

    def _place_segment(self, number: int, used: int, depth: int, prefix: int) -> None:
        """Give a segment empty lines for the entries it will have, and for more to come."""
        # Each has another share, in no order, lest all segments grow at the same time.
        share = (number * 0x9E3779B1 + used * 0x85EBCA77 >> 8) % 1024 / 1024
        lines = 1 + int(used * (1 + (LARGER - 1) * (0.5 + share)) / FULL / ENTRIES)
        memory = _zeros(_rounded_up(lines * LINE_BYTES, PAGE_BYTES))
        if number == len(self._segment_memory):
            self._segment_memory.append(memory)
            if number == len(self.segments):
                self.segments = np.concatenate([self.segments, np.zeros_like(self.segments)])
        else:
            self._segment_memory[number] = memory
        row = (memory.ctypes.data, memory.nbytes // LINE_BYTES, used, depth, prefix)
        self.segments[number, [ADDRESS, LINES, USED, DEPTH, PREFIX]] = row


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _zeros(size: int, page: int = PAGE_BYTES) -> Array:
    """Return zeroed bytes that begin at a page's beginning and are given back when unused."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has no large pages
    if page == PAGE_BYTES:
        return np.frombuffer(mmap.mmap(-1, size, flags=private), np.uint8)
    memory = mmap.mmap(-1, size + page, flags=private)
    whole = np.frombuffer(memory, np.uint8)
    begin = -whole.ctypes.data % page
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= page:
        # Not the rest, of which a large page would reach beyond the end.
        memory.madvise(mmap.MADV_HUGEPAGE, begin, size // page * page)
    return whole[begin : begin + size]
