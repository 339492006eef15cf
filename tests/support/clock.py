"""A clock for ranks that are threads: deadlines take no time, and come neither early nor late."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpcdist.comm.progress import Clock

LOOK_S = 1e-6  # what a look at the clock takes, so that who only looks sees time pass
POLL_S = 0.002  # of real time


class StandingClock(Clock):
    """Goes on only while all threads wait, to the first moment that one of them waits for.

    So nothing that a thread can still do is ever late, however slow the machine is.
    """

    def __init__(self, threads: int) -> None:
        self._now_s = 0.0
        self._threads = threads
        self._waiting: dict[int, float] = {}  # thread -> when its wait ends; had nothing to do yet
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)

    def monotonic(self) -> float:
        with self._lock:
            self._now_s += LOOK_S
            return self._now_s

    def sleep(self, seconds: float) -> None:
        end_s = self.monotonic() + seconds
        with self._moved:
            while not self.waited(end_s):
                self._moved.wait(POLL_S)

    def condition(self) -> threading.Condition:
        return _Condition(self)

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Have a thread count until the block ends; the clock goes on without it then."""
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1

    def waited(self, end_s: float) -> bool:
        """Tell whether a time has come, for a thread that has nothing else to wait for."""
        with self._lock:
            me = threading.get_ident()
            if self._now_s < end_s:
                self._waiting[me] = end_s
                soonest_s = min(self._waiting.values())
                if len(self._waiting) >= self._threads and soonest_s < math.inf:
                    self._now_s = max(self._now_s, soonest_s)
                    self._moved.notify_all()
            if self._now_s < end_s:
                return False
            self._waiting.pop(me, None)
            return True

    def goes_on(self) -> None:
        """Note that the calling thread waits no longer."""
        with self._lock:
            self._waiting.pop(threading.get_ident(), None)

    def something_happened(self) -> None:
        """Have all threads look again at what they wait for, before the clock goes on."""
        with self._lock:
            self._waiting.clear()


class _Condition(threading.Condition):
    def __init__(self, clock: StandingClock) -> None:
        super().__init__()
        self._clock = clock

    def notify_all(self) -> None:
        self._clock.something_happened()
        super().notify_all()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end_s = math.inf if timeout is None else self._clock.monotonic() + timeout
        while not predicate():
            if self._clock.waited(end_s):
                return False
            self.wait(POLL_S)
        self._clock.goes_on()
        return True
