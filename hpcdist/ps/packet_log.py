"""A server's records of packets: received, applied, answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

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
        self.arrived = [[0] * len(self._packets) for _ in ranks]  # how often, by trainer, packet
        self._applied: list[tuple[Sequence[int], list[int]]] = []  # contributors, how often
        self._gone: set[int] = set()

    def note_arrived(self, trainer: int, packet: int, number: int) -> None:
        """Note a packet that has come, and been counted."""
        recorder.count(Count.UNAPPLIED, self._unapplied())
        name, nbytes = self._packets[packet]
        now = time.monotonic_ns()
        recorder.message(EventKind.RECEIVED, name, now, nbytes, self._ranks[trainer], number - 1)

    def applying(
        self, packet: int, contributors: Sequence[int], calls: Sequence[Callable[[], object]]
    ) -> Callable[[], None]:
        """Return the call that makes ``calls``, which apply a packet, and notes that."""
        counts, times = self.arrived[contributors[0]], [0]
        self._applied.append((contributors, times))

        def apply() -> None:
            times[0] += 1
            number = counts[packet]
            begin = 0 if number & recorder.mask else time.monotonic_ns()
            for call in calls:
                call()
            if begin:
                self._note_applied(packet, contributors, begin, number)

        return apply

    def forget(self, trainer: int) -> None:
        """Count a trainer's packets no more: it has died, and what waits is dropped."""
        self._gone.add(trainer)

    def _unapplied(self) -> int:
        """Return how many packets wait to be applied."""
        waiting = 0
        for k in range(len(self._ranks)):
            if k not in self._gone:
                waiting += sum(self.arrived[k])
                waiting -= sum(times[0] for who, times in self._applied if k in who)
        return waiting

    def _note_applied(
        self, packet: int, contributors: Sequence[int], begin_ns: int, number: int
    ) -> None:
        """Note that a packet has been applied; what answers it leaves next."""
        recorder.count(Count.UNAPPLIED, self._unapplied())
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
