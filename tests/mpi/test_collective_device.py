"""Training without servers on devices: the losses of the CPU, over stand-ins for GPUs."""

from __future__ import annotations

import pytest

import hpcdist as fluid
from tests.mpi.device_jobs import check_losses
from tests.support.nccl import install

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("flags", ["-1", "32"])
@pytest.mark.parametrize("trainers", [2, 3, 4])
def test_bucket_allreduce_through_pinned_memory(trainers, flags, monkeypatch):
    install(monkeypatch)
    monkeypatch.setenv("HPCDIST_ALLREDUCE", "mpi")
    monkeypatch.setenv("FLAGS_fuse_parameter_memory_size", flags)
    check_losses(trainers, fluid.CUDAPlace)


def test_two_levels_through_pinned_memory(monkeypatch):
    install(monkeypatch)
    monkeypatch.setenv("HPCDIST_ALLREDUCE", "mpi")
    levels = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}
    check_losses(4, fluid.CUDAPlace, **levels)
