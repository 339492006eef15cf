"""What trainers do together to save and restore, over ranks that are threads."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from hpcdist.checkpoint.ranks import PATIENCE, done_by_first, together
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import DeadlineError
from hpcdist.runtime.job.checkpoint_peers import JobPeers
from tests.support.threads import run_in_world

DEADLINE_S = 0.5
OTHER_TAG = 77


def unused(*_):
    raise AssertionError("nothing is saved yet")


def run_as_trainers(body):
    """Run ``body(peers)`` on two trainers; what they wait for takes no time."""
    cluster = Cluster((0, 1), ())
    run_in_world(2, lambda t: body(JobPeers(set(), cluster, t, None, DEADLINE_S)))


def pass_time(peers, deadlines):
    """Let so many deadlines pass."""
    request = peers.group.irecv(np.zeros(1), 1 - peers.group.rank, OTHER_TAG)
    with pytest.raises(DeadlineError):
        peers.group.wait_all([request], lambda: "nothing", deadlines * DEADLINE_S)


def save_by_first(peers, do, folder):
    done_by_first(peers, "save", folder, "model", do, unused)


# What all trainers do, or trainer 0 for all, and how a wait for it is called.
TOGETHER = {
    "together": (
        lambda peers, do, folder: together(peers, do if peers.trainer == 0 else lambda: None),
        "part of a checkpoint",
    ),
    "by trainer 0": (save_by_first, "trainer 0 to save .*model"),
}


@pytest.mark.parametrize("how", TOGETHER)
def test_who_does_not_come_to_a_save_is_named_within_the_deadline(how, tmp_path):
    save, awaited = TOGETHER[how]

    def body(peers):
        if peers.trainer == 1:
            with pytest.raises(DeadlineError, match=f"{awaited}.*within {DEADLINE_S:g} s") as late:
                save(peers, unused, tmp_path)
            named.append(late.value.missing)

    named = []
    run_as_trainers(body)
    assert named == [(0,)]


@pytest.mark.parametrize("how", TOGETHER)
def test_who_has_come_may_take_many_deadlines_to_write(how, tmp_path):
    save, _ = TOGETHER[how]

    def body(peers):
        save(peers, partial(pass_time, peers, PATIENCE // 2), tmp_path)
        ended.append(peers.trainer)

    ended = []
    run_as_trainers(body)
    assert sorted(ended) == [0, 1]


@pytest.mark.parametrize("how", TOGETHER)
def test_who_never_ends_to_write_is_named_too(how, tmp_path):
    save, awaited = TOGETHER[how]

    def body(peers):
        if peers.trainer == 0:
            with suppress(DeadlineError):  # the other has given up
                save(peers, partial(pass_time, peers, PATIENCE + 1), tmp_path)
        else:
            with pytest.raises(DeadlineError, match=f"{awaited}.*within 5 s") as late:
                save(peers, unused, tmp_path)
            named.append(late.value.missing)

    named = []
    run_as_trainers(body)
    assert named == [(0,)]
