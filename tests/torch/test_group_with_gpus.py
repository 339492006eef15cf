"""Groups with NCCL for GPU tensors: which backend does what. tests/gpu runs NCCL itself."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402

import hpcdist.torch  # noqa: E402, F401
from hpcdist.torch import registration  # noqa: E402
from hpcdist.torch.group_with_gpus import COLLECTIVES, POSSIBLE, GroupWithGpus  # noqa: E402
from hpcdist.torch.job import job  # noqa: E402
from tests.scripts import read_script  # noqa: E402
from tests.support.jobs import Job, needs_mpirun  # noqa: E402


@pytest.mark.parametrize(
    "named, without, with_one",
    [
        ("gloo", "hpcdist", "hpcdist"),
        ("mpi", "hpcdist", "hpcdist"),
        ("nccl", "hpcdist", "nccl"),
        ("undefined", "hpcdist", "undefined"),
        ("cpu:gloo,cuda:nccl", "hpcdist", "hpcdist_nccl"),
        ("cuda:nccl,cpu:hpcdist", "hpcdist", "hpcdist_nccl"),
        ("cpu:gloo,cuda:ucc", "cpu:gloo,cuda:ucc", "cpu:gloo,cuda:ucc"),
        ("hpcdist_nccl", "hpcdist_nccl", "hpcdist_nccl"),
    ],
)
def test_backends_of_scripts_for_torchrun_are_ours_but_nccl_on_gpus(named, without, with_one):
    if not POSSIBLE and "," in named:
        with_one = named
    for gpu, expected in (False, without), (True, with_one):
        has_gpu = partial(bool, gpu)
        found = registration.instead_of(named, {"gloo", "mpi"}, {"nccl", "undefined"}, has_gpu)
        assert found == expected


class Gpus:
    """Notes what is called, in place of torch's group of GPU tensors."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, arguments, named))
            return f"{name} by NCCL"

        return call


@pytest.fixture
def group():
    if not dist.is_initialized():
        dist.init_process_group("hpcdist")
    store = dist.PrefixStore("gpus", job().store)
    return GroupWithGpus(Gpus(), job(), store, 0, [0], "gpus", timedelta(seconds=60))


CALLS = {
    **{name: lambda t: (t, t.clone()) for name in COLLECTIVES if name.endswith(("single", "base"))},
    **{name: lambda t: ([t], [t.clone()]) for name in COLLECTIVES if name.endswith("coalesced")},
    "allgather": lambda t: ([[t]], [t]),
    "allgather_coalesced": lambda t: ([[t]], [t]),
    "allreduce": lambda t: (t,),
    "allreduce_coalesced": lambda t: ([t],),
    "alltoall": lambda t: ([t], [t.clone()]),
    "alltoall_base": lambda t: (t, t.clone(), [], []),
    "all_to_all_single": lambda t: (t, t.clone(), [], []),
    "barrier": lambda t: (options_on(t.device),),
    "broadcast": lambda t: ([t],),
    "gather": lambda t: ([[t.clone()]], [t]),
    "recv": lambda t: ([t], 0, 0),
    "recv_anysource": lambda t: ([t], 0),
    "reduce": lambda t: ([t],),
    "reduce_scatter": lambda t: ([t], [[t.clone()]]),
    "scatter": lambda t: ([t], [[t.clone()]]),
    "send": lambda t: ([t], 0, 0),
}


def options_on(device):
    options = dist.BarrierOptions()
    options.device = device
    return options


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_call_goes_where_its_tensors_are(group, name):
    # A tensor that has no memory, for one of a GPU.
    for device, is_ours in ("cpu", True), ("meta", False):
        arguments = CALLS[name](torch.ones(2, device=device))
        result = getattr(group, name)(*arguments)
        (called,) = group.gpus.calls or [None]
        assert (called is None) == is_ours
        if is_ours and not name.startswith(("send", "recv")):
            result.wait()
        if not is_ours:
            assert called[:2] == (name, arguments)
            assert result == f"{name} by NCCL"


@needs_mpirun
@pytest.mark.skipif(not POSSIBLE, reason="NCCL beside MPI needs torch 2.14")
def test_a_script_that_names_both_has_groups_of_both(tmp_path):
    ended = Job(tmp_path, read_script("torch_with_gpus"), "--as-torchrun", ranks=2).end()
    assert ended.code == 0, ended
    assert "as expected" in ended.out
