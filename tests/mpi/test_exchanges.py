"""What scripts exchange among trainers in a step, by the collectives of ``paddle.distributed``."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.fleet import DistributedStrategy, Fleet
from hpcdist.fluid.compat.paddle2 import distributed as dist
from tests.mpi.collective_jobs import as_launched, batch, network, refused
from tests.support.job import run_job, values

pytestmark = pytest.mark.mpi(min_size=2)


def fetched(role: Any, trainers: int, monkeypatch: Any, build: Any) -> list[Any]:
    """Return what a Program without training gives trainer k, which feeds ``x`` [trainers, 2]."""
    as_launched(role, trainers, monkeypatch)
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
        wanted = build(fluid.data("x", [trainers, 2]), trainers)
    exe = fluid.Executor(fluid.CPUPlace())
    return [v.tolist() for v in exe.run(main, feed=fed(role.index, trainers), fetch_list=wanted)]


def fed(k: int, trainers: int) -> dict[str, np.ndarray]:
    return {"x": (np.arange(2.0 * trainers).reshape(-1, 2) + 10 * k).astype(np.float32)}


def everyones(trainers: int) -> np.ndarray:
    return np.stack([fed(k, trainers)["x"] for k in range(trainers)])


@pytest.mark.parametrize(
    ("op", "reduce"), [("SUM", np.sum), ("MAX", np.max), ("MIN", np.min), ("PROD", np.prod)]
)
@pytest.mark.parametrize("trainers", [2, 3])
def test_values_are_reduced_on_all_or_on_one(trainers, op, reduce, monkeypatch):
    def build(x: Any, _: int) -> list[Any]:
        all_, one = fluid.layers.assign(x), fluid.layers.assign(x)
        dist.all_reduce(all_, getattr(dist.ReduceOp, op))
        dist.reduce(one, 1, getattr(dist.ReduceOp, op))
        return [all_, one]

    found = values(run_job(trainers, 0, lambda r: fetched(r, trainers, monkeypatch, build)))
    xs = everyones(trainers)
    whole = reduce(xs, axis=0)
    for k, (all_, one) in enumerate(found):
        np.testing.assert_allclose(all_, whole)
        np.testing.assert_allclose(one, whole if k == 1 else xs[k])


@pytest.mark.parametrize("trainers", [2, 3])
def test_values_go_from_trainer_to_trainer(trainers, monkeypatch):
    def build(x: Any, n: int) -> list[Any]:
        copy, part, summed = (fluid.layers.assign(x) for _ in range(3))
        dist.broadcast(copy, 1)
        dist.scatter(part, [x * (k + 2) for k in range(n)], src=1)
        dist.reduce_scatter(summed, [x + k for k in range(n)])
        gathered: list[Any] = []
        dist.all_gather(gathered, x)
        came: list[Any] = []
        dist.alltoall([x + k for k in range(n)], came)
        dist.barrier()
        return [copy, part, summed, *gathered, *came]

    found = values(run_job(trainers, 0, lambda r: fetched(r, trainers, monkeypatch, build)))
    xs = everyones(trainers)
    for k, (copy, part, summed, *lists) in enumerate(found):
        np.testing.assert_array_equal(copy, xs[1])
        np.testing.assert_array_equal(part, xs[1] * (k + 2))
        np.testing.assert_array_equal(summed, np.sum(xs + k, axis=0))
        np.testing.assert_array_equal(lists[:trainers], xs)
        np.testing.assert_array_equal(lists[trainers:], xs + k)


def test_values_without_dimensions_are_gathered(monkeypatch):
    def build(x: Any, _: int) -> list[Any]:
        mean = fluid.layers.reshape(fluid.layers.mean(x), [])
        gathered: list[Any] = []
        dist.all_gather(gathered, mean)
        assert [v.shape for v in gathered] == [(), ()]
        return gathered

    found = values(run_job(2, 0, lambda r: fetched(r, 2, monkeypatch, build)))
    assert found == [[1.5, 11.5]] * 2


def script_of(monkeypatch: Any, collective: bool, steps: Any) -> Any:
    """Return a script that fetches its loss and the sum of all trainers' losses."""

    def script(role: Any) -> Any:
        as_launched(role, 2, monkeypatch)
        summed = []
        sgd = fluid.optimizer.SGD(0.1)

        def minimize(loss: Any) -> None:
            summed.append(fluid.layers.assign(loss))
            dist.all_reduce(summed[0])
            optimizer: Any = sgd
            if collective:
                fleet = Fleet()
                fleet.init(is_collective=True)
                optimizer = fleet.distributed_optimizer(sgd, DistributedStrategy())
            optimizer.minimize(loss)

        main, startup, loss = network(minimize)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return [
            exe.run(main, feed=batch(step, role.index), fetch_list=[loss, summed[0]])
            for step in range(steps(role.index))
        ]

    return script


def test_workers_of_fleet_sum_a_metric_while_they_train(monkeypatch):
    found = values(run_job(2, 0, script_of(monkeypatch, True, lambda k: 3)))
    for (mine, summed), (yours, again) in zip(*found):
        np.testing.assert_allclose(summed, mine + yours, rtol=1e-6)
        np.testing.assert_array_equal(summed, again)
    losses = [float(np.squeeze(loss)) for loss, _ in itertools.chain(*found)]
    assert len(set(losses)) == len(losses)


def test_trainers_that_share_batches_have_nothing_to_exchange(monkeypatch):
    words = "trainers of a plain script share every batch, and compute what one process does"
    refused(script_of(monkeypatch, False, lambda k: 1), words)


def test_trainers_that_exchange_something_else_are_named(monkeypatch):
    def script(role: Any) -> Any:
        def build(x: Any, _: int) -> list[Any]:
            copy = fluid.layers.assign(x)
            dist.broadcast(copy, 1) if role.index else dist.all_reduce(copy)
            return [copy]

        return fetched(role, 2, monkeypatch, build)

    refused(script, "exchange something else: all trainers must run the same Programs")
