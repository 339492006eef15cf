"""Embedding and EmbeddingBag on tables that the trainers share out, beside torch's own modules."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import warnings

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch
import torch.distributed as dist
from torch import nn

import hpcdist.torch as ours
from hpcdist.errors import CommError, TableError
from hpcdist.torch import tables
from hpcdist.torch.facts import Initial
from tests.torch.torch_ranks import pairs, refused_when_forked

IDS = 11
WIDTH = 5


@pytest.fixture(autouse=True)
def no_tables_yet():
    tables.tables.cache_clear()
    yield
    tables.tables.cache_clear()


def rank_and_size():
    pairs()  # which make the group of all ranks
    return dist.get_rank(), dist.get_world_size()


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
        tables.tables.cache_clear()
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
def test_a_loop_that_is_closed_late_leaves_what_the_next_one_announces():
    rank_and_size()
    module = ours.Embedding(None, 2)
    announced = tables.tables().announced

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
def test_trainers_that_do_different_things_are_told_so():
    rank, size = rank_and_size()
    if size == 1:
        pytest.skip("needs others")
    module = ours.Embedding(None, 2)
    optimizer = ours.TableOptimizer(module, "SGD", lr=1.0)
    module(torch.tensor([1])).sum().backward()
    with pytest.raises(CommError, match=r"trainer \d is to (look rows up|push gradients)"):
        if rank == 0:
            optimizer.step()
        else:
            module(torch.tensor([1]))
    dist.barrier()


@pytest.mark.mpi
def test_a_process_that_a_rank_has_forked_looks_nothing_up():
    rank_and_size()
    module = ours.Embedding(None, WIDTH)
    ours.TableOptimizer(module, "SGD", lr=1.0)
    ids = torch.arange(3)
    rows = module(ids)  # tables are settled
    assert "has forked, calls for rows of table 'embedding_0'" in refused_when_forked(
        lambda: module(ids)
    )
    assert torch.equal(module(ids), rows)


@pytest.mark.mpi
def test_trainers_with_different_tables_or_rates_are_told_so():
    rank, size = rank_and_size()
    if size == 1:
        pytest.skip("needs others")
    module = ours.Embedding(None, 2 + (rank == 0))
    ours.TableOptimizer(module, "SGD", lr=1.0)
    with pytest.raises(CommError, match="trainers 0 and 1 have different tables"):
        module(torch.tensor([1]))
    tables.tables.cache_clear()
    module = ours.Embedding(None, 2)
    optimizer = ours.TableOptimizer(module, "SGD", lr=1.0)
    module(torch.tensor([1])).sum().backward()
    if rank == 1:
        optimizer.param_groups[0]["lr"] = 2.0
    with pytest.raises(CommError, match="different learning rates"):
        optimizer.step()
    dist.barrier()


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


def test_what_cannot_be_is_refused():
    with pytest.raises(TableError, match="integers of rows.*got '4'"):
        ours.Embedding("4", 4)
    with pytest.raises(TableError, match="padding_idx -9 is before the first of 4 rows"):
        ours.Embedding(4, 4, padding_idx=-9)
    with pytest.raises(TableError, match="'normal': expected finite numbers, got 'a' and 1.0"):
        Initial("normal", "a")
    for name in ("", 7):
        with pytest.raises(TableError, match=f"name: expected a string .*, got {name!r}"):
            ours.Embedding(4, 4, name=name)
    with pytest.raises(TableError, match="initial: expected hpcdist.torch.Initial.*got 'uniform'"):
        ours.Embedding(4, 4, initial="uniform")
    with pytest.raises(TableError, match="positive number of rows"):
        ours.Embedding(0, 4)
    with pytest.raises(TableError, match="counts from the end"):
        ours.Embedding(None, 4, padding_idx=-1)
    with pytest.raises(TableError, match="sum, mean or max"):
        ours.EmbeddingBag(4, 4, "median")
    for make in (ours.Embedding, ours.EmbeddingBag):
        with pytest.raises(TableError, match=f"torch.{make.__name__} does not take max_norm, sp"):
            make(4, 4, sparse=True, max_norm=1.0)
    module = ours.Embedding(None, 4, name="words")
    with pytest.raises(TableError, match="two tables have the name 'words'"):
        ours.Embedding(None, 4, name="words")
    with pytest.raises(TableError, match="no table of hpcdist.torch"):
        ours.TableOptimizer(nn.Linear(2, 2), lr=0.1)
    with pytest.raises(TableError, match="mode: expected one of sync, async, got 'geo'"):
        ours.TableOptimizer(module, lr=0.1, mode="geo")
    with pytest.raises(TableError, match="mode: expected one of sync, async, got 'dc_asgd'"):
        ours.TableOptimizer(module, lr=0.1, mode="dc_asgd")
    with pytest.raises(TableError, match="max_staleness is for"):
        ours.TableOptimizer(module, lr=0.1, max_staleness=2)
    with pytest.raises(TableError, match="lr: expected a number that is not negative, got -1.0"):
        ours.TableOptimizer(module, lr=-1.0)
    with pytest.raises(TableError, match="expected ids by module.*got a Linear"):
        next(ours.rows_ahead([1, 2], lambda item: {nn.Linear(2, 2): torch.tensor([item])}))
    with pytest.raises(TableError, match="expected modules, got a Parameter"):
        ours.TableOptimizer(nn.Linear(2, 2).parameters(), lr=0.1)
    for kind in ("Lion", "RMSProp"):  # the second moves parameters on servers, not rows
        with pytest.raises(TableError, match=f"no optimizer '{kind}': .* SGD, .*, Ftrl$"):
            ours.TableOptimizer(module, kind, lr=0.1)
    with pytest.raises(ValueError, match="optimizer Adagrad"):
        ours.TableOptimizer(module, "Adagrad", lr=0.1, beta1=0.9)
    with pytest.raises(TableError, match="has no optimizer"):
        module(torch.tensor([1]))
    ours.TableOptimizer(module, lr=0.1)
    with pytest.raises(TableError, match="two optimizers"):
        ours.TableOptimizer(module, lr=0.1)
    with pytest.raises(TableError, match="expected a tensor of int64"):
        module(torch.tensor([1.0]))
    bags = ours.EmbeddingBag(None, 4)
    with pytest.raises(TableError, match=r"expected non-decreasing offsets, got \[2, 1\] at 1"):
        bags(torch.arange(3), torch.tensor([0, 2, 1]))
    with pytest.raises(TableError, match="3 ids, but the offsets' bags end after 0"):
        bags(torch.arange(3), torch.empty(0, dtype=torch.int64))
    ends = ours.EmbeddingBag(None, 4, include_last_offset=True)
    with pytest.raises(TableError, match="3 ids, but the offsets' bags end after 2"):
        ends(torch.arange(3), torch.tensor([0, 1, 2]))
    with pytest.raises(TableError, match=r"state_dict\(\).*'words'"):
        nn.Sequential(module).state_dict()
    for copied in (copy.deepcopy, pickle.dumps, lambda model: torch.save(model, io.BytesIO())):
        with pytest.raises(TableError, match="'words' cannot be copied or pickled"):
            copied(nn.Sequential(module))


def test_the_state_of_a_model_is_that_without_its_tables():
    model = nn.Sequential(ours.Embedding(None, 4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    found = ours.dense_state_dict(model)
    expected = nn.Sequential(nn.Identity(), nn.Linear(4, 2), nn.BatchNorm1d(2)).state_dict()
    assert list(found) == list(expected)
    model.load_state_dict(expected)
    assert torch.equal(model[1].weight, expected["1.weight"])
    shared = nn.Linear(4, 4)
    assert "1.weight" in ours.dense_state_dict(nn.Sequential(shared, shared))


@pytest.mark.mpi
def test_parameters_that_servers_cannot_keep_are_refused():
    rank_and_size()
    layer = nn.Linear(2, 2)
    with pytest.raises(TableError, match=r"torch.optim.AdamW has no counterpart on the servers"):
        ours.ServedOptimizer(layer, torch.optim.AdamW(layer.parameters()))
    with pytest.raises(TableError, match="SGD: servers do not support dampening=0.5"):
        given = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9, dampening=0.5)
        ours.ServedOptimizer(layer, given)
    with pytest.raises(TableError, match="lr must be given"):
        ours.ServedOptimizer(layer, "Adam")
    with pytest.raises(TableError, match="contiguous float32"):
        ours.ServedOptimizer(nn.Linear(2, 2).double(), lr=0.1)
    with pytest.raises(TableError, match="expected a module, got a generator"):
        ours.ServedOptimizer(layer.parameters(), lr=0.1)
    with pytest.raises(TableError, match="max_staleness is for"):
        ours.ServedOptimizer(layer, lr=0.1, mode="dc_asgd", max_staleness=2)
    with pytest.raises(
        TableError, match="expected one of sync, async, dc_asgd, geo, got 'hogwild'"
    ):
        ours.ServedOptimizer(layer, lr=0.1, mode="hogwild")
    with pytest.raises(TableError, match="push_every is for mode"):
        ours.ServedOptimizer(layer, lr=0.1, mode="async", push_every=2)
    with pytest.raises(TableError, match=r"torch's, such as torch.optim.SGD"):
        ours.ServedOptimizer(layer, lr=0.1, mode="geo")
    with pytest.raises(TableError, match="torch.optim.SGD leaves 'bias' out"):
        ours.ServedOptimizer(layer, torch.optim.SGD([layer.weight], 0.1))
    with pytest.raises(TableError, match="torch.optim.SGD has others beside"):
        given = [*layer.parameters(), *nn.Linear(1, 1).parameters()]
        ours.ServedOptimizer(layer, torch.optim.SGD(given, 0.1))
    begun = torch.optim.Adagrad(layer.parameters(), 0.1)
    layer(torch.ones(1, 2)).sum().backward()
    begun.step()
    with pytest.raises(TableError, match="torch.optim.Adagrad has stepped before"):
        ours.ServedOptimizer(layer, begun)
    given = torch.optim.Adagrad(layer.parameters(), 0.1)
    optimizer = ours.ServedOptimizer(layer, given)
    with pytest.raises(TableError, match="two models have a parameter 'served.weight'"):
        ours.ServedOptimizer(nn.Linear(2, 2), lr=0.1)
    ours.ServedOptimizer(nn.Linear(2, 2), lr=0.1, name="other")
    given.load_state_dict(given.state_dict())
    given.param_groups[0]["lr"] = 0.5
    assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.param_groups[0]["weight_decay"] = 0.5
    with pytest.raises(TableError, match="can change only the learning rate"):
        optimizer.step()
    optimizer.param_groups[0]["weight_decay"] = 0
    with pytest.raises(TableError, match="two optimizers on servers"):
        ours.ServedOptimizer(layer, "Adam", lr=0.1)
    layer(torch.ones(1, 2)).sum().backward()
    with pytest.raises(TableError, match="needs parameter servers"):
        optimizer.step()
