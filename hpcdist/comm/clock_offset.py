"""The offset of each rank's clock from rank 0's, measured by round trips of messages.

Ranks that share rank 0's clock, as on one host, need no messages: their offset is exactly 0.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcdist.base.trace.events import Cause, waits_for_cause
from hpcdist.comm.base import Transport

ROUNDS = 16
TAG = 0  # at the start and at the end no other message is under way
MOST_SKEW_S = 1.0  # between wall clocks of hosts
SET_CLOCKS = "let chrony or ntpd set the clocks: times of files and logs cannot be compared"
_OFFSET = struct.Struct("<qqq")


@dataclass(frozen=True)
class ClockOffset:
    """What to add to this rank's monotonic clock to have rank 0's; all in nanoseconds.

    ``at_ns`` is when this was found, by the rank's own clock.
    """

    offset_ns: int
    error_ns: int
    at_ns: int = 0

    def wall_clock_s(self) -> float:
        """Return the time of this host's wall clock, in Unix seconds, when rank 0's clock is 0."""
        return time.time() - (time.monotonic_ns() + self.offset_ns) / 1e9


def skewed(hosts: Sequence[str], clocks: Sequence[tuple[float, float]]) -> list[str]:
    """Return a line for each host whose wall clock is not that of rank 0's host. Pure.

    ``clocks``: of each rank its ``wall_clock_s`` and how wrong that may be, in seconds.
    """
    first: dict[str, tuple[float, float]] = {}
    for host, clock in zip(hosts, clocks):
        first.setdefault(host, clock)
    return [
        f"the wall clock of {host} is {at_s - clocks[0][0]:+.3g} s from that of {hosts[0]}"
        for host, (at_s, error_s) in first.items()
        if abs(at_s - clocks[0][0]) > MOST_SKEW_S + error_s
    ]


@dataclass(frozen=True)
class ClockDrift:
    """How a rank's clock is turned into rank 0's when both ends of a time are known.

    ``stretched(t) + offset_ns`` is rank 0's clock when the rank's own is t.
    """

    offset_ns: int
    error_ns: int
    since_ns: int = 0
    rate: float = 0.0  # by which rank 0's clock runs faster

    def stretched(self, own_ns: np.ndarray) -> np.ndarray:
        """Return times of the rank's clock as they were without drift."""
        return own_ns + np.rint((own_ns - self.since_ns) * self.rate).astype(np.int64)


def drift_between(first: ClockOffset, last: ClockOffset) -> ClockDrift:
    """Return how a clock went between two comparisons. Pure.

    Where one offset fits both, the clock is taken to be steady: half of what fits is the error.
    Else it is taken to drift evenly.
    """
    least = max(first.offset_ns - first.error_ns, last.offset_ns - last.error_ns)
    most = min(first.offset_ns + first.error_ns, last.offset_ns + last.error_ns)
    if least <= most:
        steady = _narrowed(least, most)
        return ClockDrift(steady.offset_ns, steady.error_ns)
    passed = max(1, last.at_ns - first.at_ns)
    rate = (last.offset_ns - first.offset_ns) / passed
    error_ns = max(first.error_ns, last.error_ns)
    return ClockDrift(first.offset_ns, error_ns, first.at_ns, rate)


def offset_from(rounds: Iterable[tuple[int, int, int]]) -> ClockOffset:
    """Return the offset that fits all rounds: (asked, rank 0's time, answered).

    Rank 0 answered between the two others, so each round bounds the offset from both sides.
    """
    least, most, at = -(2**62), 2**62, 0
    for asked_ns, remote_ns, answered in rounds:
        least, most, at = (
            max(least, remote_ns - answered),
            min(most, remote_ns - asked_ns),
            answered,
        )
    offset = _narrowed(least, most)
    return ClockOffset(offset.offset_ns, offset.error_ns, at)


def _narrowed(least: int, most: int) -> ClockOffset:
    """Return the offset between two bounds; 0 if it is: clocks that may be the same are."""
    if least <= 0 <= most:
        return ClockOffset(0, max(-least, most))
    return ClockOffset((least + most) // 2, (most - least + 1) // 2)


def clock_name() -> str:
    """Return a name of the clock that this process reads; empty where the system does not say.

    Processes of one boot of one machine read the same, unless one has a separate time namespace.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    with contextlib.suppress(FileNotFoundError):  # as in a kernel without such namespaces
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    return boot


def clock_offset(
    transport: Transport, name_of_clock: Callable[[], str] = clock_name
) -> ClockOffset:
    """Return the offset of this rank. Collective, while no other messages are under way.

    The first rank of each other clock compares it with rank 0's, for all that read it.
    """
    names = [name.decode() for name in transport.allgather_bytes(name_of_clock().encode())]
    firsts = [k for k in range(1, transport.size) if _reads_another(names, k)]
    base = ClockOffset(0, 0, time.monotonic_ns())
    if transport.rank == 0:
        for peer in firsts:
            _answer(transport, peer)
    elif transport.rank in firsts:
        base = _ask(transport)
    offsets = transport.allgather_bytes(_OFFSET.pack(base.offset_ns, base.error_ns, base.at_ns))
    name = names[transport.rank]
    source = names.index(name) if name else transport.rank
    return ClockOffset(*_OFFSET.unpack(offsets[source]))


def _reads_another(names: list[str], rank: int) -> bool:
    """Return whether a rank is the first with its clock, as far as that is known."""
    return not names[rank] or names.index(names[rank]) == rank


@waits_for_cause(Cause.START)
def _describe() -> str:
    return "the comparison of clocks with rank 0's"


def _answer(transport: Transport, peer: int) -> None:
    ask, clock = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for _ in range(ROUNDS):
        transport.wait_all([transport.irecv(ask, peer, TAG)], _describe)
        clock[0] = time.monotonic_ns()
        transport.wait_all([transport.isend(clock, peer, TAG)], _describe)


def _ask(transport: Transport) -> ClockOffset:
    ask, clock = np.zeros(1, np.int64), np.zeros(1, np.int64)
    rounds = []
    for _ in range(ROUNDS):
        answer = transport.irecv(clock, 0, TAG)
        asked_ns = time.monotonic_ns()
        transport.wait_all([transport.isend(ask, 0, TAG), answer], _describe)
        rounds.append((asked_ns, int(clock[0]), time.monotonic_ns()))
    return offset_from(rounds)
