"""Embedding and EmbeddingBag on tables that the trainers share out, beside torch's own modules."""

from __future__ import annotations

import functools
import warnings

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch
import torch.distributed as dist
from torch import nn

import hpcdist.torch as ours
from hpcdist.ps.facts import Initial
from hpcdist.torch import advice, tables
from tests.torch.torch_ranks import rank_and_size

pytestmark = pytest.mark.usefixtures("no_tables_yet")

IDS = 11
WIDTH = 5


def batches(steps, rank, size, shape=(6, 3)):
    """Return this rank's rows of batches of ids that repeat, with targets."""
    generator = torch.Generator().manual_seed(3)
    own = slice(rank * shape[0] // size, (rank + 1) * shape[0] // size)
    for _ in range(steps):
        ids = torch.randint(0, IDS, shape, generator=generator)
        target = torch.rand(shape[0], WIDTH, generator=generator)
        yield ids[own], target[own]


def trained_beside(module, own, size, steps, forward, optimizer, moves):
    """Train a module of ours and torch's that begins with the same rows; return both outputs."""
    rank = dist.get_rank()
    with torch.no_grad():
        own.weight.copy_(_rows(module))
    moved = moves([own.weight])
    for ids, target in batches(steps, rank, size):
        for it in (module, own):
            (forward(it, ids) - target).square().mean().backward()
        own.weight.grad = own.weight.grad.to_dense()
        dist.all_reduce(own.weight.grad)
        own.weight.grad /= size
        for it in (optimizer, moved):
            it.step()
            it.zero_grad()
    return _rows(module), own.weight.detach()


def _rows(module):
    with torch.no_grad():
        every = torch.arange(IDS)
        return module(every) if isinstance(module, ours.Embedding) else module(every[:, None])


MOVES = {
    "SGD": ({}, functools.partial(torch.optim.SGD, lr=0.3)),
    "Momentum": (
        {"momentum": 0.9, "use_nesterov": True},
        functools.partial(torch.optim.SGD, lr=0.3, momentum=0.9, nesterov=True),
    ),
    "Adagrad": ({"epsilon": 1e-10}, functools.partial(torch.optim.Adagrad, lr=0.3)),
}


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["SGD", "Adagrad"])
def test_embedding_trains_as_torchs(kind):
    _, size = rank_and_size()
    if 6 % size:
        pytest.skip("6 rows do not divide")
    module = ours.Embedding(None, WIDTH)
    arguments, moves = MOVES[kind]
    optimizer = ours.TableOptimizer(module, kind, lr=0.3, **arguments)
    found, expected = trained_beside(
        module,
        nn.Embedding(IDS, WIDTH),
        size,
        4,
        lambda it, ids: it(ids).mean(1),
        optimizer,
        moves,
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.mpi
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag_trains_as_torchs(mode):
    _, size = rank_and_size()
    if 6 % size:
        pytest.skip("6 rows do not divide")
    module = ours.EmbeddingBag(IDS, WIDTH, mode, padding_idx=2)
    optimizer = ours.TableOptimizer(module, "SGD", lr=0.3)
    own = nn.EmbeddingBag(IDS, WIDTH, mode=mode, padding_idx=2)
    offsets = torch.tensor([0, 2, 2])

    def forward(it, ids):
        weights = {"per_sample_weights": ids.float() + 1} if mode == "sum" else {}
        flat = {"per_sample_weights": ids.reshape(-1).float()} if mode == "sum" else {}
        bags = it(ids.reshape(-1), offsets, **flat).sum()
        return it(ids, **weights) + bags

    found, expected = trained_beside(
        module, own, size, 3, forward, optimizer, functools.partial(torch.optim.SGD, lr=0.3)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (found[2] == 0).all()


@pytest.mark.mpi
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("make", [ours.Embedding, ours.EmbeddingBag])
def test_what_is_looked_up_may_be_changed_in_place_and_so_may_the_ids(make, ahead):
    rank_and_size()
    module = make(None, 2, initial=Initial("constant", 1.0))
    optimizer = ours.TableOptimizer(module, "SGD", lr=1.0)
    data = [torch.tensor([[3], [-5]])]
    for ids in ours.rows_ahead(data, lambda ids: {module: ids}) if ahead else data:
        bags = module(ids)
        bags.mul_(3.0)
        assert bags.flatten().tolist() == [3.0] * 4
        again = module(ids)
        assert again.flatten().tolist() == [1.0] * 4
        ids += 10
        (bags + again).sum().backward()
        optimizer.step()
    with torch.no_grad():
        assert module(data[0] - 10).flatten().tolist() == [1.0 - 4.0] * 4
        assert module(data[0]).flatten().tolist() == [1.0] * 4


@pytest.mark.mpi
@pytest.mark.parametrize("ahead", [False, True])
def test_a_compiled_model_looks_up_the_same(ahead):
    rank_and_size()
    data = [torch.tensor([[3, 4], [-5, step]]) for step in range(3)]
    losses = []
    for compiled in (False, True):
        tables.reset()
        module = nn.Sequential(ours.EmbeddingBag(None, 2, "mean", padding_idx=4), nn.Sigmoid())
        optimizer = ours.TableOptimizer(module, "SGD", lr=1.0)
        model = torch.compile(module, backend="eager") if compiled else module
        announced = ours.rows_ahead(data, lambda ids, table=module[0]: {table: ids})
        for ids in announced if ahead else data:
            loss = model(ids).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == losses[3:]


@pytest.mark.mpi
def test_gradients_add_up_until_the_step_and_only_looked_up_rows_move():
    rank, size = rank_and_size()
    module = ours.Embedding(None, 2, initial=Initial("constant", 1.0))
    optimizer = ours.TableOptimizer(module, "SGD", lr=1.0)
    ids = torch.tensor([-(2**63), 2**63 - 1])
    for _ in range(2):
        module(ids).sum().backward()
    optimizer.step()
    with torch.no_grad():
        assert (module(ids) == 1 - 2).all()
        assert (module(torch.tensor([0])) == 1).all()
    module(ids).sum().backward()
    optimizer.zero_grad()
    optimizer.param_groups[0]["lr"] = 0.5
    if rank == 0:
        module(torch.tensor([7])).sum().backward()
    else:
        module(torch.tensor([], dtype=torch.int64)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        assert (module(ids) == -1).all()
        assert torch.allclose(module(torch.tensor([7])), torch.tensor(1 - 0.5 / size))


@pytest.mark.mpi
def test_gradients_of_parameters_that_autograd_shares_with_rows_may_be_changed():
    rank_and_size()
    module = ours.Embedding(None, 2, initial=Initial("constant", 1.0))
    optimizer = ours.TableOptimizer(module, "SGD", lr=1.0)
    shift = nn.Parameter(torch.zeros(4))
    ids = torch.tensor([1, 2])
    moved = shift.view(2, 2)  # before the look-up: its gradient comes after that of the rows
    ((module(ids) + moved) * torch.tensor([[3.0, 4], [5, 6]])).sum().backward()
    nn.utils.clip_grad_norm_([shift], 1e-3)
    optimizer.step()
    with torch.no_grad():
        assert module(ids).tolist() == [[-2, -3], [-4, -5]]


@pytest.mark.mpi
def test_a_trainer_that_looks_no_ids_up_meets_the_others_for_each_table():
    rank, size = rank_and_size()
    modules = [ours.Embedding(None, 2, initial=Initial("constant", 1.0)) for _ in range(3)]
    optimizer = ours.TableOptimizer(nn.ModuleList(modules), "SGD", lr=1.0)
    ids = torch.tensor([5, 6] if rank == size - 1 else [], dtype=torch.int64)
    for _ in range(2):
        sum(module(ids).sum() for module in modules).backward()
        optimizer.step()
    for _ in ours.rows_ahead([0, 1], lambda _: dict.fromkeys(modules[:1], ids)):
        sum(module(ids).sum() for module in modules).backward()
        optimizer.step()
    with torch.no_grad():
        for module in modules:
            assert torch.allclose(module(torch.tensor([5, 6])), torch.tensor(1 - 4 / size))


@pytest.mark.mpi
def test_trainers_meet_equally_often_though_one_looks_the_announced_ids_up_twice():
    rank, size = rank_and_size()
    modules = [ours.Embedding(None, 2, initial=Initial("constant", 1.0)) for _ in range(2)]
    optimizer = ours.TableOptimizer(nn.ModuleList(modules), "SGD", lr=1.0)
    announced = torch.tensor([5, 6])
    first = announced if rank == 0 else announced + 10
    for _ in ours.rows_ahead([0, 1], lambda _: dict.fromkeys(modules, announced)):
        sum(module(ids).sum() for ids in (first, announced) for module in modules).backward()
        optimizer.step()
    with torch.no_grad():
        for module in modules:
            moved = module(torch.tensor([5, 6, 15, 16])).mean(1)
            every = 1 - 2 * (size + 1) / size, 1 - 2 * (size - 1) / size
            assert torch.allclose(moved, torch.tensor(every).repeat_interleave(2))


@pytest.mark.mpi
def test_a_loop_that_is_closed_late_leaves_what_the_next_one_announces():
    rank_and_size()
    module = ours.Embedding(None, 2)
    announced = tables.open_tables().announced

    def loop(first):
        data = [torch.tensor([first + k]) for k in range(3)]
        return ours.rows_ahead(data, lambda ids: {module: ids})

    left, following = loop(0), loop(10)
    next(left)
    next(following)
    left.close()
    assert (announced.now[module.name], announced.next[module.name]) == ([10], [11])
    following.close()
    assert (announced.now, announced.next) == ({}, {})


@pytest.mark.mpi
def test_each_optimizer_takes_its_gradients_when_it_steps():
    rank_and_size()
    modules = [ours.Embedding(None, 2, initial=Initial("constant", 1.0)) for _ in range(2)]
    optimizers = [ours.TableOptimizer(module, lr=1.0) for module in modules]
    ids = torch.tensor([1, 2])
    for _ in range(3):
        sum(module(ids).sum() for module in modules).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for module in modules:
        assert (module(ids) == 1 - 3).all()
    first, second = modules
    first(ids).sum().backward()
    optimizers[0].step()
    first(ids).sum().backward()  # for its next step
    optimizers[1].zero_grad()
    second(ids).sum().backward()
    optimizers[1].step()
    assert (first(ids) == -3).all() and (second(ids) == -3).all()
    for optimizer in optimizers:
        optimizer.step()
    assert (first(ids) == -4).all() and (second(ids) == -3).all()


@pytest.mark.mpi
@pytest.mark.parametrize("ahead", [False, True])
def test_many_tables_looked_up_one_by_one_are_named_once(ahead):
    rank, size = rank_and_size()
    words = nn.ModuleList(ours.Embedding(None, 2) for _ in range(5))
    optimizer = ours.TableOptimizer(words, lr=1.0)
    data = [torch.tensor([step]) for step in range(3)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for ids in ours.rows_ahead(data, lambda ids: dict.fromkeys(words, ids)) if ahead else data:
            sum(table(ids).sum() for table in words).backward()
            optimizer.step()
    advice = [w for w in told if "rows_ahead" in str(w.message)]
    assert len(advice) == (rank == 0 and size > 1 and not ahead)
    for warned in advice:
        assert "5 tables" in str(warned.message)
        assert "embedding_0, embedding_1, embedding_2, embedding_3, ..." in str(warned.message)
        assert warned.filename == __file__


@pytest.mark.parametrize("drops", [True, False])
def test_a_step_that_is_forgotten_is_told_once(monkeypatch, drops):
    monkeypatch.setattr(advice, "MANY_WAITING", 30)
    for steps in (False, True):
        words = ours.Embedding(None, 2)
        optimizer = ours.TableOptimizer(words, lr=1.0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(70):
                if drops:
                    optimizer.zero_grad()
                words(torch.tensor([1])).sum().backward()
                if steps:
                    optimizer.step()
        assert len(told) == (not steps)
        for warned in told:
            assert "call step() of the TableOptimizer" in str(warned.message)


def test_the_state_of_a_model_is_that_without_its_tables():
    model = nn.Sequential(ours.Embedding(None, 4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    found = ours.dense_state_dict(model)
    expected = nn.Sequential(nn.Identity(), nn.Linear(4, 2), nn.BatchNorm1d(2)).state_dict()
    assert list(found) == list(expected)
    model.load_state_dict(expected)
    assert torch.equal(model[1].weight, expected["1.weight"])
    shared = nn.Linear(4, 4)
    assert "1.weight" in ours.dense_state_dict(nn.Sequential(shared, shared))
