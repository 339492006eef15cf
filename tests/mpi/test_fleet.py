"""Fleet over MPI: the same numbers as the transpiler, and servers that end with their workers."""

from __future__ import annotations

import os

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.comm.cluster import PSERVER
from hpcdist.fleet import Fleet
from hpcdist.fluid.fleet.role_maker import Role, UserDefinedRoleMaker
from hpcdist.fluid.fleet.strategy import StrategyFactory
from hpcdist.graph import names
from hpcdist.transpiler import DistributeTranspiler
from tests.support.fleet_net import (
    STEPS,
    in_one_process,
    net,
    own_programs,
    results,
    trained,
)
from tests.support.job import run_job

SHAPES = [(1, 1), (2, 1), (2, 2), (1, 3)]  # trainers, servers


def by_fleet(trainers, servers, as_given=False, strategy=None, rate=0.1, steps=STEPS):
    """Return a script that trains with fleet; as_given runs the programs as they were built.

    ``strategy`` names what StrategyFactory creates.
    """

    def script(role):
        fleet = Fleet()
        kind = Role.SERVER if role.kind == PSERVER else Role.WORKER
        called = [f"10.0.0.{k}:7000" for k in range(servers)]
        fleet.init(UserDefinedRoleMaker(role.index, kind, trainers, called))
        with own_programs(), names.guard():
            loss = net()
            optimizer = fluid.optimizer.Momentum(rate, 0.9)
            chosen = getattr(StrategyFactory, f"create_{strategy}_strategy")() if strategy else None
            fleet.distributed_optimizer(optimizer, chosen).minimize(loss)
            if fleet.is_server():
                fleet.init_server()
                fleet.run_server()
                return "served"
            fleet.init_worker()
            programs = fleet.main_program, fleet.startup_program
            if as_given:
                programs = fluid.default_main_program(), fluid.default_startup_program()
            who = fleet.worker_index(), fleet.worker_num()
            losses = trained(*programs, loss, *who, steps=steps)
            fleet.stop_worker()
            return losses

    return script


def by_transpiler(trainers, servers):
    def script(role):
        with own_programs(), names.guard():
            loss = net()
            fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
            transpiler = DistributeTranspiler()
            called = [f"ps{k}:6174" for k in range(servers)]
            serves = role.kind == PSERVER
            transpiler.transpile(
                0 if serves else role.index, pservers=",".join(called), trainers=trainers
            )
            exe = fluid.Executor()
            if serves:
                main, startup = transpiler.get_pserver_programs(called[role.index])
                exe.run(startup)
                exe.run(main)
                return "served"
            main, startup = transpiler.get_trainer_program(), fluid.default_startup_program()
            losses = trained(main, startup, loss, role.index, trainers, exe)
            exe.close()
            return losses

    return script


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_synchronous_fleet_trains_as_the_transpiler(trainers, servers):
    shape = trainers, servers
    expected = results(run_job(*shape, by_transpiler(*shape)))
    found = results(run_job(*shape, by_fleet(*shape)))
    assert found == expected
    assert found[trainers:] == ["served"] * servers
    # Equal shares: the mean over workers is the loss of one process on the whole batch.
    assert np.allclose(np.mean(found[:trainers], axis=0), in_one_process(), atol=2e-6)


@pytest.mark.mpi(min_size=2)
def test_the_programs_that_were_built_train_too():
    expected = results(run_job(1, 1, by_fleet(1, 1)))
    assert results(run_job(1, 1, by_fleet(1, 1, as_given=True))) == expected


@pytest.mark.mpi(min_size=2)
def test_one_worker_trains_as_one_process():
    assert results(run_job(1, 1, by_fleet(1, 1)))[0] == in_one_process()


@pytest.fixture
def environ_kept(monkeypatch):
    """Undo what `init_worker` writes into the environment."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("as_given", [False, True])
@pytest.mark.parametrize("strategy", ["async", "half_async", "geo"])
def test_one_worker_trains_as_one_process_in_every_strategy(environ_kept, strategy, as_given):
    """Nothing is merged by default, and a lone worker's differences are its own."""
    found = results(run_job(1, 1, by_fleet(1, 1, as_given, strategy)))
    assert found == [in_one_process(), "served"]


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("strategy", ["async", "half_async", "geo"])
@pytest.mark.parametrize(("trainers", "servers"), SHAPES[1:3])
def test_workers_converge_in_every_strategy(environ_kept, strategy, trainers, servers):
    shape = trainers, servers
    script = by_fleet(*shape, strategy=strategy, rate=0.01, steps=60)
    found = results(run_job(*shape, script))
    assert found[trainers:] == ["served"] * servers
    # A worker that starts late finds parameters that the other has trained already.
    untrained = max(np.mean(losses[:10]) for losses in found[:trainers])
    for losses in found[:trainers]:
        assert np.mean(losses[-10:]) < 0.5 * untrained


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("told", "message"),
    [
        ((0, Role.SERVER, 1, ["a:1"]), "role maker says server 0 of 1 workers and 1 servers"),
        ((0, Role.WORKER, 2, ["a:1"]), "role maker says worker 0 of 2 workers and 1 servers"),
        ((0, Role.WORKER, 1, ["a:1", "b:1"]), "role maker says worker 0 of 1 workers and 2"),
    ],
)
def test_a_role_maker_that_contradicts_the_launcher(told, message):
    def script(role):
        if role.kind == PSERVER:
            return "not asked"
        with pytest.raises(ValueError, match="this rank is worker 0 of 1 workers and 1 servers"):
            Fleet().init(UserDefinedRoleMaker(*told))
        with pytest.raises(ValueError, match=message):
            Fleet().init(UserDefinedRoleMaker(*told))
        return "refused"

    # The worker leaves without a word: nobody is connected.
    assert results(run_job(1, 1, script)) == ["refused", "not asked"]
