"""Strategies of training in jobs: each is what it is in one process."""

from __future__ import annotations

from typing import Any

import pytest

import hpcdist as fluid
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import CheckpointError
from hpcdist.fleet import DistributedStrategy, Fleet
from hpcdist.launch import environment
from tests.mpi.collective_jobs import batch, check, fleet_script, network, parameters
from tests.mpi.plain_models import FEATURES, Model, check_job, embedded, regression
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (3, 0), (2, 1), (2, 2)]  # trainers, servers


def merged(loss: Any) -> None:
    rate = fluid.layers.exponential_decay(0.1, 2, 0.5, staircase=True)
    clip = fluid.clip.GradientClipByGlobalNorm(0.3)
    inner = fluid.optimizer.Momentum(rate, 0.9, grad_clip=clip)
    fluid.optimizer.GradientMergeOptimizer(inner, k_steps=2).minimize(loss)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_gradients_are_merged_over_steps_and_trainers(trainers, servers):
    check_job(Model(regression(6, 4), merged), trainers, servers)


def checkpointed() -> list[Any]:
    x, y = fluid.layers.data("x", [FEATURES]), fluid.layers.data("y", [1])
    first = fluid.layers.dropout(fluid.layers.fc(x, 6, act="tanh"), 0.3)
    second = fluid.layers.batch_norm(fluid.layers.fc(first, 6), act="relu")
    third = fluid.layers.fc(second, 6, act="tanh")
    guess = fluid.layers.fc(fluid.layers.elementwise_add(third, first), 1)
    cost = fluid.layers.square_error_cost(guess, y)
    return [fluid.layers.mean(cost), second, third]


def recomputing(loss: Any) -> None:
    names = [op.output("Out")[0] for op in loss.block.ops if op.type in ("relu", "tanh")]
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    optimizer._set_checkpoints(names)
    optimizer.minimize(loss)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES[:3])
def test_values_are_computed_again_on_every_trainer(trainers, servers):
    check_job(Model(checkpointed, recomputing), trainers, servers)


def in_mixed_precision(loss: Any) -> None:
    """The scale is so large that the first steps overflow."""
    fluid.contrib.mixed_precision.decorate(
        fluid.optimizer.Momentum(0.1, 0.9), init_loss_scaling=2.0**127, decr_ratio=2.0**-60
    ).minimize(loss)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("trainers", [2, 3])
def test_trainers_scale_alike_in_mixed_precision(trainers):
    def net() -> list[Any]:
        loss, guess, _ = regression(6)()
        return [loss, guess]

    # Half precision has 11 bits, and partial sums of gradients are rounded on each trainer.
    check_job(Model(net, in_mixed_precision, near=4e-3), trainers, 0)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES[:3])
def test_bfloat16_trains_with_servers_and_without(trainers, servers):
    def in_bfloat16(loss: Any) -> None:
        fluid.contrib.mixed_precision.decorate_bf16(fluid.optimizer.SGD(0.1)).minimize(loss)

    # 8 bits, and partial sums of gradients are rounded on each trainer.
    check_job(Model(embedded, in_bfloat16, near=2e-2), trainers, servers)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_overflows_on_one_trainer_is_skipped_by_all(monkeypatch):
    """Steps of one trainer that overflow leave the parameters of all as they were."""

    def script(role: Any) -> Any:
        for name, value in environment.variables(Cluster((0, 1)), role.index).items():
            monkeypatch.setenv(name, value)
        fleet, strategy = Fleet(), DistributedStrategy()
        fleet.init(is_collective=True)
        strategy.amp = True
        strategy.amp_configs = {"decr_every_n_nan_or_inf": 1, "decr_ratio": 0.5}
        made = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy)
        _, startup, loss = network(made.minimize)
        exe = fluid.Executor()
        exe.run(startup)
        scaling = next(v for v in loss.block.vars if v.startswith("loss_scaling"))
        seen = []
        for step in range(6):
            feed = batch(step, role.index)
            if step in (2, 3) and role.index == 1:
                feed["y"][0] = 1e30
            (scale,) = exe.run(fleet.main_program, feed=feed, fetch_list=[scaling])
            held = parameters(loss.block.program)
            seen.append((float(scale[0]), {name: v.tobytes() for name, v in held.items()}))
        return seen

    first, second = values(run_job(2, 0, script))
    assert first == second
    scales = [scale / 2**15 for scale, _ in first]
    assert scales == [1, 1, 1, 0.5, 0.5, 0.5]
    trained = [held for _, held in first]
    assert trained[1] == trained[2] == trained[3]
    assert all(trained[k] != trained[k + 1] for k in (0, 3, 4))


@pytest.mark.parametrize("trainers", [2, 3])
def test_gradient_merge_and_recompute_of_fleet(trainers, monkeypatch):
    def choose(strategy: Any) -> None:
        strategy.recompute = trainers == 3
        strategy.recompute_configs = {"checkpoints": ["fc_0.tmp_2"]}
        strategy.gradient_merge = True
        strategy.gradient_merge_configs = {"k_steps": 2}

    def minimize(loss: Any) -> None:
        inner = fluid.optimizer.Momentum(0.1, 0.9)
        fluid.optimizer.GradientMergeOptimizer(inner, 2).minimize(loss)

    def script(role: Any) -> Any:
        return fleet_script(role, trainers, monkeypatch, choose)

    check(trainers, minimize, script)


# -- checkpoints in the midst of steps that are merged -----------------------------------------
def merging_script(root: Any, begin: int, end: int, save: bool) -> Any:
    def script(role: Any) -> Any:
        main, startup, loss = network(merged)
        exe = fluid.Executor()
        exe.run(startup)
        if begin:
            assert fluid.checkpoint.restore(exe, root, main_program=main).step == begin
        losses = [
            float(exe.run(main, feed=batch(step, 0), fetch_list=[loss])[0][0])
            for step in range(begin, end)
        ]
        if save:
            fluid.checkpoint.save(exe, root, end, main_program=main)
        return losses

    return script


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (2, 1)])
def test_a_job_goes_on_in_the_midst_of_merged_steps(mpi_tmp_path, trainers, servers):
    whole = values(run_job(trainers, servers, merging_script(mpi_tmp_path, 0, 6, False)))
    values(run_job(trainers, servers, merging_script(mpi_tmp_path, 0, 3, True)))
    rest = values(run_job(trainers, servers, merging_script(mpi_tmp_path, 3, 6, False)))
    assert rest == [losses[3:] for losses in whole]
    with alone(), pytest.raises(CheckpointError, match="had merged the gradients of 1 steps"):
        merging_script(mpi_tmp_path, 3, 6, False)(None)
