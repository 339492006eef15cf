"""Optimizer state that trainers divide: the same bits as without, on any number of trainers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import CheckpointError, PlanError
from hpcdist.fleet import DistributedStrategy, Fleet
from hpcdist.launch import environment
from tests.mpi.collective_jobs import batch, check, network, parameters
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

STEPS = 6


def clipped_momentum() -> Any:
    rate = fluid.layers.exponential_decay(0.1, 2, 0.5, staircase=True)
    decay = fluid.regularizer.L2Decay(0.1)
    clip = fluid.clip.GradientClipByGlobalNorm(0.3)
    return fluid.optimizer.Momentum(rate, 0.9, regularization=decay, grad_clip=clip)


def adam() -> Any:
    return fluid.optimizer.Adam(0.1)


OPTIMIZERS = {
    "momentum": clipped_momentum,
    "adam": adam,
    "adamax": lambda: fluid.optimizer.Adamax(0.1),
    "sgd": lambda: fluid.optimizer.SGD(0.1),
}


class Script:
    """A script of fleet 2.0; with ``saves`` it saves after its steps, if any it restores first."""

    def __init__(self, patch: Any, trainers: int, optimizer: Any, **strategy: Any) -> None:
        self.patch, self.trainers, self.optimizer = patch, trainers, optimizer
        self.strategy = strategy
        self.root: Any = None
        self.begin, self.end, self.own = 0, STEPS, True

    def __call__(self, role: Any) -> Any:
        self.environment(role)
        fleet, strategy = Fleet(), DistributedStrategy()
        fleet.init(is_collective=True)
        for name, value in self.strategy.items():
            setattr(strategy, name, value)
        minimized = lambda loss: fleet.distributed_optimizer(  # noqa: E731
            self.optimizer(), strategy
        ).minimize(loss)
        main, startup, loss = network(minimized)
        exe = fluid.Executor()
        exe.run(startup)
        if self.begin:
            assert fluid.checkpoint.restore(exe, self.root, main_program=main).step == self.begin
        losses = []
        for step in range(self.begin, self.end):
            feed = batch(step, role.index if self.own else 0)
            losses.append(exe.run(fleet.main_program, feed=feed, fetch_list=[loss])[0].tobytes())
        if self.root is not None and not self.begin:
            fluid.checkpoint.save(exe, self.root, self.end, main_program=main)
        return losses, held(main), parameters(main)

    def environment(self, role: Any) -> None:
        cluster = Cluster(tuple(range(self.trainers)))
        for name, value in environment.variables(cluster, role.index).items():
            self.patch.setenv(name, value)


def held(main: Any) -> set[str]:
    """Return the variables of optimizer state that this rank has."""
    names = set()
    for op in main.global_block().ops:
        if op.input("Param") and op.input("Grad"):
            names |= {*op.input_arg_names} - {*op.input("Param"), *op.input("Grad")}
            names -= {*op.input("LearningRate")}
    scope = fluid.global_scope()
    return {n for n in names if (v := scope.find_var(n)) is not None and v.value is not None}


def losses_of(found: Any) -> np.ndarray:
    """Return the losses, [trainer, step]."""
    return np.array([[np.frombuffer(x, np.float32)[0] for x in losses] for losses, *_ in found])


@pytest.mark.parametrize(
    ("optimizer", "trainers"), [*((name, 3) for name in OPTIMIZERS), ("momentum", 2)]
)
def test_sharding_gives_the_same_bits(optimizer, trainers, monkeypatch):
    found = {}
    for sharding in (False, True):
        script = Script(monkeypatch, trainers, OPTIMIZERS[optimizer], sharding=sharding)
        found[sharding] = values(run_job(trainers, 0, script))
    for one, other in zip(found[False], found[True]):
        assert one[0] == other[0]
        assert {n: v.tobytes() for n, v in one[2].items()} == {
            n: v.tobytes() for n, v in other[2].items()
        }
    whole = found[False][0][1]
    parts = [state for _, state, _ in found[True]]
    assert set().union(*parts) == whole and sum(map(len, parts)) == len(whole)
    assert not whole or all(parts)


def test_sharding_is_one_process(monkeypatch):
    def script(role: Any) -> Any:
        made = Script(monkeypatch, 2, adam, sharding=True)
        made.end = 5
        losses, _, trained = made(role)
        return losses_of([(losses,)])[0], trained

    check(2, lambda loss: fluid.optimizer.Adam(0.1).minimize(loss), script)


def test_sharding_with_gradient_merge_recompute_and_grad_allreduce(monkeypatch):
    found, trainers = {}, 2
    for sharding in (False, True):
        script = Script(
            monkeypatch,
            trainers,
            adam,
            sharding=sharding,
            gradient_merge=True,
            gradient_merge_configs={"k_steps": 2},
            recompute=True,
            recompute_configs={"checkpoints": ["fc_0.tmp_2"]},
            mode="collective",
            collective_mode="grad_allreduce",
        )
        found[sharding] = [losses for losses, *_ in values(run_job(trainers, 0, script))]
    assert found[True] == found[False]


def job(patch: Any, trainers: int, root: Any, begin: int, end: int, sharding: bool = True) -> Any:
    made = Script(patch, trainers, adam, sharding=sharding)
    made.root, made.begin, made.end, made.own = root, begin, end, False
    return losses_of(values(run_job(trainers, 0, made)))


@pytest.mark.parametrize("trainers", [2, 3])
def test_checkpoints_of_sharded_state_fit_other_jobs(mpi_tmp_path, trainers, monkeypatch):
    whole = job(monkeypatch, trainers, None, 0, 6)
    first = job(monkeypatch, trainers, mpi_tmp_path, 0, 3)
    np.testing.assert_array_equal(first, whole[:, :3])
    rest = job(monkeypatch, trainers, mpi_tmp_path, 3, 6)
    np.testing.assert_array_equal(rest, whole[:, 3:])
    rest = job(monkeypatch, trainers, mpi_tmp_path, 3, 6, sharding=False)
    np.testing.assert_array_equal(rest, whole[:, 3:])
    if trainers == 3:
        rest = job(monkeypatch, 2, mpi_tmp_path, 3, 6)
        np.testing.assert_allclose(rest, whole[:2, 3:], rtol=1e-5)
    with alone():
        main, startup, loss = network(lambda loss: fluid.optimizer.Adam(0.1).minimize(loss))
        exe = fluid.Executor()
        exe.run(startup)
        fluid.checkpoint.restore(exe, mpi_tmp_path, main_program=main)
        for step in range(3, 6):
            (got,) = exe.run(main, feed=batch(step, 0), fetch_list=[loss])
            np.testing.assert_allclose(got[0], whole[0, step], rtol=1e-5)


def test_what_sharding_refuses(mpi_tmp_path, monkeypatch):
    def script(role: Any) -> None:
        made = Script(monkeypatch, 2, adam, sharding=True)
        made.end = 1
        made(role)

    def saving(role: Any) -> None:
        fleet, strategy = Fleet(), DistributedStrategy()
        Script(monkeypatch, 2, None).environment(role)
        fleet.init(is_collective=True)
        strategy.sharding = True
        made = fleet.distributed_optimizer(fluid.optimizer.Adam(0.1), strategy)
        main, startup, _ = network(made.minimize)
        exe = fluid.Executor()
        exe.run(startup)
        with pytest.raises(CheckpointError, match=r"checkpoint\.save has each write its part"):
            fluid.io.save_persistables(exe, str(mpi_tmp_path), main)
        fluid.io.save_params(exe, str(mpi_tmp_path), main)
        fluid.io.load_params(exe, str(mpi_tmp_path), main)
        own = held(main)
        kept = fluid.io.get_program_persistable_vars(main)
        fluid.set_program_state(main, {v.name: np.ones(v.shape, v.dtype) for v in kept})
        assert held(main) == own
        assert all((value == 1).all() for value in parameters(main).values())

    values(run_job(2, 0, saving))
    twice = lambda role: twice_minimized(role, monkeypatch)  # noqa: E731
    outcomes = run_job(2, 0, twice, aborts=False)
    assert all("minimize once, or leave sharding out" in o.error for o in outcomes)
    assert all(PlanError.__name__ in o.error_types for o in outcomes)


def twice_minimized(role: Any, patch: Any) -> None:
    """The second backward reads what the first optimizer has updated."""
    Script(patch, 2, None).environment(role)
    fleet, strategy = Fleet(), DistributedStrategy()
    fleet.init(is_collective=True)
    strategy.sharding = True

    def minimize(loss: Any) -> None:
        fluid.optimizer.Adam(0.1).minimize(loss)
        made = fleet.distributed_optimizer(fluid.optimizer.Momentum(0.1, 0.9), strategy)
        made.minimize(loss)

    main, startup, loss = network(minimize)
    exe = fluid.Executor()
    exe.run(startup)
    exe.run(main, feed=batch(0, role.index), fetch_list=[loss])
