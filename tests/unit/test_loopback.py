from __future__ import annotations

import numpy as np
import pytest

from hpcdist.comm import loopback
from hpcdist.errors import CommError, DeadlineError
from tests.cases.transport import Body, TransportTests, nothing
from tests.support.threads import run_threads


class TestLoopback(TransportTests):
    def run(self, size: int, body: Body) -> None:
        run_threads([lambda t=t: body(t) for t in loopback.world(size)])


def test_a_send_ends_only_with_its_receive():
    sender, _ = loopback.world(2)
    request = sender.isend(np.zeros(1), 1, 0)
    with pytest.raises(DeadlineError):
        sender.wait_all([request], nothing, 0.05)


def test_a_request_cannot_be_started_twice():
    sender, _ = loopback.world(2)
    request = sender.send_init(np.zeros(1), 1, 0)
    sender.start([request])
    with pytest.raises(CommError, match="started twice"):
        sender.start([request])


def test_abort_ends_the_waits_of_all_ranks():
    world = loopback.world(3)

    def waits(t):
        with pytest.raises(CommError, match="rank 2 aborted the job with code 3"):
            t.barrier()

    def aborts():
        world[2].abort(3)

    run_threads([lambda: waits(world[0]), lambda: waits(world[1]), aborts])
