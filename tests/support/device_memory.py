"""Memory of the GPUs that `support_device` simulates."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator

from tests.support.streams import (
    MACHINE,
    Memory,
)


class MemoryPointer:
    """A place in an allocation."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset
        self.device_id = mem.device

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)


class MemoryPool:
    """Memory apart from all others': what is freed is given out again, by its size."""

    def __init__(self) -> None:
        self._free: dict[int, list[Memory]] = {}

    def malloc(self, nbytes: int) -> MemoryPointer:
        """Return memory; while a CUDA graph is recorded, only what was had before."""
        free = self._free.setdefault(nbytes, [])
        if not free:
            MACHINE.refuse_capturing(f"cudaMalloc of {nbytes} bytes")
        memory = free.pop() if free else Memory(nbytes, MACHINE.device)
        pointer = MemoryPointer(memory, 0)
        weakref.finalize(pointer, free.append, memory).atexit = False
        return pointer


def _malloc(nbytes: int) -> MemoryPointer:
    MACHINE.refuse_capturing("memory that all share, and others have at the replay")
    return MemoryPointer(Memory(nbytes, MACHINE.device), 0)


def allocator() -> Callable[[int], MemoryPointer]:
    found: Callable[[int], MemoryPointer] = getattr(MACHINE.here, "allocator", _malloc)
    return found


@contextlib.contextmanager
def using_allocator(malloc: Callable[[int], MemoryPointer]) -> Iterator[None]:
    """Have this thread's arrays lie where ``malloc`` says."""
    before, MACHINE.here.allocator = allocator(), malloc
    try:
        yield
    finally:
        MACHINE.here.allocator = before
