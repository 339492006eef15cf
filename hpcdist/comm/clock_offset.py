"""How far the clock of each rank is from rank 0's, found by messages there and back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hpcdist.comm.base import Transport
from hpcdist.trace.events import Cause, waits_for_cause

ROUNDS = 16
TAG = 0  # at the start no other message is under way


@dataclass(frozen=True)
class ClockOffset:
    """What to add to this rank's monotonic clock to have rank 0's; both in nanoseconds."""

    offset_ns: int
    error_ns: int


def offset_from(rounds: Iterable[tuple[int, int, int]]) -> ClockOffset:
    """Return the offset that fits all rounds: (asked, rank 0's time, answered).

    Rank 0 answered between the two others, so each round bounds the offset from both sides. An
    offset of 0 that fits is taken: ranks of one host read the same clock.
    """
    least, most = -(2**62), 2**62
    for asked, told, answered in rounds:
        least, most = max(least, told - answered), min(most, told - asked)
    if least <= 0 <= most:
        return ClockOffset(0, max(-least, most))
    return ClockOffset((least + most) // 2, (most - least + 1) // 2)


def clock_offset(transport: Transport) -> ClockOffset:
    """Return the offset of this rank. Collective, while no other messages are under way."""
    ask, told = np.zeros(1, np.int64), np.zeros(1, np.int64)

    @waits_for_cause(Cause.START)
    def describe() -> str:
        return f"rank {transport.rank} comparing its clock with rank 0's"

    if transport.rank == 0:
        for peer in range(1, transport.size):
            for _ in range(ROUNDS):
                transport.wait_all([transport.irecv(ask, peer, TAG)], describe)
                told[0] = time.monotonic_ns()
                transport.wait_all([transport.isend(told, peer, TAG)], describe)
        return ClockOffset(0, 0)
    rounds = []
    for _ in range(ROUNDS):
        answer = transport.irecv(told, 0, TAG)
        asked = time.monotonic_ns()
        transport.wait_all([transport.isend(ask, 0, TAG), answer], describe)
        rounds.append((asked, int(told[0]), time.monotonic_ns()))
    return offset_from(rounds)
