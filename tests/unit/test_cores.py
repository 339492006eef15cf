"""Sharing a host's cores: a trainer and its server on each, nothing bound where all have room."""

import pytest

from hpcdist.comm.cluster import Cluster
from hpcdist.launch.cores import core_of, threads_per_rank

TWO_AND_TWO = Cluster((0, 1), (2, 3))


@pytest.mark.parametrize(("rank", "core"), [(0, 4), (1, 6), (2, 4), (3, 6)])
def test_trainer_and_server_of_one_index_share_a_core(rank, core):
    assert core_of(rank, ["a"] * 4, TWO_AND_TWO, {6, 4}) == core


def test_nobody_is_bound_where_every_rank_can_have_a_core():
    assert core_of(0, ["a"] * 4, TWO_AND_TWO, {0, 1, 2, 3}) is None
    assert core_of(0, ["a", "b", "a", "b"], TWO_AND_TWO, {0, 1}) is None


def test_ranks_of_a_kind_spread_over_the_cores_of_their_own_host():
    cluster = Cluster(tuple(range(6)), (6, 7))
    hosts = ["a", "b", "a", "b", "a", "b", "a", "b"]
    assert [core_of(r, hosts, cluster, {0, 1, 2}) for r in (0, 2, 4, 6)] == [0, 1, 2, 0]


@pytest.mark.parametrize(("ranks", "cores", "threads"), [(4, 2, 1), (2, 16, 8), (1, 3, 3)])
def test_threads_are_a_share_of_the_cores(ranks, cores, threads):
    assert threads_per_rank(ranks, cores) == threads
