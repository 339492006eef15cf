"""Operations that overlap, as one wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from hpcdist.comm.lanes import Steps, Wait


class Staggered(Wait):
    """The wait for operations that overlap: some are under way, and none overtakes another.

    So what one rank sends in the first, second, ... step of each, its peer receives in that order.
    """

    def __init__(self, operations: Iterable[Steps], under_way: int) -> None:
        """``under_way``: how many at once, at most; the same on all ranks."""
        self._waiting = iter(operations)
        self._under_way = under_way
        self._running: deque[_Running] = deque()
        self._fill()

    def ended(self) -> bool:
        while self._running:
            reached: float = float("inf")  # by the one before
            for each in self._running:
                each.advance(reached)
                reached = each.step
            before = len(self._running)
            while self._running and self._running[0].wait is None:
                self._running.popleft()
            if len(self._running) == before:
                return False
            self._fill()
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

    def advance(self, reached: float) -> None:
        """Go on, but not beyond the step that the operation before this one has reached."""
        while self.wait is not None and self.step < reached and self.wait.ended():
            self.wait = next(self._steps, None)
            self.step = self.step + 1 if self.wait is not None else float("inf")
