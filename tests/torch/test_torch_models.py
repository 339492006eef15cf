"""What stands on torch.distributed, over MPI: it learns what it learns over gloo."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import (  # noqa: E402
    default_hooks,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from hpcdist.torch.job import job  # noqa: E402
from tests.torch.torch_ranks import WITH_AND_WITHOUT_MEMORY, Pair, of_all, pairs  # noqa: E402

pytestmark = pytest.mark.mpi


class Net(nn.Module):
    """Two layers, and one that is not used in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 12)  # 12: so that 1, 2, 3 and 4 ranks can share it equally
        self.second, self.other = nn.Linear(12, 3), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor, other: bool = False) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        return (self.other if other else self.second)(hidden)


def everyone() -> Pair:
    return next(pair for pair in pairs() if pair.size == dist.get_world_size())


def fresh() -> nn.Module:
    torch.manual_seed(3)
    return Net()


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.rand(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def train(model: nn.Module, steps: int = 3, **forward: bool) -> list[torch.Tensor]:
    """Return the parameters after some steps on batches of this rank's own."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step, dist.get_rank()), **forward).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def whole(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    return [p.full_tensor() if isinstance(p, DTensor) else p for p in parameters]


def trained_with_gloo(**forward: bool) -> list[torch.Tensor]:
    return train(
        DDP(fresh(), process_group=everyone().gloo, find_unused_parameters=True), **forward
    )


@pytest.mark.parametrize(
    "options",
    [
        {"find_unused_parameters": True},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True, "bucket_cap_mb": 1e-4},
    ],
    ids=str,
)
def test_ddp(options):
    ours = train(DDP(fresh(), process_group=everyone().ours, **options), other=True)
    torch.testing.assert_close(ours, trained_with_gloo(other=True))


@pytest.mark.parametrize(
    "register",
    [
        lambda model, group: model.register_comm_hook(group, default_hooks.fp16_compress_hook),
        lambda model, _: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
        lambda model, _: model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
    ],
)
def test_ddp_with_a_communication_hook(register):
    trained = []
    for group in (everyone().ours, everyone().gloo):
        model = DDP(fresh(), process_group=group, find_unused_parameters=True)
        register(model, group)
        trained.append(train(model))
    torch.testing.assert_close(*trained, rtol=1e-2, atol=1e-3)  # half precision


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_the_thread_of_a_backward_pass_ends_its_sums_itself(unused, compressed, monkeypatch):
    monkeypatch.setattr(job().mover, "patience_s", 600)  # the other thread comes too late
    trained = []
    for group in (everyone().ours, everyone().gloo):
        torch.manual_seed(3)
        body = Net() if unused else nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 3))
        model = DDP(body, process_group=group, find_unused_parameters=unused, bucket_cap_mb=1e-4)
        if compressed:
            model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        trained.append(train(model))
    torch.testing.assert_close(*trained, rtol=1e-2, atol=1e-3)


def test_a_backward_pass_ends_before_sums_that_others_begin_later(monkeypatch):
    monkeypatch.setattr(job().mover, "patience_s", 0.05)
    pair, word, works = everyone(), torch.ones(1), []
    if pair.size == 1:
        pytest.skip("needs others")
    total = torch.ones(300_000)
    if dist.get_rank() == 0:
        x = torch.ones(1, requires_grad=True)
        x.register_hook(
            lambda _: works.append(dist.all_reduce(total, group=pair.ours, async_op=True))
        )
        x.sum().backward()
        for peer in range(1, pair.size):
            dist.send(word, peer)
    else:
        dist.recv(word, 0)
        works.append(dist.all_reduce(total, group=pair.ours, async_op=True))
    works[0].wait()
    assert (total == pair.size).all()


@WITH_AND_WITHOUT_MEMORY
def test_what_a_collective_has_written_goes_with_its_last_name(k, monkeypatch):
    monkeypatch.setattr(job().mover, "patience_s", 600)
    group = of_all(k).ours
    kept = []

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            assert all(weak() is None for weak in kept)
            total = gradient.clone()
            dist.all_reduce(total, group=group, async_op=True).wait()
            kept.append(weakref.ref(total))
            return gradient

    x = torch.ones(300_000, requires_grad=True)
    gc.disable()
    try:
        Summed.apply(Summed.apply(Summed.apply(x))).sum().backward()
        assert len(kept) == 3 and all(weak() is None for weak in kept)
    finally:
        gc.enable()


def test_ddp_with_a_hook_whose_callbacks_wait_for_what_they_have_begun():
    trained = []
    for group in (everyone().ours, everyone().gloo):
        torch.manual_seed(3)
        model = DDP(nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 3)), process_group=group)
        how = {"start_powerSGD_iter": 2, "min_compression_rate": 0.5, "random_seed": 3}
        state = powerSGD_hook.PowerSGDState(group, **how)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        trained.append(train(model, steps=5))
    torch.testing.assert_close(*trained)


def test_ddp_with_a_hook_whose_callbacks_begin_sums_of_several_buckets():
    # Over gloo torch ends the process by SIGABRT: ranks begin these sums in different orders.
    group = everyone().ours
    torch.manual_seed(3)
    layers = [nn.Linear(6, 12), *(nn.Linear(12, 12) for _ in range(5)), nn.Linear(12, 3)]
    model = DDP(nn.Sequential(*layers), process_group=group, bucket_cap_mb=5e-4)
    how = {"start_powerSGD_iter": 2, "min_compression_rate": 0.5, "random_seed": 3}
    state = powerSGD_hook.PowerSGDState(group, **how)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    trained = train(model, steps=20)
    assert len(state.error_dict) > 3  # buckets
    for tensor in trained:
        others = tensor.clone()
        dist.all_reduce(others, dist.ReduceOp.MAX, group=group)
        assert torch.equal(tensor, others)


def test_ddp_with_uneven_numbers_of_batches():
    trained = []
    for group in (everyone().ours, everyone().gloo):
        model = DDP(fresh(), process_group=group, find_unused_parameters=True)
        with Join([model]):
            trained.append(train(model, steps=2 + dist.get_rank()))
    torch.testing.assert_close(*trained)


def test_ddp_divides_by_the_ranks_that_have_a_batch_when_python_frees_their_count():
    def collect(*_):
        gc.collect()  # what a hook returns takes the place of the result, so nothing

    trained = []
    for group in (everyone().ours, everyone().gloo):
        model = DDP(fresh(), process_group=group, find_unused_parameters=True)
        model.module.first.register_forward_hook(collect)
        with model.join(divide_by_initial_world_size=False):
            trained.append(train(model, steps=1 + dist.get_rank()))
    torch.testing.assert_close(*trained)


def test_fsdp2_is_ddp():
    mesh = DeviceMesh.from_group(everyone().ours, "cpu")
    model = fresh()
    for layer in (model.first, model.second, model.other):
        fully_shard(layer, mesh=mesh)
    ours = whole(train(fully_shard(model, mesh=mesh)))
    torch.testing.assert_close(ours, trained_with_gloo())


def test_tensor_parallel_layers_are_one_layer():
    mesh = DeviceMesh.from_group(everyone().ours, "cpu")
    plain, parallel = fresh(), fresh()
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    parallel = parallelize_module(parallel, mesh, plan)
    x = batch(0, 0)
    given = torch.autograd.grad(plain(x).square().sum(), list(plain.first.parameters()))
    parallel(x).square().sum().backward()
    got = whole([p.grad for p in parallel.first.parameters()])
    torch.testing.assert_close(got, list(given))


def test_checkpoints_of_shards_come_back(tmp_path_factory):
    mesh = DeviceMesh.from_group(everyone().ours, "cpu")
    (path,) = [str(tmp_path_factory.mktemp("dcp"))] if dist.get_rank() == 0 else [None]
    said = [path]
    dist.broadcast_object_list(said, 0, group=everyone().ours)
    values = torch.arange(30.0).reshape(10, 3)
    saved = {"w": distribute_tensor(values, mesh, [Shard(0)]), "step": 7}
    dcp.save(saved, checkpoint_id=f"{said[0]}/now")
    dcp.async_save(saved, checkpoint_id=f"{said[0]}/later").result()
    for name in ("now", "later"):
        loaded = copy.deepcopy(saved) | {"step": 0}
        loaded["w"].to_local().zero_()
        dcp.load(loaded, checkpoint_id=f"{said[0]}/{name}")
        assert loaded["step"] == 7
        assert torch.equal(loaded["w"].full_tensor(), values)
