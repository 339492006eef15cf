"""Strategies of training without servers, in both generations; a worker that trains alone."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import fleet as fleet2
from hpcdist.comm.bucket import Fusing
from hpcdist.errors import FleetError
from hpcdist.fleet import Fleet, UserDefinedCollectiveRoleMaker
from hpcdist.fleet import collective as fleet1
from hpcdist.fluid.compat.paddle2 import optimizer as paddle2
from hpcdist.fluid.fleet.strategy_v2 import REFUSED
from hpcdist.transpiler.grad_allreduce import without_average
from tests.support.update_programs import OPTIMIZERS


def network(optimizer=None):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = fluid.layers.data("x", [3]), fluid.layers.data("y", [1])
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
    return main, startup, loss


def minimized(fleet, optimizer, strategy=None):
    main, startup, loss = network()
    fleet.distributed_optimizer(optimizer, strategy).minimize(loss, startup)
    return main, startup, loss


def started(index=0, workers=2, kind=Fleet):
    fleet = kind()
    names = [f"127.0.0.{k + 1}:6170" for k in range(workers)]
    fleet.init(UserDefinedCollectiveRoleMaker(index, names))
    return fleet


def kinds(program):
    return [op.type for op in program.global_block().ops]


# -- alone -------------------------------------------------------------------------------------
@pytest.mark.parametrize("fleet", [Fleet(), fleet1.Collective()])
def test_a_worker_alone_trains_alone(fleet, monkeypatch):
    monkeypatch.delenv("PADDLE_TRAINER_ENDPOINTS", raising=False)
    fleet.init(is_collective=True)
    assert (fleet.worker_index(), fleet.worker_num()) == (0, 1)
    assert fleet.is_first_worker() and fleet.is_worker() and not fleet.is_server()
    fleet.barrier_worker()
    with fluid.scope_guard(fluid.Scope()):
        main, _, loss = minimized(fleet, fluid.optimizer.SGD(0.1))
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fleet.startup_program)
        fleet.init_worker()
        feed = {"x": np.ones((2, 3), np.float32), "y": np.ones((2, 1), np.float32)}
        first, second = (
            float(exe.run(fleet.main_program, feed=feed, fetch_list=[loss])[0][0]) for _ in range(2)
        )
        third = float(exe.run(main, feed=feed, fetch_list=[loss])[0][0])
        assert first > second > third
        fleet.stop_worker()


# -- programs ----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind, fusing", [(Fleet, Fusing(32, 50)), (fleet1.Collective, None)])
def test_programs_of_a_worker(kind, fusing):
    main, startup, _ = minimized(started(1, kind=kind), fluid.optimizer.SGD(0.1))
    assert kinds(startup)[-1] == "gen_nccl_id"
    assert main.distribution.trainer_id == 1 and len(main._trainers_endpoints) == 2
    assert main.distribution.fusing == fusing


@pytest.mark.parametrize("hosts, kept", [(1, False), (2, True)])
def test_on_one_node_there_is_one_level_and_one_communicator(hosts, kept):
    strategy = fleet1.DistributedStrategy()
    strategy.nccl_comm_num = 3
    strategy.use_hierarchical_allreduce = True
    strategy.hierarchical_allreduce_inter_nranks = 2
    names = [f"10.0.0.{k * hosts // 4}:{6170 + k}" for k in range(4)]
    fleet = fleet1.Collective()
    fleet.init(UserDefinedCollectiveRoleMaker(0, names))
    _, startup, _ = minimized(fleet, fluid.optimizer.SGD(0.1), strategy)
    attrs = startup.global_block().ops[-1].attrs
    assert attrs["use_hierarchical_allreduce"] == kept
    assert attrs["nccl_comm_num"] == (3 if kept else 1)


def test_fleet_2s_settings_reach_the_program():
    strategy = fleet2.DistributedStrategy()
    strategy.nccl_comm_num = 2
    strategy.fuse_grad_size_in_MB = 16
    strategy.fuse_grad_size_in_TFLOPS = 7
    strategy.sync_nccl_allreduce = False
    strategy.use_hierarchical_allreduce = True
    strategy.hierarchical_allreduce_inter_nranks = 2
    main, startup, _ = minimized(started(workers=4), fluid.optimizer.SGD(0.1), strategy)
    assert main.distribution.fusing == Fusing(16, 7)
    attrs = startup.global_block().ops[-1].attrs
    assert (attrs["nccl_comm_num"], attrs["use_hierarchical_allreduce"]) == (2, True)
    assert attrs["hierarchical_allreduce_inter_nranks"] == 2
    unfused = fleet2.DistributedStrategy()
    unfused.fuse_all_reduce_ops = False
    assert not minimized(started(), fluid.optimizer.SGD(0.1), unfused)[0].distribution.fused


@pytest.mark.parametrize("generation", [fleet1, fleet2])
def test_local_sgd(generation):
    strategy = generation.DistributedStrategy()
    strategy.use_local_sgd = True
    main, _, _ = minimized(started(), fluid.optimizer.SGD(0.1), strategy)
    assert "fc_0.w_0@SNAPSHOT" in main.global_block().vars
    assert kinds(main).count("c_allreduce_sum") == 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_local_sgd_averages_what_any_optimizer_moves(name):
    """Adadelta has no learning rate."""
    strategy = fleet2.DistributedStrategy()
    strategy.localsgd = True
    main, _, _ = minimized(started(), OPTIMIZERS[name](0.1), strategy)
    assert kinds(main).count("c_allreduce_sum") == 2


def test_local_sgd_averages_in_some_steps_only():
    strategy = fleet2.DistributedStrategy()
    strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 3, "begin_step": 2}
    optimizer = fluid.optimizer.Momentum(0.1, 0.9, regularization=fluid.regularizer.L2Decay(0.1))
    main, _, _ = minimized(started(), optimizer, strategy)
    assert [step for step in range(1, 10) if main.distribution.averages(step)] == [1, 2, 5, 8]

    alone, _, loss = network()
    optimizer.minimize(loss)
    assert kinds(without_average(main)) == kinds(alone)


def test_steps_between_averages_keep_what_moves_parameters():
    strategy = fleet2.DistributedStrategy()
    strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 3, "begin_step": 2}
    decaying = fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.Momentum)
    main, _, _ = minimized(started(), decaying(0.1, learning_rate=0.1, momentum=0.9), strategy)
    alone, _, loss = network()
    decaying(0.1, learning_rate=0.1, momentum=0.9).minimize(loss)
    assert kinds(without_average(main)) == kinds(alone)
    assert "assign" in kinds(alone)


def test_grad_allreduce():
    strategy = fleet1.DistributedStrategy()
    strategy.mode, strategy.collective_mode = "collective", "grad_allreduce"
    main, startup, _ = minimized(started(), fluid.optimizer.SGD(0.1), strategy)
    assert kinds(main).count("c_allreduce_sum") == 2
    assert kinds(startup).count("c_broadcast") == 2


@pytest.mark.parametrize("name", ["lars", "lamb", "dgc"])
def test_what_takes_the_place_of_an_optimizer_of_paddle_2_follows_its_scheduler(name):
    strategy = fleet2.DistributedStrategy()
    setattr(strategy, name, True)
    rate = paddle2.lr.StepDecay(0.5, step_size=1, gamma=0.5)
    given = paddle2.Adam(rate) if name == "lamb" else paddle2.Momentum(rate, 0.9)
    main, _, _ = minimized(started(), given, strategy)
    types = {"lars": "lars_momentum", "lamb": "unbiased_lamb", "dgc": "momentum"}  # few elements
    (update, *_) = [op for op in main.global_block().ops if op.type == types[name]]
    rate.step()
    scope = fluid.Scope()
    paddle2.set_rates(main, scope, with_servers=False)
    assert np.array(scope.find_var(update.input("LearningRate")[0]).get_tensor()) == [0.25]


def test_lars_and_lamb_take_the_place_of_others():
    lars, lamb = fleet2.DistributedStrategy(), fleet2.DistributedStrategy()
    lars.lars = True
    lars.lars_configs = {"lars_coeff": 0.01}
    main, _, _ = minimized(started(), fluid.optimizer.Momentum(0.1, 0.9), lars)
    (update, *_) = [op for op in main.global_block().ops if op.type == "lars_momentum"]
    assert (update.attrs["lars_coeff"], update.attrs["mu"]) == (0.01, 0.9)
    lamb.lamb = True
    lamb.lamb_configs = {"exclude_from_weight_decay": [".b_0"]}
    main, _, _ = minimized(started(), fluid.optimizer.Adam(0.1), lamb)
    decays = {
        op.input("Param")[0]: op.attrs["weight_decay"]
        for op in main.global_block().ops
        if op.type == "lamb"
    }
    assert decays == {"fc_0.b_0": 0.0, "fc_0.w_0": 0.01}
    for strategy in (lars, lamb):
        with pytest.raises(ValueError, match="expects an? "):
            started().distributed_optimizer(fluid.optimizer.SGD(0.1), strategy)


@pytest.mark.parametrize(
    "fields",
    [
        {"localsgd": True},
        {"adaptive_localsgd": True},
        {"mode": "collective", "collective_mode": "local_sgd"},
    ],
)
def test_workers_that_update_by_themselves_do_not_divide_state(fields):
    strategy = fleet2.DistributedStrategy()
    for name, value in {"sharding": True, **fields}.items():
        setattr(strategy, name, value)
    with pytest.raises(FleetError, match="sharding and local SGD exclude each other"):
        strategy.collective()


def test_a_strategy_given_to_init_counts():
    strategy = fleet2.DistributedStrategy()
    strategy.localsgd = True
    fleet = Fleet()
    fleet.init(UserDefinedCollectiveRoleMaker(0, ["a:1", "b:1"]), strategy=strategy)
    assert "c_allreduce_sum" in kinds(minimized(fleet, fluid.optimizer.SGD(0.1))[0])


# -- refused -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_not_built_refuses_when_it_is_set(name):
    strategy = fleet2.DistributedStrategy()
    setattr(strategy, name, False)
    with pytest.raises(ValueError, match=f"DistributedStrategy.{name} is not supported: "):
        setattr(strategy, name, True)


@pytest.mark.parametrize("name", ["use_dist_fc"])
def test_what_the_older_strategy_has_not(name):
    strategy = fleet1.DistributedStrategy()
    setattr(strategy, name, True)
    with pytest.raises(ValueError, match=f"{name} is not supported"):
        started().distributed_optimizer(fluid.optimizer.SGD(0.1), strategy)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("nccl_comm", 2, TypeError),
        ("nccl_comm_num", "2", TypeError),
        ("fuse_all_reduce_ops", 1, TypeError),
        ("lars_configs", {"coeff": 1}, ValueError),
        ("lars_configs", 3, TypeError),
    ],
)
def test_wrong_values(name, value, error):
    with pytest.raises(error):
        setattr(fleet2.DistributedStrategy(), name, value)


def test_settings_that_contradict():
    strategy = fleet2.DistributedStrategy()
    strategy.localsgd = True
    strategy.localsgd_configs = {"k_steps": 0}
    with pytest.raises(ValueError, match=r"localsgd_configs\['k_steps'\]: expected at least 1"):
        strategy.collective()
    older = fleet1.DistributedStrategy()
    older.collective_mode = "grad_allreduce"
    with pytest.raises(ValueError, match="needs mode 'collective'"):
        older.collective()
    with pytest.raises(ValueError, match="localsgd is for training without servers"):
        strategy.parameter_server()
    with pytest.raises(TypeError, match="without servers expected"):
        started().distributed_optimizer(fluid.optimizer.SGD(0.1), "nccl2")
    with pytest.raises(TypeError, match="without servers expected"):
        from hpcdist.fleet import StrategyFactory

        factory = StrategyFactory.create_sync_strategy()
        started().distributed_optimizer(fluid.optimizer.SGD(0.1), factory)
