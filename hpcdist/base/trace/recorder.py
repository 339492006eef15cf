"""The recorder of a process: a ring of the latest events, in memory set aside at the start.

Events that happen at most once per step, and waits, are always recorded. Operators and packets are
recorded in some steps only: every ``stride``-th, where ``stride`` is a power of two, so that ranks
with different strides have steps in common, and as small as keeps their cost below `SHARE` of the
time.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdist.base import settings
from hpcdist.base.errors import SettingError
from hpcdist.base.trace.events import EVENT, RECORD, Count, EventKind
from hpcdist.base.trace.programs import MOST_PROGRAMS, ProgramFacts

SHARE = 0.005  # of the time, for the details of some steps
COST_NS = 500  # of one event, measured: benchmarks/recorder.py
# Events take as long as a step with details does beside these: all of it is decided anew, by code
# and data that are in no cache. The other ranks of a job wait for it.
OF_A_DETAILED_STEP = 150
MOST_STRIDE = 4096
MEMORY_NS = 200_000_000  # between two looks at the memory, at least
MIB = 2**20

Record = Callable[..., None]


@dataclass(frozen=True)
class Recording:
    """Events of one rank in the order in which they were noted, and the names that they speak of.

    ``noted`` counts all there were: the first ``noted - len(events)`` are gone.
    """

    events: NDArray[Any]
    names: tuple[str, ...]
    noted: int
    programs: tuple[ProgramFacts, ...] = ()

    def since(self, begin_ns: int) -> Recording:
        """Return the events that ended at a time or later."""
        events = self.events[self.events["end"] >= begin_ns]
        return replace(self, events=events)


class Recorder:
    """Notes events; threads may share one. ``on`` tells whether anything is noted.

    ``mask``: the details of step n are noted where ``n & mask`` is 0.
    """

    on: bool
    mask: int
    record: Record
    _noted: Callable[[], int]

    def __init__(self, nbytes: int = 0) -> None:
        self.names: list[str] = []
        self.programs: list[ProgramFacts] = []
        self._number_of: dict[str, int] = {}
        self._naming = threading.Lock()
        self.begin(nbytes)
        self._started = nbytes > 0

    def start(self) -> None:
        """Begin as HPCDIST_RECORD_MIB says, unless it has begun already.

        SettingError if there is not so much memory.
        """
        if self._started:
            return
        mib = settings.RECORD_MIB.read()
        try:
            self.begin(mib * MIB)
        except (MemoryError, ValueError):  # or more than an array may have
            raise SettingError(
                f"{settings.RECORD_MIB.name}: there is no memory of {mib} MiB: give a smaller one"
            ) from None

    def begin(self, nbytes: int, *, always: bool = False) -> None:
        """Start again with a ring of ``nbytes``; 0: record nothing.

        ``always``: note the details of every step.
        """
        global _garbage_log
        capacity = nbytes // RECORD.size
        self._started = True
        self.on = capacity > 0
        if self.on and _garbage_log is None:
            _garbage_log = GarbageLog()
            gc.callbacks.append(_garbage_log)  # not when imported: others only want the library
        self._ring = np.zeros(capacity, EVENT)
        self._detailed_at = self._memory_at = 0
        self.always = always
        self.record, self._noted = _writer(self._ring) if self.on else (_ignore, _none)

    @property
    def always(self) -> bool:
        """Whether the details of every step are noted."""
        return self._always

    @always.setter
    def always(self, always: bool) -> None:
        self._always = always
        self._stride = 1
        self.mask = 0 if self.on else -1

    def name(self, text: str) -> int:
        """Return the number of a name; the same for the same text."""
        with self._naming:
            if text not in self._number_of:
                self._number_of[text] = len(self.names)
                self.names.append(text)
            return self._number_of[text]

    def ran(self, describe: Callable[[], ProgramFacts]) -> None:
        """Note a Program that runs for the first time, unless there are enough of them."""
        if self.on and len(self.programs) < MOST_PROGRAMS:
            program = describe()
            if program.operators and program not in self.programs:
                self.programs.append(program)

    @contextmanager
    def span(self, kind: EventKind, name: str, value: float = 0.0) -> Iterator[None]:
        """Record an event that lasts as long as the block, also if that raises."""
        begin = monotonic_ns()
        try:
            yield
        finally:
            self.record(kind, self.name(name), begin, monotonic_ns(), value)

    def message(
        self, kind: EventKind, name: str, begin_ns: int, nbytes: int, peer: int, number: int
    ) -> int:
        """Note what was done with a message from ``begin_ns`` until now; return when that is.

        ``number``: the same on both its ends, which it has with its name and its ranks only once.
        """
        end = monotonic_ns()
        self.record(kind, self.name(name), begin_ns, end, nbytes, peer, number)
        return end

    def count(self, counter: Count, value: float) -> None:
        """Record the current value of a counter."""
        if self.on:
            now = monotonic_ns()
            self.record(EventKind.COUNT, self.name(counter.value), now, now, value)

    def detailed(self, events: int, now_ns: int) -> None:
        """Choose the next stride: a step with ``events`` details has just been noted."""
        if self.on and now_ns - self._memory_at > MEMORY_NS:
            self._memory_at = now_ns
            self.record(EventKind.MEMORY, self.name("memory"), now_ns, now_ns, resident())
        step_ns = (now_ns - self._detailed_at) / self._stride
        self._detailed_at = now_ns
        if self.on and not self._always:
            self._stride = stride_for(events, step_ns)
            self.mask = self._stride - 1

    def taken(self) -> Recording:
        """Return the ring's events up to now, and continue; not one just being noted.

        Another thread may be about to write it, or what a signal handler has interrupted.
        """
        latest = self.latest(0)
        written = latest.events["kind"] > 0
        unwritten = len(written) - int(np.count_nonzero(written))
        return replace(latest, events=latest.events[written], noted=latest.noted - unwritten)

    def latest(self, since: int) -> Recording:
        """Return those events after the first ``since`` that the ring holds now, and continue."""
        noted, capacity = self._noted(), len(self._ring)
        places = np.arange(max(since, noted - capacity, 0), noted)
        events = self._ring[places % max(capacity, 1)]
        # What other threads have noted meanwhile may have taken the place of the first.
        overwritten = max(0, self._noted() - capacity - int(places[0])) if len(places) else 0
        return Recording(events[overwritten:], tuple(self.names), noted, tuple(self.programs))


def resident() -> int:
    """Return how many bytes of memory this process holds."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def stride_for(events: int, step_ns: float) -> int:
    """Return in every how many steps of ``step_ns`` nanoseconds to note ``events`` details."""
    least = events * COST_NS / (SHARE * max(step_ns, 1.0))
    stride = 1
    while stride < min(least, MOST_STRIDE):
        stride *= 2
    return stride


def _writer(ring: NDArray[Any]) -> tuple[Record, Callable[[], int]]:
    """Return the function that notes an event in a ring, and the counter of notes.

    Two threads at the same moment may write to one place, and one event is lost: a lock for every
    event would cost more than that is worth.
    """
    buffer, size = ring.data.cast("B"), RECORD.size
    nbytes, pack, thread = ring.nbytes, RECORD.pack_into, threading.get_ident
    at = 0

    def record(
        kind: int,
        name: int,
        begin: int,
        end: int,
        value: float = 0.0,
        peer: int = -1,
        step: int = 0,
    ) -> None:
        nonlocal at
        place = at
        at = place + size
        pack(buffer, place % nbytes, begin, end, value, thread(), name, peer, step, kind)

    def noted() -> int:
        return at // size

    return record, noted


def _ignore(*_: object, **__: object) -> None:
    """Record nothing."""


def _none() -> int:
    return 0


_garbage_log: GarbageLog | None = None
recorder = Recorder()  # the first Executor starts it, or the launcher


class GarbageLog:
    """Notes what Python's garbage collector takes from the time of a step."""

    LEAST_NS = 20_000

    def __init__(self) -> None:
        self._begin = 0
        self._name = recorder.name("garbage collection")

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = monotonic_ns()
        if phase == "start":
            self._begin = now
        elif now - self._begin > self.LEAST_NS:
            recorder.record(EventKind.GARBAGE, self._name, self._begin, now, info["generation"])
