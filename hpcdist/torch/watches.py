"""What lets a wait fail that can never end: ranks that have died, or whose scripts have ended."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hpcdist.base.errors import CommError, RankFailure
from hpcdist.comm.progress import NamesRanks
from hpcdist.comm.ulfm import UlfmTransport
from hpcdist.torch.store import MpiStore

LOOK_S = 0.02  # how often a rank that waits looks whether another has died
ASK_AFTER_S, ASK_S = 2.0, 0.5  # when, and how often, it asks whether one's script has ended
ARRIVES_S = 10.0  # in which the last messages of a rank arrive, after the word of its end
ENDED = "hpcdist/ended/"  # keys of the store, by ranks as the launcher numbers them


class DeathWatch:
    """Lets every wait of a torch job fail when one of its ranks has died.

    Not only those for the dead: whoever has noticed waits for nobody any more.
    """

    def __init__(self, everyone: UlfmTransport) -> None:
        """``everyone``: all trainers."""
        self.everyone = everyone
        self._next = 0.0

    def __call__(self, now: float, _: float, describe: Callable[[], str]) -> None:
        """Raise RankFailure if a rank has died, as far as this one knows; looks every LOOK_S."""
        if now < self._next:
            return
        self._next = now + LOOK_S
        if dead := self.everyone.look_for_deaths():
            self._next = 0.0  # the next wait is told at once
            raise RankFailure(describe(), dead)


class EndWatch:
    """Lets a wait fail that lasts, if the script of a rank that it is for has ended.

    Such a rank has said so in the store, when nothing of it was under way any more.
    """

    def __init__(self, store: MpiStore) -> None:
        self._store = store
        self._asking = threading.Lock()  # threads that wait at the same time take turns
        self._next = 0.0
        self._turn = 0
        self._asked: tuple[int, Callable[[], bool | None]] | None = None
        self._ended: dict[int, float] = {}  # ranks, and when this one has heard of their ends

    def __call__(self, now: float, began: float, describe: Callable[[], str]) -> None:
        """Raise CommError if a wait since ``began`` is for a rank that has ended for a while."""
        if now - began < ASK_AFTER_S or now < self._next:
            return
        if self._asking.acquire(blocking=False):
            try:
                self._look(now, describe)
            finally:
                self._asking.release()

    def _look(self, now: float, describe: Callable[[], str]) -> None:
        self._next = now + ASK_S
        missing: tuple[int, ...] = (
            describe.missing_ranks() if isinstance(describe, NamesRanks) else ()
        )
        gone = [rank for rank in missing if now - self._ended.get(rank, now) > ARRIVES_S]
        if gone:
            ranks = ", ".join(map(str, gone))
            raise CommError(
                f"{describe()}: the script of rank {ranks} has ended without it; every rank must "
                "call the same operations, and end when all have (look for a loop that is shorter "
                "there, sys.exit, or a return)"
            )
        if self._asked is not None:
            rank, answer = self._asked
            has_ended = answer()
            if has_ended is None:
                return
            if has_ended:
                self._ended[rank] = now
            self._asked = None
        unknown = [rank for rank in missing if rank not in self._ended]
        if unknown:
            self._turn += 1
            rank = unknown[self._turn % len(unknown)]
            self._asked = rank, self._store.look_for(f"{ENDED}{rank}")
