from __future__ import annotations

from hpcdist.ps.async_shards import AsyncShards
from hpcdist.ps.heartbeat import Heartbeat, Silence
from hpcdist.ps.shards import SyncShards


def test_a_silence_is_told_once_and_again_after_a_word():
    heartbeat = Heartbeat(2, interval_s=10)
    owing = [True, True]
    assert heartbeat.look(100, [0, 0], owing) == []
    assert heartbeat.look(109, [5, 0], owing) == []
    assert heartbeat.look(111, [6, 0], owing) == [Silence(1, 11)]
    assert heartbeat.look(130, [7, 0], owing) == []
    assert heartbeat.look(131, [7, 1], owing) == []
    assert heartbeat.look(140, [8, 1], owing) == []
    assert heartbeat.look(141, [9, 1], owing) == [Silence(1, 10)]


def test_whoever_waits_for_the_server_is_not_silent():
    heartbeat = Heartbeat(1, interval_s=10)
    heartbeat.look(0, [3], [True])
    assert heartbeat.look(50, [3], [False]) == []
    assert heartbeat.look(59, [3], [True]) == []
    assert heartbeat.look(60, [3], [True]) == [Silence(0, 10)]


def test_who_waits_in_synchronous_mode():
    shards = SyncShards(2, 2)
    assert not shards.waits(0)
    shards.arrived(0, 0)
    assert (shards.waits(0), shards.heard(0), shards.heard(1)) == (False, 1, 0)
    shards.arrived(0, 1)
    assert (shards.waits(0), shards.waits(1)) == (True, False)
    shards.arrived(1, 0)
    shards.arrived(1, 1)
    assert (shards.waits(0), shards.waits(1)) == (False, False)
    assert shards.heard(0) == shards.heard(1) == 2


def test_who_waits_when_staleness_is_bounded():
    shards = AsyncShards(2, 1, max_staleness=1)
    shards.arrived(0, 0)
    assert not shards.waits(0)
    shards.arrived(0, 0)
    assert (shards.waits(0), shards.heard(0)) == (True, 2)
    update = shards.died(1)  # nobody is behind any more
    assert [u.answers for u in update] == [((0, (0,)),)]
    assert not shards.waits(0)
    assert (shards.steps_of(0), shards.steps_of(1)) == (2, 0)
