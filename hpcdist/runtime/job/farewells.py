"""What trainers without servers tell each other when their scripts end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.errors import CommError, RankFailure
from hpcdist.base.trace.position import here
from hpcdist.comm.base import ANY, Transport
from hpcdist.comm.progress import while_waiting

_LEAVING = 1  # the tag of what a trainer says when its script has ended


class Farewells:
    """Notices trainers that have ended while this one waits for them in a step.

    ``steps`` counts those in which all trainers have taken part.
    """

    def __init__(self, trainers: Transport, deadline_s: float) -> None:
        self._trainers = trainers
        self._deadline_s = deadline_s
        self._steps = 0
        self._in_step = False
        self._leaving: list[Any] = []
        self._left: dict[int, int] = {}  # trainers that have ended -> after how many steps
        self._unwatch: Callable[[], None] | None = while_waiting(self._watch)

    def begin_step(self) -> None:
        """Begin a step in which all trainers take part."""
        self._in_step = True

    def end_step(self) -> None:
        """End it."""
        self._in_step = False
        self._steps += 1

    def tell(self) -> None:
        """Notify the others that this trainer takes part in nothing more."""
        self.stop_watching()
        steps = np.array([self._steps], np.int64)
        peers = [peer for peer in range(self._trainers.size) if peer != self._trainers.rank]
        self._leaving = [self._trainers.isend(steps, peer, _LEAVING) for peer in peers]

    def take_all(self) -> None:
        """Take in what all others said when they ended. Collective, after `tell` on all."""
        while len(self._left) < self._trainers.size - 1:
            self._hear()
        self._trainers.wait_all(self._leaving, lambda: "telling the others of the end", None)

    def stop_watching(self) -> None:
        """Look no more for what the others say."""
        if self._unwatch is not None:
            self._unwatch()
        self._unwatch = None

    def _hear(self) -> None:
        message = self._trainers.iprobe(ANY, _LEAVING)
        if message is None:
            return
        steps = np.zeros(1, np.int64)
        request = self._trainers.irecv(steps, message[0], _LEAVING)
        self._trainers.wait_all([request], lambda: "a trainer's last word", self._deadline_s)
        self._left[message[0]] = int(steps[0])

    def _watch(self) -> None:
        """While this trainer waits: notice that others have ended, and will not come."""
        try:
            self._hear()
        except RankFailure:  # what is waited for tells of it, if it concerns the dead
            self.stop_watching()
            return
        early = sorted(t for t, steps in self._left.items() if steps <= self._steps)
        if early and self._in_step:
            self.stop_watching()
            raise CommError(
                f"trainer {self._trainers.rank} is in step {here.step}, in which all trainers "
                f"take part, but the script of trainer {early[0]} has ended after "
                f"{self._left[early[0]]} steps: give all trainers the same number of batches, or "
                "read them through hpcdist.even_batches; programs that look up rows of distributed "
                "tables must run on all trainers, for evaluation too"
            )


@dataclass(frozen=True)
class Common:
    """What the trainers of a job without servers have in common, whatever they run."""

    sums: Transport
    farewells: Farewells
