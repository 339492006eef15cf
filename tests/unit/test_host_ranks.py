"""Whether a job goes on without a rank of this host that has died."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from hpcdist import runtime
from hpcdist.comm.cluster import Cluster
from hpcdist.launch import host_ranks
from hpcdist.launch.report import Peer


def beside_another(monkeypatch, tolerant):
    """Return the ranks of a host as one sees them that has not begun, and the other one."""
    roles = Cluster((0, 1))
    me, other = (Peer(rank, roles.role_of(rank), "here", os.getpid()) for rank in (0, 1))
    board = SimpleNamespace(all=lambda fact, rank=-1: [])
    monkeypatch.setattr(runtime, "has_begun", lambda: False)
    return host_ranks.HostRanks(me, [me, other], board, tolerant), other


@pytest.mark.parametrize(("tolerant", "fate"), [(True, None), (False, False)])
def test_a_rank_that_has_not_begun_waits_until_it_knows(monkeypatch, tolerant, fate):
    """Another may have been quicker: it has begun, trained and died."""
    ranks, other = beside_another(monkeypatch, tolerant)
    assert ranks.goes_on_without(other) is fate
    monkeypatch.setattr(runtime, "goes_on_without", lambda rank: True)
    monkeypatch.setattr(runtime, "has_begun", lambda: True)
    assert ranks.goes_on_without(other) is True


def test_a_rank_that_cannot_begin_says_in_the_end_who_has_died(monkeypatch):
    ranks, other = beside_another(monkeypatch, tolerant=True)
    monkeypatch.setattr(host_ranks, "BEGINS_S", 0.0)
    assert ranks.goes_on_without(other) is False
