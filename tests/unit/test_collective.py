"""Groups over ranks that are threads; what a rank does that is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.comm.host_collective import HostCollective
from hpcdist.comm.loopback import world
from hpcdist.errors import CommError, DeadlineError
from tests.cases.collective import Body, HostCollectiveTests
from tests.support.threads import run_in_world, run_threads


class TestLoopbackCollective(HostCollectiveTests):
    def run(self, size: int, body: Body) -> None:
        run_threads([lambda t=t: body(HostCollective(t)) for t in world(size)])


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_a_rank_that_does_not_come_is_named_by_the_deadline(absent):
    def body(transport):
        group = HostCollective(transport, deadline_s=1.0)
        shared = group.empty(40_000).view(np.float32)
        arrays = [np.zeros(10_000, np.float32), np.zeros(4, np.float32), shared]
        said = "fc_0.w_0@GRAD"
        reductions = [group.allreduce_init(a, describe=lambda: said) for a in arrays]
        kept.append((group, reductions))  # the others use its memory
        if transport.rank == absent:
            return
        missing = (rf"from rank {absent}:", "from rank", rf"from rank {absent}:")
        for reduction, named in zip(reductions, missing):
            reduction.start()
            assert not reduction.test()
            with pytest.raises(DeadlineError, match=rf"{said}, {named}.*within 1 s"):
                reduction.wait()
        told.append(transport.rank)

    told, kept = [], []
    run_in_world(3, body)
    assert len(told) == 2


def test_an_abort_ends_waits_of_other_ranks():
    def body(transport):
        group = HostCollective(transport)
        array = group.empty(400).view(np.float32)
        reduction = group.allreduce_init(array)
        if transport.rank == 0:
            reduction.start()
            with pytest.raises(CommError, match="rank 1 aborted"):
                reduction.wait()
        else:
            group.abort()

    run_threads([lambda t=t: body(t) for t in world(2)])
