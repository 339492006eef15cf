"""How far clocks are from each other, at the start and later."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np

from hpcdist.comm import clock_offset as module
from hpcdist.comm.clock_offset import (
    ClockDrift,
    ClockOffset,
    clock_name,
    clock_offset,
    drift_between,
    offset_from,
    skewed,
)
from tests.support.threads import run_in_world


def test_every_round_bounds_the_offset_from_both_sides():
    # Rank 0's clock is 1000 ahead; the ways there and back take other times in each round.
    ways = [(40, 400), (500, 10), (90, 90)]
    rounds = [(t, t + there + 1000, t + there + back) for t, (there, back) in enumerate(ways)]
    found = offset_from(rounds)
    assert found == ClockOffset(1000 + (40 - 10) // 2, 25, 2 + 180)
    assert abs(found.offset_ns - 1000) <= found.error_ns


def test_clocks_that_may_be_the_same_are_taken_to_be():
    assert offset_from([(0, 30, 50), (100, 110, 120)]) == ClockOffset(0, 10, 120)


def compared(names):
    found = {}

    def compare(transport):
        found[transport.rank] = clock_offset(transport, lambda: names[transport.rank])

    run_in_world(len(names), compare)
    return [found[rank] for rank in range(len(names))]


def test_hosts_whose_wall_clocks_differ_are_named():
    clocks = [(100.0, 0.0), (100.4, 0.0), (97.5, 0.2), (97.5, 0.2), (102.0, 1.5)]
    assert skewed(["a", "a", "b", "b", "c"], clocks) == [
        "the wall clock of b is -2.5 s from that of a"
    ]
    ahead = ClockOffset(3 * 10**9, 0)
    difference = ClockOffset(0, 0).wall_clock_s() - ahead.wall_clock_s()
    assert abs(difference - 3) < 1


def test_ranks_of_one_host_read_one_clock_and_need_no_messages():
    name = clock_name()
    assert name and name == clock_name()
    assert [(c.offset_ns, c.error_ns) for c in compared([name] * 3)] == [(0, 0)] * 3


def test_the_first_rank_of_another_clock_compares_it_for_all_that_read_it():
    zero, own, first, second = compared(["a", "a", "b", "b"])
    assert (zero.error_ns, own.error_ns) == (0, 0)
    assert first == second and first.error_ns > 0
    assert first.offset_ns == 0  # threads read one clock, whatever it is called here


def test_ranks_that_do_not_know_their_clock_all_compare_it():
    zero, *others = compared(["", "", ""])
    assert zero.error_ns == 0
    assert all(clocks.error_ns > 0 for clocks in others)
    assert others[0].at_ns != others[1].at_ns


def test_a_clock_that_is_ahead_and_faster_is_followed(monkeypatch):
    real, here = time.monotonic_ns, threading.local()
    passed = threading.Event()
    found = {}

    def clock():
        """Rank 0's is 1000 s ahead, and gains 1 s when ``passed`` is set."""
        return real() + (here.rank == 0) * (10**12 + passed.is_set() * 10**9)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=clock))

    def compare(transport):
        here.rank = transport.rank
        first = clock_offset(transport, lambda: str(transport.rank))
        transport.barrier()
        passed.set()
        last = clock_offset(transport, lambda: str(transport.rank))
        found[transport.rank] = first, last

    run_in_world(2, compare)
    assert found[0][1].offset_ns == 0
    first, last = found[1]
    assert abs(first.offset_ns - 10**12) <= first.error_ns
    assert abs(last.offset_ns - 10**12 - 10**9) <= last.error_ns
    drift = drift_between(first, last)
    at = np.array([first.at_ns, last.at_ns])
    moved = drift.stretched(at) + drift.offset_ns - at
    assert np.abs(moved - [10**12, 10**12 + 10**9]).max() <= drift.error_ns + 1


def test_between_two_comparisons_a_steady_clock_is_known_better():
    first, last = ClockOffset(100, 40, 0), ClockOffset(160, 50, 10**9)
    assert drift_between(first, last) == ClockDrift(125, 15)
    assert drift_between(ClockOffset(0, 40, 5), ClockOffset(30, 90, 9)) == ClockDrift(0, 40)
    assert drift_between(first, first) == ClockDrift(100, 40)


def test_between_two_comparisons_an_even_drift_is_corrected():
    # It loses 20 us a second against rank 0's.
    first, last = ClockOffset(1000, 10, 5 * 10**9), ClockOffset(201_000, 30, 15 * 10**9)
    drift = drift_between(first, last)
    assert (drift.offset_ns, drift.error_ns) == (1000, 30)
    own = np.array([5, 10, 15, 20], np.int64) * 10**9
    shifted = drift.stretched(own) + drift.offset_ns
    assert (shifted - own).tolist() == [1000, 101_000, 201_000, 301_000]
    assert shifted.dtype == np.int64
