"""How far clocks are from each other."""

from __future__ import annotations

from hpcdist.comm.clock_offset import ClockOffset, clock_offset, offset_from
from tests.threads import run_in_world


def test_every_round_bounds_the_offset_from_both_sides():
    # Rank 0's clock is 1000 ahead; the ways there and back take other times in each round.
    ways = [(40, 400), (500, 10), (90, 90)]
    rounds = [(t, t + there + 1000, t + there + back) for t, (there, back) in enumerate(ways)]
    found = offset_from(rounds)
    assert found == ClockOffset(1000 + (40 - 10) // 2, 25)
    assert abs(found.offset_ns - 1000) <= found.error_ns


def test_clocks_that_may_be_the_same_are_taken_to_be():
    assert offset_from([(0, 30, 50), (100, 110, 120)]) == ClockOffset(0, 10)


def test_all_ranks_compare_their_clocks_with_rank_0s():
    found = {}

    def compare(transport):
        found[transport.rank] = clock_offset(transport)

    run_in_world(3, compare)
    assert found[0] == ClockOffset(0, 0)
    assert {found[1].offset_ns, found[2].offset_ns} == {0}  # threads read one clock
    assert found[1].error_ns > 0
