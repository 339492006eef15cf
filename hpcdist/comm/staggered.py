"""Operations that overlap, as one wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from hpcdist.comm.lanes import Steps, Wait
from hpcdist.comm.progress import CROWDED

LAST = 3  # operations, of which the end is waited for with short naps


class Staggered(Wait):
    """The wait for operations that overlap: some are under way, and none overtakes another.

    So what one rank sends in the first, second, ... step of each, its peer receives in that order.
    """

    def __init__(self, operations: Iterable[Steps], under_way: int) -> None:
        """``under_way``: how many at once, at most; the same on all ranks."""
        self._waiting = iter(operations)
        self._under_way = under_way
        self._running: deque[_Running] = deque()
        self._moved = time.monotonic()
        self._fill()

    def ended(self) -> bool:
        while self._running:
            reached: float = float("inf")  # by the one before
            for each in self._running:
                if each.advance(reached):
                    self._moved = time.monotonic()
                reached = each.step
            before = len(self._running)
            while self._running and self._running[0].wait is None:
                self._running.popleft()
            if len(self._running) == before:
                return False
            self._fill()
        return True

    def sleep(self, seconds: float) -> bool:
        """Nap shortly where the last operations end: a link has nothing else to carry meanwhile."""
        if len(self._running) > LAST:
            return False
        time.sleep(min(CROWDED.nap_s(time.monotonic() - self._moved), seconds))
        return True

    def missing(self) -> Sequence[int]:
        first = next((each.wait for each in self._running if each.wait is not None), None)
        return () if first is None else first.missing()

    def _fill(self) -> None:
        for steps in islice(self._waiting, self._under_way - len(self._running)):
            self._running.append(_Running(steps))


class _Running:
    """An operation under way: the step in which it is, and what it waits for; None in the end."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.step: float = 0
        self.wait: Wait | None = next(steps)

    def advance(self, reached: float) -> bool:
        """Go on, but not beyond the step that the operation before this one has reached.

        Return whether it has gone on.
        """
        before = self.step
        while self.wait is not None and self.step < reached and self.wait.ended():
            self.wait = next(self._steps, None)
            self.step = self.step + 1 if self.wait is not None else float("inf")
        return self.step > before
