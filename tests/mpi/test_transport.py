from __future__ import annotations

import signal
import time

import numpy as np
import pytest

from hpcdist.comm.mpi import MpiTransport
from hpcdist.comm.waiting import CROWDED, ROOMY
from hpcdist.errors import DeadlineError
from tests.mpi_ranks import run_ranks
from tests.transport_cases import LIMIT_S, Body, TransportTests, nothing

pytestmark = pytest.mark.mpi


class TestMpi(TransportTests):
    def run(self, size: int, body: Body) -> None:
        run_ranks(size, body)


def test_the_world_is_made_once():
    assert MpiTransport.world() is MpiTransport.world()


@pytest.mark.parametrize("policy", [ROOMY, CROWDED], ids=["roomy", "crowded"])
def test_a_waiting_rank_leaves_the_core_to_others(policy):
    def body(t):
        t._policy = policy
        request = t.recv_init(np.zeros(1), t.rank, 1)
        t.start([request])
        busy = time.process_time()
        with pytest.raises(DeadlineError):
            t.wait_all([request], nothing, 2.0)
        busy = time.process_time() - busy
        t.release([request])
        # It takes 0.1 s, and more of it where system calls are slow.
        assert busy < 0.5 * 2.0, f"a wait of 2 s took {busy:.2f} s of processor time"

    run_ranks(MpiTransport.world().size, body)


def test_signal_handlers_run_during_a_wait():
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    def body(t):
        request = t.recv_init(np.zeros(1), t.rank, 1)
        t.start([request])
        before = signal.signal(signal.SIGALRM, stop)
        try:
            with pytest.raises(Stop):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                t.wait_some([request], nothing, LIMIT_S)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        t.release([request])

    run_ranks(1, body)
