"""Strategies, their settings, and what fleet 2.0's strategy makes of them."""

from __future__ import annotations

import logging

import pytest

import hpcdist as fluid
from hpcdist.fleet import DistributedStrategy as DistributedStrategyV2
from hpcdist.fluid.fleet.strategy import (
    AsyncStrategy,
    DistributedStrategy,
    GeoStrategy,
    HalfAsyncStrategy,
    StrategyFactory,
    SyncStrategy,
    TrainerRuntimeConfig,
    strategy_of,
)
from hpcdist.transpiler import DistributedMode, DistributeTranspilerConfig, ServerRuntimeConfig

MAKERS = {
    "sync": StrategyFactory.create_sync_strategy,
    "async": StrategyFactory.create_async_strategy,
    "half_async": StrategyFactory.create_half_async_strategy,
    "geo": StrategyFactory.create_geo_strategy,
}
SWITCHES = (
    "sync_mode",
    "runtime_split_send_recv",
    "half_async",
    "completely_not_async",
    "geo_sgd_mode",
)


def switches(config):
    return tuple(name for name in SWITCHES if getattr(config, name))


# -- what a strategy is ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "mode", "shown", "given"),
    [
        ("sync", "SYNC", SWITCHES[1:4], SWITCHES[:1]),
        ("async", "ASYNC", SWITCHES[1:2], SWITCHES[1:2]),
        ("half_async", "HALF_ASYNC", SWITCHES[1:3], SWITCHES[1:3]),
        ("geo", "GEO", (SWITCHES[1], SWITCHES[4]), (SWITCHES[1], SWITCHES[4])),
    ],
)
def test_strategies_show_fluids_settings_and_give_the_transpiler_theirs(name, mode, shown, given):
    strategy = MAKERS[name]()
    assert strategy.mode == DistributedMode[mode]
    assert strategy.get_trainer_runtime_config().mode == strategy.mode
    assert switches(strategy.get_program_config()) == shown
    assert switches(strategy.transpiler_config()) == given
    assert strategy.get_build_strategy().async_mode is True
    assert strategy.get_execute_strategy().use_thread_barrier is (name in ("sync", "half_async"))


def test_geo_exchanges_every_so_many_steps():
    assert MAKERS["geo"]().get_program_config().geo_sgd_need_push_nums == 100
    assert MAKERS["geo"](5).transpiler_config().geo_sgd_need_push_nums == 5
    assert MAKERS["geo"](update_frequency=7).get_program_config().geo_sgd_need_push_nums == 7
    for wrong, error in ((0, ValueError), ("5", TypeError), (True, TypeError)):
        with pytest.raises(error, match="update_frequency: expected"):
            MAKERS["geo"](wrong)


def test_threads_come_from_cpu_num(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    strategy = MAKERS["sync"]()
    assert strategy.get_execute_strategy().num_threads == 2
    assert strategy.get_build_strategy().reduce_strategy.name == "Reduce"
    monkeypatch.delenv("CPU_NUM")
    strategy = MAKERS["sync"]()
    assert strategy.get_execute_strategy().num_threads == 1
    assert strategy.get_build_strategy().reduce_strategy.name == "AllReduce"


# -- settings ----------------------------------------------------------------------------------
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_what_is_set_does_not_change_the_way_to_train(maker):
    strategy = maker()
    before = switches(strategy.get_program_config())
    config = DistributeTranspilerConfig()
    config.min_block_size = 81920
    strategy.set_program_config(config)
    assert strategy.get_program_config().min_block_size == 81920
    assert strategy.transpiler_config().min_block_size == 81920
    assert switches(strategy.get_program_config()) == before
    strategy.set_program_config({"min_block_size": 8192})
    assert strategy.get_program_config().min_block_size == 8192


SETTERS = {
    "program_config": ("min_block_size", 16384, DistributeTranspilerConfig()),
    "server_runtime_config": ("_rpc_send_thread_num", 20, ServerRuntimeConfig()),
    "build_strategy": ("memory_optimize", True, fluid.BuildStrategy()),
    "execute_strategy": ("num_threads", 4, fluid.ExecutionStrategy()),
}


@pytest.mark.parametrize("name", SETTERS)
def test_settings_are_objects_or_dicts(name):
    strategy = MAKERS["half_async"]()
    get, put = getattr(strategy, f"get_{name}"), getattr(strategy, f"set_{name}")
    key, value, replacement = SETTERS[name]
    put({key: value})
    assert getattr(get(), key) == value
    put(replacement)
    assert get() is replacement and getattr(get(), key) != value
    with pytest.raises(ValueError, match="has no key 'unknown'"):
        put({key: value, "unknown": None})
    assert getattr(get(), key) != value, "a refused dict changes nothing"
    for wrong in (None, "unknown"):
        with pytest.raises(TypeError, match="or a dict, got"):
            put(wrong)


def test_trainer_settings_are_objects_or_dicts():
    strategy = MAKERS["async"]()
    strategy.set_trainer_runtime_config({"communicator_send_queue_size": 50})
    flags = strategy.get_trainer_runtime_config().get_communicator_flags()
    assert flags["communicator_send_queue_size"] == "50"
    given = TrainerRuntimeConfig()
    given.runtime_configs["communicator_send_queue_size"] = "60"
    strategy.set_trainer_runtime_config(given)
    assert strategy.get_trainer_runtime_config() is given
    assert given.mode == DistributedMode.ASYNC
    with pytest.raises(ValueError, match="has no key 'unknown'"):
        strategy.set_trainer_runtime_config({"unknown": 1})
    with pytest.raises(TypeError, match="or a dict, got None"):
        strategy.set_trainer_runtime_config(None)


def test_the_base_class_is_no_way_to_train():
    strategy = DistributedStrategy()
    for name in (*SETTERS, "trainer_runtime_config"):
        with pytest.raises(NotImplementedError, match="get a strategy from StrategyFactory"):
            getattr(strategy, f"set_{name}")({})


@pytest.mark.parametrize("settings", [fluid.BuildStrategy, fluid.ExecutionStrategy])
def test_a_misspelt_setting_is_refused(settings):
    name = next(iter(vars(settings())))
    with pytest.raises(AttributeError, match=f"did you mean '{name}'"):
        setattr(settings(), name + "s", 1)


# -- the communicator's settings ---------------------------------------------------------------
FLAGS = [
    "max_merge_var_num",
    "send_queue_size",
    "independent_recv_thread",
    "min_send_grad_num_before_recv",
    "thread_pool_size",
    "send_wait_times",
    "is_sgd_optimizer",
]


@pytest.fixture
def unset(monkeypatch):
    for name in ("CPU_NUM", *(f"FLAGS_communicator_{flag}" for flag in FLAGS)):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_defaults_are_fluids(unset):
    flags = TrainerRuntimeConfig().get_communicator_flags()
    values = [int(flags[f"communicator_{name}"]) for name in FLAGS]
    assert values == [1, 1, 1, 1, 5, 5, 1]
    unset.setenv("CPU_NUM", "100")
    flags = TrainerRuntimeConfig().get_communicator_flags()
    values = [int(flags[f"communicator_{name}"]) for name in FLAGS]
    assert values == [100, 100, 1, 100, 5, 5, 1]


def test_the_environment_wins(unset):
    values = [20, 21, 0, 23, 24, 25, 0]  # two of them are switches
    for name, value in zip(FLAGS, values):
        unset.setenv(f"FLAGS_communicator_{name}", str(value))
    unset.setenv("FLAGS_rpc_deadline", "5000")
    flags = TrainerRuntimeConfig().get_communicator_flags()
    assert [int(flags[f"communicator_{name}"]) for name in FLAGS] == values
    assert flags["rpc_deadline"] == "5000"


@pytest.mark.parametrize(
    ("name", "used"),
    [("sync", (0, 1, 4, 5)), ("half_async", (0, 1, 4, 5)), ("geo", (4, 5)), ("async", range(7))],
)
def test_each_mode_uses_its_own(unset, name, used):
    flags = MAKERS[name]().get_trainer_runtime_config().get_communicator_flags()
    assert {f for f in flags if f.startswith("communicator_")} == {
        f"communicator_{FLAGS[i]}" for i in used
    }


def test_threads_that_meet_send_one_gradient_each(unset, caplog):
    unset.setenv("CPU_NUM", "2")
    config = MAKERS["sync"]().get_trainer_runtime_config()
    config.runtime_configs["communicator_send_queue_size"] = "50"
    with caplog.at_level(logging.WARNING, "hpcdist.fleet"):
        flags = config.get_communicator_flags()
    assert flags["communicator_send_queue_size"] == flags["communicator_max_merge_var_num"] == "2"
    assert "in sync mode it is CPU_NUM = 2, not 50" in caplog.text
    assert "communicator_send_queue_size: 2" in repr(config)


def test_a_setting_must_be_a_number(unset):
    unset.setenv("FLAGS_communicator_send_wait_times", "often")
    with pytest.raises(ValueError, match="send_wait_times .*: expected an .*, got 'often'"):
        TrainerRuntimeConfig().get_communicator_flags()


# -- other descriptions ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, SyncStrategy),
        ({"sync_mode": False}, HalfAsyncStrategy),
        ({"sync_mode": False, "runtime_split_send_recv": True}, AsyncStrategy),
        (
            {"sync_mode": False, "runtime_split_send_recv": True, "half_async": True},
            HalfAsyncStrategy,
        ),
        (
            {
                "sync_mode": False,
                "runtime_split_send_recv": True,
                "geo_sgd_mode": True,
                "geo_sgd_need_push_nums": 9,
            },
            GeoStrategy,
        ),
    ],
)
def test_a_transpilers_configuration_is_read_as_fluid_reads_it(settings, kind):
    config = DistributeTranspilerConfig()
    for name, value in {**settings, "slice_var_up": False}.items():
        setattr(config, name, value)
    before = vars(config).copy()
    strategy = strategy_of(config)
    assert type(strategy) is kind
    assert strategy.transpiler_config().slice_var_up is False
    if kind is GeoStrategy:
        assert strategy.transpiler_config().geo_sgd_need_push_nums == 9
    assert vars(config) == before


@pytest.mark.parametrize(
    ("a_sync", "steps", "kind"),
    [(False, 0, SyncStrategy), (True, 0, AsyncStrategy), (True, 8, GeoStrategy)],
)
def test_fleet_2s_strategy(a_sync, steps, kind):
    strategy = DistributedStrategyV2()
    strategy.a_sync = a_sync
    strategy.a_sync_configs = {"k_steps": steps, "send_wait_times": 3}
    made = strategy.parameter_server()
    assert type(made) is kind
    assert made.get_trainer_runtime_config().get_communicator_flags()[
        "communicator_send_wait_times"
    ] == ("3")
    if steps:
        assert made.transpiler_config().geo_sgd_need_push_nums == steps


def test_fleet_2s_strategy_refuses_what_it_has_not():
    strategy = DistributedStrategyV2()
    assert strategy.a_sync is True and strategy.a_sync_configs["k_steps"] == 0
    with pytest.raises(TypeError, match="no field 'use_hierarchical'; did you mean"):
        strategy.use_hierarchical = True
    with pytest.raises(ValueError, match="a_sync: expected True or False, got 1"):
        strategy.a_sync = 1
    with pytest.raises(ValueError, match="has no key 'steps'"):
        strategy.a_sync_configs = {"steps": 1}
    strategy.a_sync = False
    strategy.a_sync_configs = {"k_steps": 4}
    with pytest.raises(ValueError, match="needs a_sync = True"):
        strategy.parameter_server()
