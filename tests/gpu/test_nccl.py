"""On real GPUs: groups over NCCL, and over MPI through pinned memory. Skipped without one.

NCCL_MULTI_RANK_GPU_ENABLE=1 mpirun -n 4 python -m pytest tests/gpu     # NCCL 2.30, one GPU
"""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.comm.groups import AllreduceOptions, make_groups
from tests.cases.collective import Body, CollectiveTests
from tests.gpu.gpus import count, missing, needs_nccl_for
from tests.mpi.device_jobs import check_losses
from tests.support.mpi_ranks import run_ranks

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing() or "never"), pytest.mark.mpi]


class DeviceTests(CollectiveTests):
    exact_order = True
    way = AllreduceOptions()

    def run(self, size: int, body: Body) -> None:
        if self.way.carrier == "nccl":
            needs_nccl_for(size)

        def make(transport):
            device = transport.on_host().rank % count()
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
    way = AllreduceOptions(use_hierarchical_allreduce=True)

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

        self.way = AllreduceOptions(
            use_hierarchical_allreduce=True, hierarchical_allreduce_inter_nranks=by
        )
        self.run(4, body)


class TestStaged(DeviceTests):
    way = AllreduceOptions(carrier="mpi")


@pytest.mark.parametrize("carrier", ["nccl", "mpi"])
@pytest.mark.parametrize("trainers", [2, 4])
def test_training_has_the_losses_of_the_cpu(trainers, carrier, monkeypatch):
    if carrier == "nccl":
        needs_nccl_for(trainers)
    monkeypatch.setenv("HPCDIST_ALLREDUCE", carrier)
    check_losses(trainers, lambda index: fluid.CUDAPlace(index % count()), nccl_comm_num=2)
