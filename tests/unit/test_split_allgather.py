from __future__ import annotations

import numpy as np
import pytest

from hpcdist.comm import loopback
from hpcdist.comm.collective import RankGroup
from hpcdist.comm.split_allgather import split_allgather
from hpcdist.errors import DeadlineError
from tests.support.threads import run_threads

HOSTS = [[0, 0, 0], [0, 1, 0]]  # memory is shared; or notes are summed


def rounds_of(transport, deadline_s=20.0):
    names = tuple(range(10, 10 + transport.size))
    return split_allgather(RankGroup(transport, names, deadline_s), 16, lambda: "the notes")


@pytest.mark.parametrize("hosts", HOSTS)
def test_all_have_what_all_have_told_in_every_round(hosts):
    def body(transport):
        rounds = rounds_of(transport)
        for step in range(200):
            rounds.begin()
            rounds.notes[rounds.at][transport.rank] = step + transport.rank
            rounds.start(2**64 - 1 - step)
            assert rounds.wait()
            assert rounds.keys() == [2**64 - 1 - step] * 3
            wanted = np.repeat(np.arange(3, dtype=np.uint8)[:, None] + np.uint8(step), 16, 1)
            np.testing.assert_array_equal(rounds.notes[rounds.at], wanted)

    run_threads([lambda t=t: body(t) for t in loopback.world(3, hosts)])


@pytest.mark.parametrize("hosts", HOSTS)
def test_other_keys_are_told_and_a_round_that_nobody_waited_for_ends_with_the_next(hosts):
    def body(transport):
        rounds = rounds_of(transport)
        for step in range(50):
            rounds.begin()
            rounds.start(step + (transport.rank == 1))
            if step % 3:
                assert not rounds.wait()
                assert rounds.keys() == [step, step + 1, step]

    run_threads([lambda t=t: body(t) for t in loopback.world(3, hosts)])


@pytest.mark.parametrize("hosts", HOSTS)
def test_who_does_not_come_is_named(hosts):
    def body(transport):
        rounds = rounds_of(transport, 0.05)
        if transport.rank == 2:
            return
        rounds.begin()
        rounds.start(1)
        with pytest.raises(DeadlineError, match=r"waiting for the notes, from rank .*12"):
            rounds.wait()

    run_threads([lambda t=t: body(t) for t in loopback.world(3, hosts)])
