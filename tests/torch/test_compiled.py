"""Functions that torch has compiled communicate as they do uncompiled."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from hpcdist.errors import CommError  # noqa: E402
from tests.support.jobs import clean_environment  # noqa: E402
from tests.torch.torch_ranks import WITH_AND_WITHOUT_MEMORY, of_all, pairs  # noqa: E402


def groups() -> list[dist.ProcessGroup]:
    """Return groups of all ranks: with shared memory, and without."""
    return [pair.ours for pair in pairs() if pair.size == dist.get_world_size()]


def sum_beside_a_product(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    total = x * 2
    work = dist.all_reduce(total, group=group, async_op=True)
    product = x @ x
    work.wait()
    return total + product


def pass_on(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    came = torch.zeros_like(x)
    if size > 1:
        sent = dist.isend(x + rank, group=group, group_dst=(rank + 1) % size)
        dist.recv(came, group=group, group_src=(rank - 1) % size)
        sent.wait()
    return came * 2


def gather_and_scatter(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    dist.barrier(group)
    all_of_them = [torch.empty_like(x) for _ in range(size)]
    dist.gather(x, all_of_them if rank == 0 else None, group=group, group_dst=0)
    part = torch.empty_like(x)
    dist.scatter(part, all_of_them if rank == 0 else None, group=group, group_src=0)
    return part + 1


@pytest.mark.mpi
@pytest.mark.parametrize("function", [sum_beside_a_product, pass_on, gather_and_scatter])
def test_a_compiled_function_communicates_as_it_does_uncompiled(function):
    compiled = torch.compile(function, backend="eager")
    for group in groups():
        x = torch.arange(9.0).reshape(3, 3) + dist.get_rank()
        assert torch.equal(compiled(x, group), function(x, group))


def exchange_with_neighbours(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    came = torch.zeros_like(x)
    ring = [
        dist.P2POp(dist.isend, x, (rank + 1) % size, group, 5),
        dist.P2POp(dist.irecv, came, (rank - 1) % size, group, 5),
    ]
    for work in dist.batch_isend_irecv(p2p_op_list=ring):
        work.wait()
    return came * 2


@pytest.mark.mpi(min_size=2)
def test_a_batch_of_messages_is_compiled_into_one_graph():
    compiled = torch.compile(exchange_with_neighbours, backend="aot_eager", fullgraph=True)
    for group in groups():
        x = torch.arange(9.0).reshape(3, 3) + dist.get_rank()
        left = (dist.get_rank() - 1) % dist.get_world_size()
        with torch._dynamo.config.patch(enable_p2p_compilation=True):
            came = compiled(x, group)
        assert torch.equal(came, (torch.arange(9.0).reshape(3, 3) + left) * 2)


@pytest.mark.mpi
def test_a_compiled_ddp_sends_its_buffers_as_it_does_uncompiled():
    for group in groups():
        learned = []
        for compiled in (False, True):
            torch.manual_seed(3)
            model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), process_group=group)
            model = torch.compile(model, backend="eager") if compiled else model
            for _ in range(3):
                model(torch.rand(5, 4) + dist.get_rank()).sum().backward()
            learned.append([t.clone() for t in [*model.buffers()][:2]])
        assert all(map(torch.equal, *learned))


def test_what_was_compiled_before_hpcdist_was_imported_communicates_as_well(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch, torch.distributed as dist\n"
        "compiled = torch.compile(backend='eager')\n"
        "summed = compiled(lambda x: dist.all_reduce(x, async_op=True).wait())\n"
        "import hpcdist.torch\n"
        "dist.init_process_group('hpcdist')\n"
        "print(summed(torch.ones(3)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


@pytest.mark.mpi
@WITH_AND_WITHOUT_MEMORY
def test_tensors_without_memory_are_not_sent(k):
    from torch._subclasses.fake_tensor import FakeTensorMode

    group, me, size = of_all(k).ours, dist.get_rank(), dist.get_world_size()
    begun = torch.full((2_000_000,), 1.0)  # ends within the mode
    earlier = dist.all_reduce(begun, group=group, async_op=True)
    with FakeTensorMode():
        tensor, whole = torch.ones(3), torch.ones(3 * size)
        parts = [torch.ones(3) for _ in range(size)]
        dist.all_reduce(tensor, group=group)
        dist.all_gather(parts, tensor, group=group)
        dist.reduce_scatter_tensor(tensor, whole, group=group)
        dist.gather(tensor, parts if me == 0 else None, group=group)
        dist.all_to_all_single(whole, whole.clone(), group=group)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work.get_future().wait()[0].shape == (3,) and work.is_completed()
        if me == 0 < size - 1:  # without the others, as all that this mode does
            dist.send(tensor, size - 1, group)
        earlier.wait()
    assert (begun == size).all()
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size] * 2


@pytest.mark.mpi
def test_make_fx_cannot_record_what_it_would_leave_out():
    from torch.fx.experimental.proxy_tensor import make_fx

    group = of_all(0).ours
    with pytest.raises(CommError, match="make_fx records functional collectives only"):
        make_fx(lambda x: dist.all_reduce(x, group=group))(torch.ones(2))
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [dist.get_world_size()] * 2
