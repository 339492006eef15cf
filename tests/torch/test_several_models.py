"""Several models with tables in one process: side by side, one after the other, dropped."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests.scripts import read_script
from tests.support.jobs import Job, needs_mpirun, needs_torch

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import hpcdist.torch as ours  # noqa: E402
from hpcdist.errors import CheckpointError, TableError  # noqa: E402
from tests.torch.torch_ranks import rank_and_size  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_tables_yet")
IDS = torch.tensor([1, 2, 3])


def made():
    """Return a table with its optimizer. Collective."""
    rank_and_size()
    module = ours.Embedding(None, 4)
    return module, ours.TableOptimizer(module, "Adam", lr=0.1)


def trained(module, optimizer, steps: int = 2):
    """Train a model; return its rows of three ids then."""
    for _ in range(steps):
        optimizer.zero_grad()
        module(IDS).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        return module(IDS)


@pytest.mark.mpi
def test_the_next_model_trains_as_the_first_did_and_beside_it():
    first = made()
    alone = trained(*first)
    second = made()
    assert second[0].name == first[0].name  # so its rows begin with the same values
    assert torch.equal(trained(*second), alone)
    assert torch.equal(trained(*first, steps=0), alone)
    assert not torch.equal(trained(*first), alone)
    assert torch.equal(trained(*second, steps=0), alone)


@pytest.mark.mpi
def test_the_rows_of_a_model_go_with_it():
    module, optimizer = made()
    trained(module, optimizer)
    table = weakref.ref(next(iter(module.tables.local.values())))
    del module, optimizer
    gc.collect()
    assert table() is None


@pytest.mark.mpi
def test_a_dropped_model_is_refused():
    module, optimizer = made()
    trained(module, optimizer)
    ours.drop_tables(torch.nn.Sequential(module))
    assert not module.tables.local
    with pytest.raises(TableError, match="embedding_0: was dropped"):
        module(IDS)
    with pytest.raises(TableError, match="was dropped"):
        optimizer.step()
    with pytest.raises(TableError, match=r"drop_tables: expected a model .* got a Linear without"):
        ours.drop_tables(torch.nn.Linear(1, 1))


@pytest.mark.mpi
def test_what_is_for_one_model_refuses_tables_of_two(tmp_path):
    first = made()
    trained(*first)
    second = ours.Embedding(None, 4)
    both = torch.nn.ModuleDict({"first": first[0], "second": second})
    with pytest.raises(TableError, match="were made after others had been looked up"):
        ours.TableOptimizer(both, "SGD", lr=0.1)
    with pytest.raises(TableError, match="a rows_ahead of its own"):
        next(ours.rows_ahead([IDS], lambda ids: {first[0]: ids, second: ids}))
    with pytest.raises(CheckpointError, match="a Saver of its own|only under our launcher"):
        ours.Saver(tmp_path, {"both": both})


@needs_mpirun
@needs_torch
@pytest.mark.parametrize(
    "servers, how, served", [(0, "forget", 0), (2, "forget", 1), (1, "drop", 0)]
)
def test_folds_of_a_job_train_alike(tmp_path, servers, how, served):
    options = ("--as-torchrun", "--quiet", *(("--pservers", str(servers)) if servers else ()))
    env = {"OMP_NUM_THREADS": "1", "SERVED": str(served)}
    job = Job(
        tmp_path, read_script("torch_folds"), *options, ranks=2 + servers, args=[how], env=env
    ).end()
    assert job.code == 0, job.err
    assert job.out.count("folds agree") == 2


@needs_mpirun
@needs_torch
def test_servers_keep_one_model_at_a_time(tmp_path):
    env = {"OMP_NUM_THREADS": "1"}
    options = ("--as-torchrun", "--quiet", "--pservers", "1")
    script = read_script("torch_folds")
    job = Job(tmp_path, script, *options, ranks=2, args=["keep"], env=env).end()
    assert job.code == 1
    assert "servers keep embedding_0 of a model that trainer 0 still uses" in job.err, job.err
    assert "drop_tables(model)" in job.err
