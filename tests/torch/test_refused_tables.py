"""What tables and optimizers of torch jobs refuse, and what trainers that differ are told."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch
import torch.distributed as dist
from torch import nn

import hpcdist.torch as ours
from hpcdist.errors import CommError, PlanError, TableError
from hpcdist.ps.facts import Initial
from hpcdist.torch import tables
from tests.torch.torch_ranks import rank_and_size, refused_when_forked

pytestmark = pytest.mark.usefixtures("no_tables_yet")


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
    module = ours.Embedding(None, 5)
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
    tables.reset()
    module = ours.Embedding(None, 2)
    optimizer = ours.TableOptimizer(module, "SGD", lr=1.0)
    module(torch.tensor([1])).sum().backward()
    if rank == 1:
        optimizer.param_groups[0]["lr"] = 2.0
    with pytest.raises(CommError, match="different learning rates"):
        optimizer.step()
    dist.barrier()


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
    for kind in ("Lion", "Adadelta"):  # the second moves parameters on servers, not rows
        with pytest.raises(TableError, match=f"no optimizer '{kind}': .* SGD, .*, Lamb$"):
            ours.TableOptimizer(module, kind, lr=0.1)
    for kind in ("AdamW", "Lamb"):
        with pytest.raises(TableError, match=f"{kind} moves rows of tables only"):
            ours.ServedOptimizer(nn.Linear(2, 2), kind, lr=0.1)
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


def test_what_transforms_of_torch_do_not_know_is_refused():
    module = ours.Embedding(None, 4, name="words")
    ours.TableOptimizer(module, lr=0.1)
    ids = torch.arange(3)
    for transform in (
        lambda: torch.jit.trace(module, ids),
        lambda: torch.export.export(nn.Sequential(module), (ids,)),
        lambda: torch.vmap(module)(ids),
    ):
        with pytest.raises(TableError, match="'words': rows are looked up by ids that are known"):
            transform()
    with pytest.raises(AttributeError, match="'words' has no weight: its rows are on several"):
        _ = module.weight
    assert not hasattr(module, "weight") and not hasattr(module, "bias")


def test_a_scaler_and_other_parameters_and_numbers_are_refused_before_a_step():
    module = ours.Embedding(None, 4, initial=Initial("constant", 1.0))
    optimizer = ours.TableOptimizer(module, lr=0.1)
    ids = torch.arange(3)
    for unscales in (False, True):
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(module(ids).sum()).backward()
        if unscales:
            scaler.unscale_(optimizer)
        with pytest.raises(TableError, match=r"GradScaler.step\(TableOptimizer\): it unscales no"):
            scaler.step(optimizer)
    optimizer.zero_grad()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(module(ids).sum()).backward()
    scaler.step(optimizer)
    with torch.no_grad():
        assert torch.equal(module(ids), torch.full((3, 4), 1 - 0.1))
    module(ids).sum().backward()
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(TableError, match="param_groups has 'weight_decay', and only the learning"):
        optimizer.step()
    with pytest.raises(TableError, match=r"TableOptimizer.add_param_group: what is kept"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


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
    with pytest.raises(TableError, match="ServedOptimizer.add_param_group: what is kept"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    frozen = nn.Linear(2, 2)
    frozen.bias.requires_grad_(False)
    of_frozen = ours.ServedOptimizer(frozen, lr=0.1, name="frozen")
    frozen.bias.requires_grad_(True)
    with pytest.raises(TableError, match="'bias' was frozen when ServedOptimizer was made"):
        of_frozen.step()
    with pytest.raises(TableError, match="needs parameter servers"):
        optimizer.step()


def test_one_moment_for_a_row_is_for_adagrad():
    module = ours.Embedding(None, 2, name="words", policy=ours.RowPolicy(row_wise=True))
    with pytest.raises(PlanError, match="'words': RowPolicy.row_wise=True.*adam is to move it"):
        ours.TableOptimizer(module, "Adam", lr=1.0)
    ours.TableOptimizer(module, "Adagrad", lr=1.0)
