"""The state machine of an asynchronous server, without I/O: every packet is due on arrival."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import CommError
from hpcdist.ps.shards import DuePacket, Shards


class AsyncShards(Shards):
    """Asynchronous mode: a gradient is applied on arrival, by itself, and answered.

    With ``max_staleness`` s the mode is stale-synchronous: a trainer that is s steps ahead of the
    slowest that has not closed gets its answer when that one has caught up (Ho et al., "More
    Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013).

    ``staleness[k]`` is how many updates of other trainers came between what trainer k read and
    what it sent, for the packet that arrived last.
    """

    step: int = -1

    def __init__(self, trainers: int, packets: int, max_staleness: int | None = None) -> None:
        self.staleness = [0] * trainers
        self._trainers = trainers
        self._packets = packets
        self._at_once = [[_at_once(p, k) for p in range(packets)] for k in range(trainers)]
        self._max_staleness = max_staleness
        self._counts = [[0] * packets for _ in range(trainers)]  # how often k has sent p
        self._versions = [0] * packets  # updates applied to p
        self._seen = [[0] * packets for _ in range(trainers)]  # the version k was answered with
        self._sent: dict[int, tuple[int, ...]] = {}  # of the trainers that have closed
        self._unanswered: list[tuple[int, int]] = []  # (packet, trainer) to be answered later

    @property
    def finished(self) -> bool:
        return len(self._sent) == self._trainers and all(
            count >= sent
            for k, expected in self._sent.items()
            for count, sent in zip(self._counts[k], expected)
        )

    @property
    def readable(self) -> bool:
        return True

    @property
    def begun(self) -> bool:
        return bool(self._unanswered)

    def begins(self, trainer: int) -> None:
        """A trainer that has sent nothing yet reads its first values."""
        self._seen[trainer] = list(self._versions)

    def reached(self, trainer: int, packet: int, step: int) -> bool:
        """A trainer sees its own updates of the steps before ``step``."""
        return self._counts[trainer][packet] >= step

    def arrived(self, trainer: int, packet: int) -> DuePacket:
        counts, seen = self._counts[trainer], self._seen[trainer]
        step = counts[packet]
        if trainer in self._sent and self._sent[trainer][packet] <= step:
            raise CommError(f"trainer {trainer} sent packet {packet} after closing")
        counts[packet] = step + 1
        version = self._versions[packet]
        self._versions[packet] = version + 1
        self.staleness[trainer] = version - seen[packet]
        if step > self.step:
            self.step = step
        at_once = self._at_once[trainer][packet]
        if self._max_staleness is None:
            seen[packet] = version + 1
            return at_once
        self._unanswered.append((packet, trainer))
        released = self._released()
        return at_once if released == at_once.answers else at_once._replace(answers=released)

    def closed(self, trainer: int, sent: Sequence[int]) -> list[DuePacket]:
        if trainer in self._sent:
            raise CommError(f"trainer {trainer} closed twice")
        if len(sent) != self._packets:
            raise CommError(
                f"trainer {trainer} closed with {len(sent)} packet counts, expected {self._packets}"
            )
        self._sent[trainer] = tuple(sent)
        released = self._released()
        return [DuePacket(-1, (), False, released)] if released else []

    def died(self, trainer: int) -> list[DuePacket]:
        self._sent[trainer] = tuple(self._counts[trainer])
        self._unanswered = [(packet, k) for packet, k in self._unanswered if k != trainer]
        released = self._released()
        return [DuePacket(-1, (), False, released)] if released else []

    def steps_of(self, trainer: int) -> int:
        return min(self._counts[trainer], default=0)

    def heard(self, trainer: int) -> int:
        return sum(self._counts[trainer])

    def waits(self, trainer: int) -> bool:
        return any(k == trainer for _, k in self._unanswered)

    def settled(self, trainer: int) -> bool:
        return True

    def missing(self) -> tuple[int, int, tuple[int, ...]]:
        slowest = self._slowest()
        packet = self._unanswered[0][0] if self._unanswered else 0
        behind = [k for k in self._open() if min(self._counts[k]) <= slowest]
        return slowest, packet, tuple(behind)

    def _released(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Take the answers that may go out now from those held back."""
        if self._max_staleness is None:  # each has been answered at once
            return ()
        limit = self._slowest() + self._max_staleness
        due = [(p, k) for p, k in self._unanswered if self._counts[k][p] <= limit]
        self._unanswered = [answer for answer in self._unanswered if answer not in due]
        for packet, trainer in due:
            self._seen[trainer][packet] = self._versions[packet]
        return tuple((packet, (trainer,)) for packet, trainer in due)

    def _slowest(self) -> int:
        """Return the number of complete steps of the slowest trainer that is still there."""
        return min((min(self._counts[k], default=0) for k in self._open()), default=1 << 62)

    def _open(self) -> list[int]:
        return [k for k in range(self._trainers) if k not in self._sent]


def _at_once(packet: int, trainer: int) -> DuePacket:
    """Return the update by a packet that is applied and answered when it comes."""
    return DuePacket(packet, (trainer,), False, ((packet, (trainer,)),))
