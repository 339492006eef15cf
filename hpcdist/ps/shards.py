"""What a parameter server decides, without I/O: when a packet is due, and whom it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hpcdist.errors import CommError


class Update(NamedTuple):
    """A packet to apply now: merge the contributors' gradients, update, answer the contributors.

    ``contributors`` are trainers in ascending order; ``begins_step`` is true on the first update of
    a step, before which a learning-rate schedule advances.
    """

    step: int
    packet: int
    contributors: tuple[int, ...]
    begins_step: bool


class Shards(Protocol):
    """The decisions of a server in one mode of distributed training."""

    @property
    def finished(self) -> bool:
        """Whether every trainer has closed and everything it sent has been applied."""
        ...

    @property
    def readable(self) -> bool:
        """Whether the parameters are whole: no step is half applied."""
        ...

    @property
    def begun(self) -> bool:
        """Whether something has arrived that still waits for other trainers."""
        ...

    def applied(self, packet: int) -> int:
        """Return in how many steps a packet has been applied."""
        ...

    def arrived(self, trainer: int, packet: int) -> Update | None:
        """Take the arrival of a packet; return the update that is due now."""
        ...

    def closed(self, trainer: int, sent: Sequence[int]) -> list[Update]:
        """Take the leave of a trainer that has sent packet p ``sent[p]`` times in all."""
        ...

    def missing(self) -> tuple[int, int, tuple[int, ...]]:
        """Return (step, packet, trainers) of the first packet that is waited for."""
        ...


class SyncShards:
    """Synchronous mode: a packet is applied once every trainer that takes part in its step sent it.

    A trainer takes part in the steps before it closed; the divisor is the number of contributors.
    """

    def __init__(self, trainers: int, packets: int) -> None:
        self._trainers = trainers
        self._everyone = tuple(range(trainers))
        self._sent: dict[int, tuple[int, ...]] = {}  # of the trainers that have closed
        self._here: list[set[int]] = [set() for _ in range(packets)]
        self._applied = [0] * packets  # packet p has been applied in steps 0.._applied[p]-1
        self._step = -1  # the last step begun

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
        return not self._applied or min(self._applied) == max(self._applied) or self.finished

    @property
    def begun(self) -> bool:
        return any(self._here) or not self.readable

    def applied(self, packet: int) -> int:
        return self._applied[packet]

    def arrived(self, trainer: int, packet: int) -> Update | None:
        here = self._here[packet]
        if trainer in here:
            step = self._applied[packet]
            raise CommError(f"trainer {trainer} sent packet {packet} twice in step {step}")
        here.add(trainer)
        if self._sent:
            self._check_open(trainer, packet)
        elif len(here) < self._trainers:
            return None
        return self._due(packet)

    def closed(self, trainer: int, sent: Sequence[int]) -> list[Update]:
        if trainer in self._sent:
            raise CommError(f"trainer {trainer} closed twice")
        if len(sent) != len(self._applied):
            raise CommError(
                f"trainer {trainer} closed with {len(sent)} packet counts, "
                f"expected {len(self._applied)}"
            )
        self._sent[trainer] = tuple(sent)
        updates = [self._due(packet) for packet in range(len(self._applied))]
        return [update for update in updates if update]

    def missing(self) -> tuple[int, int, tuple[int, ...]]:
        waited = [p for p, here in enumerate(self._here) if here]
        behind = [p for p, n in enumerate(self._applied) if n < max(self._applied, default=0)]
        packet = min(behind or waited or [0])
        missing = set(self._expected(packet)) - self._here[packet]
        return self._applied[packet], packet, tuple(sorted(missing))

    def _check_open(self, trainer: int, packet: int) -> None:
        step = self._applied[packet]
        if trainer not in self._expected(packet):
            raise CommError(f"trainer {trainer} sent packet {packet} after closing at step {step}")

    def _due(self, packet: int) -> Update | None:
        here = self._here[packet]
        expected = self._expected(packet)
        if not here or len(here) < len(expected):
            return None
        step = self._applied[packet]
        begins = step > self._step
        if begins:
            self._step = step
        self._applied[packet] += 1
        here.clear()
        return Update(step, packet, expected, begins)

    def _expected(self, packet: int) -> tuple[int, ...]:
        if not self._sent:
            return self._everyone
        step = self._applied[packet]
        return tuple(
            k for k in self._everyone if k not in self._sent or self._sent[k][packet] > step
        )
