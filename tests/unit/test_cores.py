"""Sharing a host's cores among its ranks."""

import pytest

from hpcdist.comm.progress import threads_per_rank
from hpcdist.launch.cores import own_core


@pytest.mark.parametrize(
    ("ranks", "usable", "present", "threads"),
    [(4, 2, 2, 1), (2, 16, 16, 8), (1, 3, 3, 3), (4, 4, 16, 4)],
)
def test_threads_are_a_share_of_the_cores(ranks, usable, present, threads):
    assert threads_per_rank(ranks, usable, present) == threads


@pytest.mark.parametrize(
    ("cores", "own"),
    [
        ([[0, 1]] * 4, [0, 1, 0, 1]),
        ([[2, 5, 7]] * 6, [2, 5, 7, 2, 5, 7]),
        ([[3]] * 2, [3, 3]),
        ([[0, 1]] * 2, [None] * 2),  # enough
        ([[0, 1]] * 3, [None] * 3),  # no equal shares
        ([[0, 1], [0, 1], [2, 3], [2, 3]], [None] * 4),  # a launcher has divided them
    ],
)
def test_ranks_that_share_cores_stay_on_them_in_equal_numbers(cores, own):
    assert [own_core(place, cores) for place in range(len(cores))] == own
