"""A simulated machine with GPUs: their memory, their streams, and what was asked of them.

Work on a stream is done when somebody waits for it or asks how far it is, at other times too, in
an order that a test's seed decides. Whoever orders nothing by events, or reads too early, sees old
values. Memory of a GPU has addresses of its own: no address of the host is one, nor the reverse.
"""

from __future__ import annotations

import bisect
import itertools
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

LIMIT_S = 60.0
Task = Callable[[], bool]  # does some work, or none yet; tells whether it has ended


@dataclass
class Counts:
    """What has been asked of all GPUs since `clear`."""

    launches: int = 0  # kernels, copies within a GPU among them
    hidden: int = 0  # launches that copy an operand because it overlaps a result
    uploads: int = 0
    downloads: int = 0
    waits: int = 0  # times that the host stood still for a stream or an event
    replays: int = 0  # CUDA graphs launched (`support_graphs`)

    def clear(self) -> None:
        for field in fields(self):
            setattr(self, field.name, 0)


class Memory:
    """One allocation on a GPU; its bytes are poison at first, and again when it is freed.

    As cupy's pool gives freed memory to whoever asks next on the same stream, it is poison for what
    is launched there later, and for all other streams at any time.
    """

    def __init__(self, nbytes: int, device: int) -> None:
        self.bytes = np.full(nbytes, 0xFF, np.uint8)
        self.device = device
        with MACHINE.lock:
            self.ptr = MACHINE.next_address
            MACHINE.next_address += -(-(nbytes + 1) // 512) * 512
            MACHINE.addresses.append(self.ptr)
            MACHINE.allocations[self.ptr] = weakref.ref(self)
        # A finalizer runs anywhere, so it takes no lock.
        freed = weakref.finalize(self, MACHINE.freed.append, (self.bytes, MACHINE.current()))
        freed.atexit = False


class Machine:
    """All there is, for all threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.counts = Counts()
        self.random = random.Random(0)
        self.next_address = 0x7F00_0000_0000  # no process of Linux has memory at its last multiples
        self.addresses: list[int] = []
        self.allocations: dict[int, weakref.ref[Memory]] = {}
        self.streams: dict[int, Stream] = {}
        self.busy: list[Stream] = []
        self.here = threading.local()  # the device and the streams of a thread
        self.null: dict[int, Stream] = {}
        self.freed: deque[tuple[np.ndarray, Stream]] = deque()  # not yet poison
        self.restarts = 0
        self.clock = time.perf_counter  # what events that take the time look at

    def restart(self, seed: int = 0) -> None:
        """End what can end, forget the rest; from now on ``seed`` decides the order of work."""
        with self.lock:
            left = 1000  # turns that do nothing: a sum whose other ranks have gone has no end
            while self.busy and left:
                left -= not self.turn()
            for stream in self.busy:
                stream.tasks.clear()
            self.busy.clear()
            self.restarts += 1
            self.random = random.Random(seed)
            self.counts.clear()
            self.here = threading.local()

    # -- what belongs to a thread ------------------------------------------------------------
    @property
    def device(self) -> int:
        found: int = getattr(self.here, "device", 0)
        return found

    @device.setter
    def device(self, index: int) -> None:
        self.here.device = index

    def current(self) -> Stream:
        entered = getattr(self.here, "streams", None)
        if entered:
            stream: Stream = entered[-1]
            return stream
        return self.default()

    def default(self) -> Stream:
        """Return the stream of this thread's GPU on which work is put where none is said."""
        with self.lock:
            if self.device not in self.null:
                self.null[self.device] = Stream(null=True)
            return self.null[self.device]

    @property
    def capturing(self) -> Stream | None:
        """The stream on which this thread records a CUDA graph."""
        return getattr(self.here, "capturing", None)

    def refuse_capturing(self, what: str) -> None:
        """RuntimeError, as CUDA's, for what a CUDA graph cannot have in it."""
        if self.capturing is not None:
            raise RuntimeError(f"cudaErrorStreamCaptureUnsupported: {what}")

    # -- memory ------------------------------------------------------------------------------
    def at(self, ptr: int, nbytes: int) -> np.ndarray:
        """Return the bytes at an address of a GPU; AssertionError if nothing lies there."""
        with self.lock:
            place = bisect.bisect_right(self.addresses, ptr) - 1
            memory = self.allocations[self.addresses[place]]() if place >= 0 else None
        assert memory is not None, f"{ptr:#x} is no address of a GPU, or its memory was freed"
        begin = ptr - memory.ptr
        assert begin + nbytes <= len(memory.bytes), f"{nbytes} bytes at {ptr:#x} reach too far"
        return memory.bytes[begin : begin + nbytes]

    # -- work --------------------------------------------------------------------------------
    def turn(self, wanted: Stream | None = None) -> bool:
        """Do the next work of one stream, more often than not the one ``wanted``."""
        with self.lock:
            self.poison()
            if not self.busy:
                return False
            stream = self.random.choice(self.busy)
            if wanted is not None and wanted.tasks and self.random.random() < 0.6:
                stream = wanted
            ended = stream.tasks[0]()
            if ended:
                stream.tasks.popleft()
                if not stream.tasks:
                    self.busy.remove(stream)
            return ended

    def poison(self) -> None:
        """Put what becomes of freed memory after all that was launched before."""
        while self.freed:
            memory, stream = self.freed.popleft()
            stream.tasks.append(lambda memory=memory: memory.fill(0xFF) is None)
            if len(stream.tasks) == 1:
                self.busy.append(stream)

    def wait(self, ended: Callable[[], bool], stream: Stream) -> None:
        """Stand still until something has happened on a stream."""
        self.refuse_capturing("the host waits")
        self.counts.waits += 1
        end = time.monotonic() + LIMIT_S
        while not ended():
            if not self.turn(stream):
                time.sleep(1e-5)
            if time.monotonic() > end:
                raise RuntimeError("the stand-in's stream does not end")


class Stream:
    """A queue of work; `ptr` is how NCCL knows it."""

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self.tasks: deque[Task] = deque()
        self.recorded: list[Callable[[], None]] | None = None  # while it records a CUDA graph
        self.device = MACHINE.device
        with MACHINE.lock:
            self.ptr = next(_numbers)
            MACHINE.streams[self.ptr] = self

    def push(self, task: Task) -> None:
        MACHINE.refuse_capturing("more than kernels of one stream")
        with MACHINE.lock:
            MACHINE.poison()
            self.tasks.append(task)
            if len(self.tasks) == 1:
                MACHINE.busy.append(self)

    def launch(self, work: Callable[[], None]) -> None:
        """Put work after all else on this stream, or into the graph that it records."""
        if self.recorded is not None:
            self.recorded.append(work)
            return

        def task() -> bool:
            with np.errstate(all="ignore"):  # a GPU warns of nothing
                work()
            return True

        self.push(task)

    def wait_event(self, event: Event) -> None:
        upto = event.recorded
        self.push(lambda: event.ended >= upto)

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        MACHINE.wait(lambda: not self.tasks, self)

    @property
    def done(self) -> bool:
        MACHINE.turn(self)
        return not self.tasks

    def __enter__(self) -> Stream:
        if not hasattr(MACHINE.here, "streams"):
            MACHINE.here.streams = []
        MACHINE.here.streams.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        MACHINE.here.streams.pop()


class Event:
    """A mark on a stream. One that was never recorded has ended, as in CUDA."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        self.recorded = self._ended = 0
        self._times = not disable_timing
        self._reached_s = 0.0
        self._stream: Stream | None = None
        self._restarts = 0
        self._device = MACHINE.device

    @property
    def ended(self) -> int:
        """How many records have been reached; all of them, if the machine was restarted since."""
        return self._ended if self._restarts == MACHINE.restarts else self.recorded

    def record(self, stream: Stream | None = None) -> None:
        self._stream = stream or MACHINE.current()
        self._ended, self._restarts = self.ended, MACHINE.restarts
        self.recorded += 1
        number = self.recorded

        def mark() -> bool:
            self._ended, self._reached_s = number, MACHINE.clock()
            return True

        self._stream.push(mark)

    @property
    def done(self) -> bool:
        on = MACHINE.device  # of a thread that has chosen none, 0
        assert on == self._device, f"this thread would begin to use GPU {on}, and its memory"
        upto = self.recorded
        if self.ended < upto:
            MACHINE.turn(self._stream)
        return self.ended >= upto

    def synchronize(self) -> None:
        upto = self.recorded
        if self._stream is not None and self.ended < upto:
            MACHINE.wait(lambda: self.ended >= upto, self._stream)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return milliseconds between two events, which have ended."""
    for event in (start_event, end_event):
        if not event._times or not event.recorded:
            raise RuntimeError("cudaErrorInvalidResourceHandle: an event that takes no time")
        if event.ended < event.recorded:
            raise RuntimeError("cudaErrorNotReady")
    return 1e3 * (end_event._reached_s - start_event._reached_s)


class Device:
    """One GPU, of those that this process sees."""

    def __init__(self, device: int | None = None, gpus: int = 1) -> None:
        self.id = MACHINE.device if device is None else device
        self.pci_bus_id = f"0000:{self.id % gpus:02x}:00.0"

    def use(self) -> None:
        MACHINE.device = self.id

    def __enter__(self) -> Device:
        if not hasattr(MACHINE.here, "left"):
            MACHINE.here.left = []
        MACHINE.here.left.append(MACHINE.device)
        self.use()
        return self

    def __exit__(self, *_: Any) -> None:
        MACHINE.device = MACHINE.here.left.pop()

    def synchronize(self) -> None:
        for stream in list(MACHINE.streams.values()):
            if stream.device == self.id and stream.tasks:
                stream.synchronize()


def launch(work: Callable[[], None], memories: Sequence[Memory]) -> None:
    """Put a kernel on this thread's stream; all that it touches lies on this thread's GPU."""
    device = MACHINE.device
    for memory in memories:
        if memory.device != device:
            raise ValueError(
                "Array device must be same as the current device: array device = "
                f"{memory.device} while current = {device}"
            )
    stream = MACHINE.current()
    if stream.recorded is None:
        MACHINE.counts.launches += 1
    stream.launch(work)


_numbers = itertools.count(1)
MACHINE = Machine()
