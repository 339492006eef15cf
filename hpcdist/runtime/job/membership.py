"""The trainers that share every batch, some of which may die: their shares and contributions.

All that live must cut a batch in the same way and join the same values. So when some have died, the
others tell server 0 what they know, and continue by what it answers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

from hpcdist.comm.base import Transport
from hpcdist.comm.progress import waits_for_ranks, while_waiting
from hpcdist.ps.death_consensus import Witness

Settle = Callable[[Witness], Witness]  # tell server 0 what this trainer knows; return the verdict


class Membership:
    """Trainers by the batches that they share; ``batch`` counts those that this one has begun.

    ``trainers`` are the ranks of all, by trainer, ``ranks`` what the job calls them. ``settle`` is
    None where a death ends the job.
    """

    def __init__(
        self,
        trainers: Transport,
        settle: Settle | None,
        deadline_s: float | None,
        ranks: Sequence[int] = (),
    ) -> None:
        self.batch = 0
        self._me = trainers.rank
        self._ranks = ranks
        self._trainers = trainers
        self._settle = settle
        self._deadline_s = deadline_s
        self._dead: frozenset[int] = frozenset()  # those that all have agreed on
        self._settling = False
        self._unwatch: Callable[[], None] | None = None
        self.among = tuple(range(trainers.size))  # who shares this batch
        self._next: tuple[int, tuple[int, ...]] | None = None  # from which batch on, others do
        self._joins = 0  # all trainers that live join equally often, and in one order
        self._last: tuple[int, list[bytes | None]] = (0, [])  # the last join, what came
        self._left: dict[tuple[int, int], bytes] = {}  # (join, trainer): what the dead gave

    @property
    def settles(self) -> bool:
        """Whether the job continues without trainers that die."""
        return self._settle is not None

    @property
    def is_first(self) -> bool:
        """Whether this is the first of the trainers that share this batch."""
        return self.among[0] == self._me

    def begin_batch(self) -> tuple[int, ...]:
        """Count one batch more; return the trainers that share it."""
        self.look()
        self.batch += 1
        if self._next is not None and self.batch >= self._next[0]:
            self.among, self._next = self._next[1], None
        return self.among

    def watch(self) -> None:
        """Notice from now on that someone has died also while this trainer waits."""
        if self._settle is not None and self._unwatch is None:
            self._unwatch = while_waiting(self.look)

    def leave(self) -> None:
        """Agree on nothing from now on: this trainer leaves the servers."""
        self._settle = None
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def look(self) -> None:
        """If someone has died, agree with the others on it. Called also while this one waits."""
        if self._settle is None or self._settling:
            return
        self._settling = True
        try:
            while failed := self._trainers.failed() - self._dead:
                self._take(self._settle(self._witness(failed)))
        finally:
            self._settling = False

    def join(self, data: bytes, awaited: str) -> list[bytes | None]:
        """Exchange values of the trainers that share this batch, in their order. Collective.

        None stands for one that died, and that not all who live can know the data of.
        """
        self._joins += 1
        with waits_for_ranks(lambda: [rank for k, rank in enumerate(self._ranks) if k != self._me]):
            came = self._trainers.allgather_living(data, self._deadline_s, awaited)
        self._last = self._joins, came
        if None in [came[k] for k in self.among]:
            self.look()
        for k in self._dead:
            came[k] = self._left.get((self._joins, k))
        return [came[k] for k in self.among]

    def _witness(self, failed: frozenset[int]) -> Witness:
        join, came = self._last
        parts = [(k, came[k]) for k in sorted(failed) if came]
        return Witness(
            failed,
            self.batch,
            tuple((join, k, base64.b64encode(d).decode()) for k, d in parts if d is not None),
        )

    def _take(self, verdict: Witness) -> None:
        self._dead |= verdict.dead
        for join, k, data in verdict.parts:
            self._left[join, k] = base64.b64decode(data)
        among = tuple(k for k in range(self._trainers.size) if k not in self._dead)
        self._next = verdict.batch + 1, among
