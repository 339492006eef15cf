"""On real GPUs: torch's NCCL over our store, beside MPI for CPU tensors. Skipped without one.

NCCL_MULTI_RANK_GPU_ENABLE=1 mpirun -n 2 python -m pytest tests/gpu/test_torch_groups.py
"""

from __future__ import annotations

import os
from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import hpcdist.torch  # noqa: E402, F401
from hpcdist.torch.group_with_gpus import POSSIBLE, GroupWithGpus  # noqa: E402
from tests.gpu.gpus import SHARE_VARIABLE  # noqa: E402
from tests.support.jobs import Job, needs_mpirun  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch sees none")
needs_both = pytest.mark.skipif(not POSSIBLE, reason="NCCL beside MPI needs torch 2.14")


@cache
def group() -> dist.ProcessGroup:
    """Return the default group, of both kinds of tensors. Collective."""
    dist.init_process_group("cpu:hpcdist,cuda:nccl")
    ranks, gpus = dist.get_world_size(), torch.cuda.device_count()
    if ranks > gpus and os.environ.get(SHARE_VARIABLE) != "1":
        pytest.skip(f"{ranks} ranks on {gpus} GPUs need {SHARE_VARIABLE}=1")
    torch.cuda.set_device(dist.get_rank() % gpus)
    made = dist.group.WORLD
    assert isinstance(made, GroupWithGpus)
    return made


def results(device):
    """Return what collectives of all ranks give, of tensors of that device."""
    rank, size = dist.get_rank(), dist.get_world_size()
    given = torch.arange(4 * size, dtype=torch.float32, device=device) + rank
    total, first = given.clone(), given.clone()
    dist.all_reduce(total)
    dist.broadcast(first, 0)
    all_of = given.new_empty(size * given.numel())
    dist.all_gather_into_tensor(all_of, given)
    part = given.new_empty(4)
    dist.reduce_scatter_tensor(part, given)
    turned = torch.empty_like(given)
    dist.all_to_all_single(turned, given)
    got = torch.empty_like(given)
    ring = [
        dist.P2POp(dist.isend, given, (rank + 1) % size),
        dist.P2POp(dist.irecv, got, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ring) if size > 1 else ():
        work.wait()
    dist.barrier()
    return [t.cpu() for t in (total, first, all_of, part, turned, *([got] if size > 1 else []))]


@pytest.mark.mpi
@needs_both
def test_nccl_gives_what_mpi_gives():
    group()
    for ours, theirs in zip(results("cpu"), results("cuda"), strict=True):
        torch.testing.assert_close(ours, theirs)
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, dist.get_rank())
    assert objects == [*range(dist.get_world_size())]


@pytest.mark.mpi
@needs_both
def test_a_model_on_gpus_learns_what_one_on_cpus_does():
    losses = {}
    for device in "cpu", "cuda":
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
        model = DistributedDataParallel(body, process_group=group())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        generator = torch.Generator().manual_seed(dist.get_rank())
        losses[device] = []
        for _ in range(10):
            batch = torch.rand(16, 8, generator=generator).to(device)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[device].append(loss.item())
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-3)
    assert losses["cpu"][-1] < losses["cpu"][0]


SCRIPT = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("NAME")
total = torch.ones(4, device="cuda")
dist.all_reduce(total)
assert total.tolist() == [dist.get_world_size()] * 4
print("as expected")
"""


@needs_mpirun
@pytest.mark.parametrize("name", ["nccl", pytest.param("cpu:gloo,cuda:nccl", marks=needs_both)])
@pytest.mark.parametrize("destroys", [False, True])
def test_a_script_of_torchruns_ends_though_threads_of_nccls_ask_the_store(tmp_path, name, destroys):
    end = "dist.destroy_process_group()\n" if destroys else "import time; time.sleep(3)\n"
    ended = Job(tmp_path, SCRIPT.replace("NAME", name) + end, "--as-torchrun", ranks=1).end()
    assert ended.code == 0, ended
    assert "as expected" in ended.out
