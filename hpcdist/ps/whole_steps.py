"""Updates of a step that are applied together, once all its packets are due. Pure."""

from __future__ import annotations

from collections import deque

from hpcdist.ps.shards import DuePacket


class WholeSteps:
    """Holds updates of ``packets`` packets back; each step has one of every packet."""

    def __init__(self, packets: int) -> None:
        self._incomplete: list[deque[DuePacket]] = [deque() for _ in range(packets)]

    def add(self, update: DuePacket) -> list[DuePacket]:
        """Hold one more; return the updates of a step, by packet, once they are all here."""
        self._incomplete[update.packet].append(update)
        return [queue.popleft() for queue in self._incomplete] if all(self._incomplete) else []

    def holds(self, packet: int) -> bool:
        """Return whether an update of this packet is due, but not yet applied."""
        return bool(self._incomplete[packet])
