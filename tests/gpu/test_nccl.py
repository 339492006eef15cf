"""On real GPUs: groups over NCCL, and over MPI through pinned memory. Skipped without one.

NCCL_MULTI_RANK_GPU_ENABLE=1 mpirun -n 4 python -m pytest tests/gpu     # NCCL 2.30, one GPU
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.comm.groups import Way, make_groups
from hpcdist.comm.nccl import SHARED_GPU_FROM
from tests.collective_cases import Body, CollectiveTests
from tests.gpu.gpus import missing
from tests.mpi.device_jobs import check_losses
from tests.mpi_ranks import run_ranks

SHARE_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing() or "never"), pytest.mark.mpi]


def gpus() -> int:
    import cupy

    count: int = cupy.cuda.runtime.getDeviceCount()
    return count


def skip_unless_nccl_has(ranks: int) -> None:
    """Skip a test whose ranks NCCL cannot have on the GPUs that are there."""
    from cupy.cuda import nccl

    if not nccl.available:
        pytest.skip("cupy finds no NCCL")
    shared = os.environ.get(SHARE_VARIABLE) == "1"
    if ranks > gpus() and not (shared and nccl.get_version() >= SHARED_GPU_FROM):
        pytest.skip(f"{ranks} ranks on {gpus()} GPUs need NCCL 2.30 and {SHARE_VARIABLE}=1")


class DeviceTests(CollectiveTests):
    exact_order = True
    way = Way()

    def run(self, size: int, body: Body) -> None:
        if self.way.carrier == "nccl":
            skip_unless_nccl_has(size)

        def make(transport):
            device = transport.on_host().rank % gpus()
            (group,) = make_groups(transport, self.way, device, deadline_s=60)
            body(group)
            group.close()

        run_ranks(size, make)

    def to(self, array):
        import cupy

        return cupy.asarray(array)

    def host(self, array):
        return array.get()

    def test_bucket_allreduce_follow_the_kernels_that_write_the_array(self) -> None:
        def body(group):
            array = self.to(np.zeros(5_000_000, np.float32))
            reduction = group.allreduce_init(array)
            for step in range(5):
                array.fill(0)
                for _ in range(20):
                    array += group.rank + step
                reduction.start()
                reduction.wait()
                array *= 2
                assert (self.host(array) == 40 * (1 + 2 * step)).all()

        self.run(2, body)


class TestNccl(DeviceTests):
    pass


class TestHierarchicalNccl(DeviceTests):
    way = Way(use_hierarchical_allreduce=True)

    @pytest.mark.parametrize("by", [2])
    def test_in_two_levels(self, by: int) -> None:
        def body(group):
            array = self.to(np.full(1000, group.rank, np.float32))
            reduction = group.allreduce_init(array)
            for _ in range(12):  # measures both ways, then goes on with one
                array.fill(group.rank)
                reduction.start()
                reduction.wait()
                assert (self.host(array) == 6).all()

        self.way = Way(use_hierarchical_allreduce=True, hierarchical_allreduce_inter_nranks=by)
        self.run(4, body)


class TestStaged(DeviceTests):
    way = Way(carrier="mpi")


@pytest.mark.parametrize("carrier", ["nccl", "mpi"])
@pytest.mark.parametrize("trainers", [2, 4])
def test_training_has_the_losses_of_the_cpu(trainers, carrier, monkeypatch):
    if carrier == "nccl":
        skip_unless_nccl_has(trainers)
    monkeypatch.setenv("HPCDIST_ALLREDUCE", carrier)
    check_losses(trainers, lambda index: fluid.CUDAPlace(index % gpus()), nccl_comm_num=2)
