"""What trainers do together to save and restore, over ranks that are threads."""

from __future__ import annotations

import pytest

from hpcdist.comm.cluster import Cluster
from hpcdist.errors import DeadlineError
from hpcdist.runtime.job.checkpoint_peers import JobPeers
from tests.support.threads import run_in_world


def unused(*_):
    raise AssertionError("nothing is saved yet")


def test_a_trainer_that_does_not_come_to_a_checkpoint_is_not_waited_for_without_end():
    def body(transport):
        rest = dict.fromkeys(("program", "settle", "catch_up", "resume", "complete"), unused)
        peers = JobPeers(set(), Cluster((0, 1), ()), transport, None, 60.0, trained=(), **rest)
        assert len(peers.gather(b"first")) == 2
        if transport.rank == 0:
            with pytest.raises(DeadlineError, match="part of a checkpoint.*within 600 s"):
                peers.gather(b"second")
            told.append(True)

    told = []
    run_in_world(2, body)
    assert told
