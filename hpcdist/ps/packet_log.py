"""A server's records of packets: received, applied, answered."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcdist.base.trace.events import Count, EventKind
from hpcdist.base.trace.recorder import OF_A_DETAILED_STEP, recorder
from hpcdist.ps.messages import Hello


class PacketLog:
    """Counts each trainer's packets, so that a message has the same number on both its ends."""

    def __init__(self, expected: Hello, ranks: Sequence[int], tables: bool) -> None:
        """``ranks`` are those of the trainers; ``tables``: the last packet is of all tables."""
        self._answers = [(str(packet), packet.nbytes) for packet in expected.parameters]
        self._ranks = ranks
        # Names and bytes; of those whose rows differ from step to step 0.
        self._packets = [(str(packet), packet.nbytes) for packet in expected.gradients]
        self._packets += [(spec.name, 0) for spec in expected.tables]
        if tables:
            self._packets.append((", ".join(t.name for t in expected.row_tables), 0))
        self._arrived = [[0] * len(self._packets) for _ in ranks]
        self._unapplied = [0] * len(ranks)  # packets, by trainer

    def arrived(self, trainer: int, packet: int) -> None:
        """Note a packet that has come."""
        counts = self._arrived[trainer]
        counts[packet] = number = counts[packet] + 1
        self._unapplied[trainer] += 1
        if not number & recorder.mask:
            recorder.count(Count.UNAPPLIED, sum(self._unapplied))
            name, nbytes = self._packets[packet]
            now = time.monotonic_ns()
            recorder.message(
                EventKind.RECEIVED, name, now, nbytes, self._ranks[trainer], number - 1
            )

    def applied(self, packet: int, contributors: Sequence[int], begin_ns: int) -> None:
        """Note that a packet has been applied; what answers it leaves next."""
        for k in contributors:
            self._unapplied[k] -= 1
        number = self._arrived[contributors[0]][packet]
        if number & recorder.mask:
            return
        recorder.count(Count.UNAPPLIED, sum(self._unapplied))
        name, nbytes = self._packets[packet]
        end = recorder.message(EventKind.APPLIED, name, begin_ns, nbytes, -1, number - 1)
        if packet < len(self._answers):
            name, nbytes = self._answers[packet]
            for k in contributors:
                end = recorder.message(
                    EventKind.SENT, name, end, nbytes, self._ranks[k], number - 1
                )
        if packet == len(self._packets) - 1:
            events = len(self._packets) * (2 + 3 * len(contributors))
            recorder.detailed(events + OF_A_DETAILED_STEP, end)

    def forget(self, trainer: int) -> None:
        """Count a trainer's packets no more: it has died, and what waits is dropped."""
        self._unapplied[trainer] = 0
