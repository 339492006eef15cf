from __future__ import annotations

import shutil
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest

from hpcdist.comm import mpi
from hpcdist.comm.mpi import MpiTransport
from hpcdist.comm.progress import CROWDED, ROOMY
from hpcdist.comm.world import mpi_world
from hpcdist.errors import CommError, DeadlineError
from tests.cases.transport import LIMIT_S, Body, TransportTests, nothing
from tests.support.mpi_ranks import run_ranks

pytestmark = pytest.mark.mpi


class TestMpi(TransportTests):
    def run(self, size: int, body: Body) -> None:
        run_ranks(size, body)


def test_ranks_share_no_memory_where_mpi_has_no_room_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = SimpleNamespace(free=mpi.WINDOW_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert mpi_world().share(64) is None


@pytest.mark.mpi(min_size=2)
def test_mpich_without_communicators_left_says_what_to_do() -> None:
    from mpi4py import MPI

    if "MPICH" not in MPI.Get_library_version():
        pytest.skip("Open MPI has no bound that is reached within seconds")
    world = mpi_world().split(0, mpi_world().rank)
    with pytest.raises(CommError, match="no communicator left.*make groups once"):
        for _ in range(3000):
            world.split(0, world.rank)
    world.free()
    mpi_world().split(0, mpi_world().rank).free()


def test_the_world_is_made_once():
    assert mpi_world() is mpi_world()


@pytest.mark.parametrize("own", [0, 300, 1000, 2500])
def test_more_bytes_of_all_ranks_than_a_count_tells(
    own: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "MOST_BYTES", 1000)

    def body(t: MpiTransport) -> None:
        data = [bytes([k]) * own * (k + 1) for k in range(t.size)]
        assert t.allgather_bytes(data[t.rank]) == data
        assert t.allgather_bytes(data[0] if not t.rank else b"") == [data[0]] + [b""] * (t.size - 1)

    run_ranks(mpi_world().size, body)


@pytest.mark.parametrize("nbytes", [1001, 1024, 5000])
def test_messages_of_more_bytes_than_a_count_tells(
    nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "MOST_BYTES", 1000)
    monkeypatch.setattr(mpi, "BLOCK_BYTES", 256)
    sent = np.arange(nbytes).astype(np.uint8)

    def body(t: MpiTransport) -> None:
        right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
        longer = np.zeros(nbytes + 300, np.uint8)
        sends = [t.send_init(sent, right, 1), t.isend(sent, right, 2)]
        t.start(sends[:1])
        while (probed := t.iprobe(left, 1)) is None:
            pass
        assert probed == (left, nbytes)
        receives = [t.recv_init(longer, left, 1)]
        t.start(receives)
        t.wait_all(receives, nothing, LIMIT_S)
        assert (longer[:nbytes] == sent).all()
        assert not longer[nbytes:].any()
        exact = np.zeros(nbytes, np.uint8)
        t.wait_all([t.irecv(exact, left, 2), *sends], nothing, LIMIT_S)
        assert (exact == sent).all()
        t.release([*receives, *sends[:1]])
        exact[:] = sent if t.rank == 0 else 0
        t.broadcast(exact)
        assert (exact == sent).all()

    run_ranks(mpi_world().size, body)


@pytest.mark.parametrize("policy", [ROOMY, CROWDED], ids=["roomy", "crowded"])
def test_a_waiting_rank_leaves_the_core_to_others(policy):
    def body(t):
        t.policy = policy
        request = t.recv_init(np.zeros(1), t.rank, 1)
        t.start([request])
        busy = time.process_time()
        with pytest.raises(DeadlineError):
            t.wait_all([request], nothing, 1.0)
        busy = time.process_time() - busy
        t.release([request])
        # It takes 0.1 s, and more of it where system calls are slow.
        assert busy < 0.5 * 1.0, f"a wait of 1 s took {busy:.2f} s of processor time"

    run_ranks(mpi_world().size, body)


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
                t.waiter_some([request], nothing, LIMIT_S)()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        t.release([request])

    run_ranks(1, body)
