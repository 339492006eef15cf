"""Sharing a host's cores among its ranks."""

import pytest

from hpcdist.comm.progress import threads_per_rank


@pytest.mark.parametrize(
    ("ranks", "usable", "present", "threads"),
    [(4, 2, 2, 1), (2, 16, 16, 8), (1, 3, 3, 3), (4, 4, 16, 4)],
)
def test_threads_are_a_share_of_the_cores(ranks, usable, present, threads):
    assert threads_per_rank(ranks, usable, present) == threads
