"""Memory straight from the system: zeroed, given back when unused, in large pages where it pays."""

from __future__ import annotations

import bisect
import ctypes
import mmap

import numpy as np

from hpcdist.base.division import round_up
from hpcdist.comm.base import Array

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20


def zeros(size: int, large_from: int | None = None) -> Array:
    """Return zeroed bytes that begin at a page's beginning and are given back when unused.

    ``large_from``: the byte from which on pages are large.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has no large pages
    if large_from is None:
        return np.frombuffer(mmap.mmap(-1, size, flags=private), np.uint8)
    memory = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=private)
    data = np.frombuffer(memory, np.uint8)
    begin = -data.ctypes.data % HUGE_PAGE_BYTES
    large_from = round_up(large_from, HUGE_PAGE_BYTES)
    # Not the rest, of which a large page would reach beyond the end.
    large = (size - large_from) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if hasattr(mmap, "MADV_HUGEPAGE") and large > 0:
        memory.madvise(mmap.MADV_HUGEPAGE, begin + large_from, large)
    return data[begin : begin + size]


def lasting(size: int) -> Array:
    """Return zeroed bytes that are to stay for long, as one of many that grow.

    In pages of their own, unless they are few: the process would keep the holes between arrays.
    """
    return zeros(size) if size >= 4 * PAGE_BYTES else np.zeros(size, np.uint8)


class Pieces:
    """Pieces of memory that come and go: whole pages each, zeroed.

    ``close``: from blocks in large pages, which stay, and whose free parts are used again. A look
    at a place at random is faster there, and a new piece costs no page faults. The first pieces,
    and those too large for it, are mapped by themselves, as all are if not ``close``.
    """

    def __init__(self, close: bool) -> None:
        self._close = close
        self._mapped: dict[int, Array] = {}  # by address
        self._blocks: list[Array] = []
        self._free: list[tuple[int, int]] = []  # (size, address), sorted
        self._sizes: dict[int, int] = {}  # of free parts, by address
        self._ends: dict[int, int] = {}  # their addresses, by their end
        self.nbytes = 0

    def take(self, size: int) -> int:
        """Return the address of ``size`` zeroed bytes, whole pages."""
        few = self.nbytes < 4 * HUGE_PAGE_BYTES  # of which a block would be too large a part
        if not self._close or few or 4 * size > HUGE_PAGE_BYTES:
            memory = zeros(size)
            self._mapped[memory.ctypes.data] = memory
            self.nbytes += size
            return int(memory.ctypes.data)
        at = bisect.bisect_left(self._free, (size, 0))
        if at == len(self._free):
            block = zeros(HUGE_PAGE_BYTES, 0)
            self._blocks.append(block)
            self.nbytes += HUGE_PAGE_BYTES
            self._add(block.ctypes.data, HUGE_PAGE_BYTES)
            at = len(self._free) - 1
        length, address = self._free[at]
        self._remove(address)
        if length > size:
            self._add(address + size, length - size)
        ctypes.memset(address, 0, size)
        return address

    def give(self, address: int, size: int) -> None:
        """Take back what `take` has returned."""
        if self._mapped.pop(address, None) is not None:
            self.nbytes -= size
            return
        before = self._ends.get(address)
        if before is not None:
            size += self._remove(before)
            address = before
        if address + size in self._sizes:
            size += self._remove(address + size)
        self._add(address, size)

    def _add(self, address: int, size: int) -> None:
        bisect.insort(self._free, (size, address))
        self._sizes[address] = size
        self._ends[address + size] = address

    def _remove(self, address: int) -> int:
        size = self._sizes.pop(address)
        del self._ends[address + size]
        del self._free[bisect.bisect_left(self._free, (size, address))]
        return size
