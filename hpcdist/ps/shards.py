"""The state machine of a synchronous server, without I/O: which packets are due, from which
trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hpcdist.base.errors import CommError


class DuePacket(NamedTuple):
    """A packet to apply now: merge the contributors' gradients, update, answer.

    ``contributors`` are trainers in ascending order, none if there is nothing to apply;
    ``begins_step`` is true on the first update of a step, before which a learning-rate schedule
    advances. ``answers`` are (packet, trainers) to be answered then.
    """

    packet: int
    contributors: tuple[int, ...]
    begins_step: bool
    answers: tuple[tuple[int, tuple[int, ...]], ...]


class Shards(Protocol):
    """The decisions of a server in one mode of distributed training."""

    @property
    def step(self) -> int:
        """The last step begun, -1 before the first."""
        ...

    @property
    def finished(self) -> bool:
        """Whether every trainer has closed and everything it sent has been applied."""
        ...

    @property
    def readable(self) -> bool:
        """Whether no step is half applied."""
        ...

    @property
    def begun(self) -> bool:
        """Whether something has arrived that still waits for other trainers."""
        ...

    def reached(self, trainer: int, packet: int, step: int) -> bool:
        """Return whether a packet is as ``trainer`` must see it in ``step``."""
        ...

    def arrived(self, trainer: int, packet: int) -> DuePacket | None:
        """Take the arrival of a packet; return the update that is due now.

        Those that answer just those whose packets they apply are few objects, which come again.
        """
        ...

    def closed(self, trainer: int, sent: Sequence[int]) -> list[DuePacket]:
        """Take the leave of a trainer that has sent packet p ``sent[p]`` times in all."""
        ...

    def died(self, trainer: int) -> list[DuePacket]:
        """Take the death of a trainer: what of it has not been applied is dropped."""
        ...

    def steps_of(self, trainer: int) -> int:
        """Return how many complete steps of a trainer have been applied."""
        ...

    def heard(self, trainer: int) -> int:
        """Return how many packets of a trainer have arrived."""
        ...

    def waits(self, trainer: int) -> bool:
        """Return whether a trainer has sent all that it can before it is answered."""
        ...

    def settled(self, trainer: int) -> bool:
        """Return whether all that has arrived of a trainer has been applied."""
        ...

    def missing(self) -> tuple[int, int, tuple[int, ...]]:
        """Return (step, packet, trainers) of the first packet that is waited for."""
        ...


class SyncShards(Shards):
    """Synchronous mode: a packet is applied once every trainer that takes part in its step sent it.

    A trainer takes part in the steps before it closed; the divisor is the number of contributors.
    One that died takes part in what had been applied by then; what had arrived and still waited for
    other trainers is dropped. Where several Programs train in turns, a step has the packets of one
    of them: packet p those of number ``turns[p]``.
    """

    step = -1

    def __init__(self, trainers: int, packets: int, turns: Sequence[int] = ()) -> None:
        self._trainers = trainers
        self._turn_of = list(turns) or [0] * packets
        self._begun = [0] * (max(self._turn_of, default=0) + 1)  # steps, by turn
        self.turn = 0  # of the last step begun
        self._members = [
            [p for p, other in enumerate(self._turn_of) if other == turn]
            for turn in range(len(self._begun))
        ]
        self._sent: dict[int, tuple[int, ...]] = {}  # of the trainers that have closed
        self._applied = [0] * packets  # packet p has been applied in steps 0.._applied[p]-1
        # Trainers as bits: those it takes to apply the packet, and those of them still awaited.
        self._needed = [(1 << trainers) - 1] * packets
        self._awaited = list(self._needed)
        # What to answer, made beforehand: this runs in every step, and often on a cold cache.
        everyone = tuple(range(trainers))
        self._updates = [_updates(packet, everyone) for packet in range(packets)]

    @property
    def finished(self) -> bool:
        if len(self._sent) < self._trainers:
            return False
        return all(
            sent[packet] <= applied
            for sent in self._sent.values()
            for packet, applied in enumerate(self._applied)
        )

    @property
    def readable(self) -> bool:
        even = all(self._applied[p] == self._begun[t] for p, t in enumerate(self._turn_of))
        return even or self.finished

    @property
    def begun(self) -> bool:
        return self._awaited != self._needed or not self.readable

    def reached(self, trainer: int, packet: int, step: int) -> bool:
        return self._applied[packet] >= step

    def arrived(self, trainer: int, packet: int) -> DuePacket | None:
        bit = 1 << trainer
        awaited = self._awaited[packet]
        if not awaited & bit:
            raise CommError(
                f"trainer {trainer} sent packet {packet} twice in step {self._applied[packet]}, "
                f"or after closing"
            )
        self._awaited[packet] = awaited = awaited ^ bit
        return None if awaited else self._due(packet)

    def closed(self, trainer: int, sent: Sequence[int]) -> list[DuePacket]:
        if trainer in self._sent:
            raise CommError(f"trainer {trainer} closed twice")
        if len(sent) != len(self._applied):
            raise CommError(
                f"trainer {trainer} closed with {len(sent)} packet counts, "
                f"expected {len(self._applied)}"
            )
        return self._left(trainer, sent)

    def died(self, trainer: int) -> list[DuePacket]:
        counts = self._sent.get(trainer, self._applied)
        return self._left(trainer, [min(n, m) for n, m in zip(counts, self._applied)])

    def steps_of(self, trainer: int) -> int:
        counts = self._sent.get(trainer, self._applied)
        applied = [min(n, m) for n, m in zip(counts, self._applied)]
        return sum(min(applied[p] for p in members) for members in self._members if members)

    def heard(self, trainer: int) -> int:
        arrived = [needed & ~awaited for needed, awaited in zip(self._needed, self._awaited)]
        return sum(self._applied) + sum(bits >> trainer & 1 for bits in arrived)

    def waits(self, trainer: int) -> bool:
        return any(
            members and not any(self._awaited[p] >> trainer & 1 for p in members)
            for members in self._members
        )

    def settled(self, trainer: int) -> bool:
        arrived = (needed & ~awaited for needed, awaited in zip(self._needed, self._awaited))
        return not any(bits >> trainer & 1 for bits in arrived)

    def missing(self) -> tuple[int, int, tuple[int, ...]]:
        waited = [p for p, needed in enumerate(self._needed) if self._awaited[p] != needed]
        behind = [p for p, n in enumerate(self._applied) if n < self._begun[self._turn_of[p]]]
        packet = min(behind or waited or [0])
        missing = [k for k in range(self._trainers) if self._awaited[packet] >> k & 1]
        return self._applied[packet], packet, tuple(missing)

    def _left(self, trainer: int, sent: Sequence[int]) -> list[DuePacket]:
        """Note what a trainer takes part in; return what needs to wait no longer."""
        self._sent[trainer] = tuple(sent)
        due = []
        for packet, needed in enumerate(self._needed):
            arrived = needed & ~self._awaited[packet]
            self._expect(packet)
            needed = self._needed[packet]
            self._awaited[packet] = needed & ~arrived
            if needed & arrived and not self._awaited[packet]:
                due.append(self._due(packet))
        return due

    def _due(self, packet: int) -> DuePacket:
        """Count the packet's step as applied; return the update that applies it."""
        step = self._applied[packet]
        self._applied[packet] = step + 1
        turn = self._turn_of[packet]
        begins = step == self._begun[turn]
        update = self._updates[packet][begins]
        self.turn = turn
        if begins:
            self._begun[turn] = step + 1
            self.step += 1
        if self._sent:
            self._expect(packet)
        self._awaited[packet] = self._needed[packet]
        return update

    def _expect(self, packet: int) -> None:
        """Work out who takes part in the packet's next step, now that trainers have closed."""
        step = self._applied[packet]
        contributors = tuple(
            k for k in range(self._trainers) if k not in self._sent or self._sent[k][packet] > step
        )
        self._needed[packet] = sum(1 << k for k in contributors)
        self._updates[packet] = _updates(packet, contributors)


def _updates(packet: int, contributors: tuple[int, ...]) -> tuple[DuePacket, DuePacket]:
    """Return the update that continues a step and the one that begins it."""
    answers = ((packet, contributors),)
    first = DuePacket(packet, contributors, True, answers)
    return first._replace(begins_step=False), first
