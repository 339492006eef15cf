"""Groups of GPUs over stand-ins for cupy and NCCL: what is called, in which order, and errors."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base.device import download
from hpcdist.comm import nccl
from hpcdist.comm.device import AwareCollective, StagedCollective
from hpcdist.comm.groups import AllreduceOptions, make_groups
from hpcdist.comm.hierarchy import HierarchicalCollective
from hpcdist.comm.host_collective import HostCollective
from hpcdist.comm.loopback import LoopbackTransport, world
from hpcdist.comm.nccl import NcclCollective
from hpcdist.comm.watchdog import Watchdog
from hpcdist.errors import CommError, DeadlineError
from hpcdist.executor import control
from tests.cases.collective import Body, CollectiveTests
from tests.support.nccl import install, to_device
from tests.support.thread_jobs import ranks_as_threads
from tests.support.threads import LIMIT_S, run_in_world, run_threads


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    return install(monkeypatch)


def group_of(transport, deadline_s=LIMIT_S):
    return HostCollective(transport, deadline_s).group


class DeviceCollectiveTests(CollectiveTests):
    to = staticmethod(to_device)

    def host(self, array):
        return download(array)


class TestNccl(DeviceCollectiveTests):
    def run(self, size: int, body: Body) -> None:
        run_threads([lambda t=t: body(NcclCollective(group_of(t), t.rank)) for t in world(size)])


class TestNcclOfCupy13(TestNccl):
    @pytest.fixture(autouse=True)
    def older(self, monkeypatch):
        install(monkeypatch, cupy_major=13, version=22105)


class TestHierarchicalNccl(DeviceCollectiveTests):
    def run(self, size: int, body: Body) -> None:
        way = AllreduceOptions(use_hierarchical_allreduce=True)

        def make(transport):
            (group,) = make_groups(transport, way, device_id=transport.rank, deadline_s=LIMIT_S)
            body(group)

        hosts = [rank // 2 for rank in range(size)]
        run_threads([lambda t=t: make(t) for t in world(size, hosts)])


class TestAware(DeviceCollectiveTests):
    """Over ranks whose messages may lie in the memory of a GPU, as those of some MPIs may."""

    @pytest.fixture(autouse=True)
    def aware(self, monkeypatch):
        summed = LoopbackTransport.iallreduce
        monkeypatch.setattr(LoopbackTransport, "takes_device_memory", True)
        monkeypatch.setattr(
            LoopbackTransport,
            "iallreduce",
            lambda t, array: summed(t, getattr(array, "_view", array)),
        )

    def run(self, size: int, body: Body) -> None:
        run_threads([lambda t=t: body(AwareCollective(HostCollective(t))) for t in world(size)])


class TestStaged(DeviceCollectiveTests):
    def run(self, size: int, body: Body) -> None:
        run_threads([lambda t=t: body(StagedCollective(HostCollective(t))) for t in world(size)])


def test_work_on_the_stream_is_behind_the_kernels_and_ahead_of_the_end(cupy):
    def body(transport):
        group = NcclCollective(group_of(transport), transport.rank)
        array = to_device(np.full(4, transport.rank, np.float32))
        reduction = group.allreduce_init(array)
        late = threading.Event()
        cupy.cuda.get_current_stream()  # a kernel that has not ended yet: nothing may overtake it
        array.get()
        cupy.cuda.get_current_stream().push(late.is_set)
        reduction.start()
        assert not reduction.test()
        late.set()
        reduction.wait()
        assert (download(array) == 1).all()
        group.close()

    run_threads([lambda t=t: body(t) for t in world(2)])
    assert all(comm.destroyed and not comm.aborted for comm in cupy.nccl.made)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_sum_keeps_its_array(ordered):
    def body(transport):
        group = NcclCollective(group_of(transport), transport.rank)
        array = to_device(np.ones(4, np.float32))
        reduction = group.allreduce_init(array, ordered=ordered, describe=lambda: "a bucket")
        memory = weakref.ref(array._memory)
        del array
        assert memory() is not None, f"{reduction} knows the address of what is freed"

    run_threads([lambda t=t: body(t) for t in world(2)])


def test_a_rank_that_does_not_come_ends_in_an_abort(cupy):

    def body(transport):
        # Communicators are made by threads for which the clock does not stand still.
        group = NcclCollective(group_of(transport, None), transport.rank)
        group.group = replace(group.group, deadline_s=2.0)
        array = to_device(np.zeros(4))
        reduction = group.allreduce_init(array, describe=lambda: "bucket 3")
        if transport.rank:
            return
        reduction.start()
        reduction.wait()  # returns: kernels wait
        with pytest.raises(
            DeadlineError, match=r"rank 0 waiting for bucket 3, from rank 1:.*within 2 s"
        ):
            download(array)
        with pytest.raises(CommError, match="cannot be used: rank 0 waiting for bucket 3"):
            group.comm.check_async_error()

    run_in_world(2, body)
    assert [comm.aborted for comm in cupy.nccl.made].count(True) == 1


def test_a_host_that_is_stuck_in_a_call_of_cudas_is_freed(cupy, monkeypatch):
    monkeypatch.setattr(nccl, "WATCHDOG", Watchdog(grace_s=0))

    def body(transport):  # rank 0 on GPU 1, which no thread has that has chosen none
        group = NcclCollective(group_of(transport), 1 - transport.rank)
        group.group = replace(group.group, deadline_s=0.05)  # that of what follows
        array = to_device(np.zeros(4))
        reduction = group.allreduce_init(array, describe=lambda: "bucket 3")
        if transport.rank:
            return
        reduction.start()
        reduction.wait()
        assert np.isnan(array.get()).all()  # returns once the communicator is aborted, with poison
        with pytest.raises(CommError, match="waiting for bucket 3, from rank 1: nothing came"):
            download(array)

    run_threads([lambda t=t: body(t) for t in world(2)])


def test_nccl_is_not_asked_for_errors_while_another_thread_gives_its_communicator_up(cupy):
    """It frees the communicator that is asked."""

    def body(transport):
        group = NcclCollective(group_of(transport), transport.rank)
        comm, ask, freed_meanwhile = group.comm, group.comm.check_async_error, []
        other = threading.Thread(target=group.give_up, args=["it is late"])

        def asked():
            other.start()
            other.join(0.05)
            freed_meanwhile.append(comm.aborted)
            ask()

        comm.check_async_error = asked
        group.check()
        other.join(LIMIT_S)
        assert freed_meanwhile == [False] and comm.aborted
        with pytest.raises(CommError, match="cannot be used: it is late"):
            group.check()

    run_threads([lambda t=t: body(t) for t in world(2)])


def test_an_error_that_nccl_notices_later_is_raised_while_waiting(cupy):
    def body(transport):
        group = NcclCollective(group_of(transport), transport.rank)
        reduction = group.allreduce_init(to_device(np.zeros(4)))
        if transport.rank == 0:
            reduction.start()
            (clique,) = cupy.nccl.cliques.values()
            clique.error = 6
            with pytest.raises(CommError, match=r"rank 0: NCCL failed: NCCL_ERROR_6.*NCCL_DEBUG"):
                reduction.settle()

    run_threads([lambda t=t: body(t) for t in world(2)])


def test_a_communicator_that_is_not_made_in_time_is_an_error(cupy, monkeypatch):
    made = threading.Event()
    monkeypatch.setattr(cupy.nccl, "NcclCommunicator", lambda *_: made.wait(LIMIT_S))

    def body(transport):
        with pytest.raises(DeadlineError, match="waiting for an NCCL communicator"):
            NcclCollective(group_of(transport, 2.0), transport.rank)

    run_in_world(2, body)
    made.set()


def test_what_fails_on_one_rank_is_raised_on_all(cupy):
    def body(transport):
        def device(index):
            if index == 1:
                raise RuntimeError("cudaErrorInvalidDevice")
            return found(index)

        if transport.rank == 0:
            cupy.cuda.Device = device
        transport.barrier()
        with pytest.raises(CommError, match="cannot use NCCL: rank 1: cudaErrorInvalidDevice"):
            NcclCollective(group_of(transport), transport.rank)

    found = cupy.cuda.Device
    run_threads([lambda t=t: body(t) for t in world(2)])


def test_without_nccl_it_says_what_to_install(cupy):
    cupy.nccl.available = False
    (alone,) = world(1)
    with pytest.raises(CommError, match="rank 0: cupy finds no NCCL: install nvidia-nccl-cu12"):
        NcclCollective(group_of(alone), 0)


@pytest.mark.parametrize(
    ("version", "share", "refused"), [(23007, "1", False), (23007, "", True), (22105, "1", True)]
)
def test_ranks_on_one_gpu(monkeypatch, version, share, refused):
    install(monkeypatch, version=version, gpus=1)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", share)

    def body(transport):
        def make():
            return NcclCollective(group_of(transport), transport.rank)

        if not refused:
            make().close()
            return
        with pytest.raises(CommError, match=r"ranks 0, 1 use one GPU .*HPCDIST_ALLREDUCE=mpi"):
            make()

    run_threads([lambda t=t: body(t) for t in world(2)])


def test_a_value_is_had_after_the_group_that_summed_it_was_closed():
    def body(transport):
        group = NcclCollective(group_of(transport), transport.rank)
        array = to_device(np.ones(4, np.float32))
        reduction = group.allreduce_init(array)
        reduction.start()
        reduction.wait()
        group.close()
        assert (download(array) == 2).all()
        with pytest.raises(CommError, match="it is closed"):
            group.allreduce_init(array).start()

    run_threads([lambda t=t: body(t) for t in world(2)])


def test_closing_and_aborting_two_levels_ends_all_their_communicators(cupy):
    way = AllreduceOptions(use_hierarchical_allreduce=True)

    def run(end):
        before = len(cupy.nccl.made)

        def body(transport):
            (group,) = make_groups(transport, way, device_id=transport.rank)
            group.barrier()
            end(group)

        run_threads([lambda t=t: body(t) for t in world(4, [0, 0, 1, 1])])
        return cupy.nccl.made[before:]

    made = run(lambda group: group.close())
    assert len(made) == 10  # 4 of all, 2 on each of 2 nodes, 2 leaders
    assert all(comm.destroyed and not comm.aborted for comm in made)
    assert all(comm.aborted for comm in run(lambda group: group.abort()))


def test_a_job_destroys_its_communicators_when_all_scripts_have_ended(cupy):
    def training(rank):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [3]), 1))
            fluid.optimizer.SGD(0.1).minimize(loss)

        def script():
            exe = fluid.Executor(fluid.CUDAPlace(rank))
            exe.run(startup)
            feed = {"x": np.ones((4, 3), np.float32)}
            losses = [exe.run(main, feed, [loss])[0][0] for _ in range(2)]
            assert not any(comm.destroyed for comm in cupy.nccl.made)
            control.installed().job.end_together()
            return losses

        return script

    with ranks_as_threads() as run:
        one, other = run(2, 0, [training(rank) for rank in range(2)])
    assert one == other and one[0] > one[1]
    assert len(cupy.nccl.made) == 2
    assert all(comm.destroyed and not comm.aborted for comm in cupy.nccl.made)


def test_groups_of_a_job():
    def body(transport):
        rank = transport.rank
        one, two = make_groups(transport, AllreduceOptions(nccl_comm_num=2), device_id=rank)
        assert isinstance(one, NcclCollective) and one.comm is not two.comm
        (host,) = make_groups(transport, AllreduceOptions(nccl_comm_num=2))
        assert isinstance(host, HostCollective)
        (levels,) = make_groups(transport, AllreduceOptions(use_hierarchical_allreduce=True))
        assert isinstance(levels, HierarchicalCollective)
        (staged,) = make_groups(transport, AllreduceOptions(carrier="mpi"), device_id=rank)
        assert type(staged) is StagedCollective
        with pytest.raises(CommError, match=r"MPI was built without CUDA on rank 0, 1 "):
            make_groups(transport, AllreduceOptions(carrier="mpi-cuda-aware"), device_id=rank)

    run_threads([lambda t=t: body(t) for t in world(2)])
    with pytest.raises(CommError, match="nccl_comm_num: expected 1 or more, got 0"):
        AllreduceOptions(nccl_comm_num=0)
