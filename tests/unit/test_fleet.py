"""Fleet in one process: the programs it makes, what it refuses, and its import paths."""

from __future__ import annotations

import importlib
import os

import pytest

import hpcdist as fluid
import hpcdist.fleet as fleet_module
from hpcdist.compat import aspaddle
from hpcdist.fleet import Fleet
from hpcdist.fluid.fleet.role_maker import (
    Role,
    UserDefinedRoleMaker,
)
from hpcdist.fluid.fleet.strategy import StrategyFactory
from hpcdist.graph import names
from hpcdist.transpiler import DistributeTranspiler, DistributeTranspilerConfig

SERVERS = ["127.0.0.1:7001", "127.0.0.1:7002"]


def started(role=Role.WORKER, index=0):
    fleet = Fleet()
    fleet.init(UserDefinedRoleMaker(index, role, 2, SERVERS))
    return fleet


def build():
    """Return the loss of a linear model, in programs of its own."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), names.guard():
        x, y = fluid.layers.data("x", [13]), fluid.layers.data("y", [1])
        guess = fluid.layers.fc(x, 1, param_attr=fluid.initializer.Constant(0.0), bias_attr=False)
        return fluid.layers.mean(fluid.layers.square_error_cost(guess, y)), startup


def minimized(fleet, strategy=None):
    loss, startup = build()
    optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy)
    optimizer.minimize(loss, startup_program=startup)
    return loss.block.program, startup


def types(program):
    return [op.type for block in program.blocks for op in block.ops]


# -- programs ----------------------------------------------------------------------------------
STEP = ["mul", "elementwise_sub", "square", "mean", "fill_constant"]
STEP += ["mean_grad", "square_grad", "elementwise_sub_grad", "mul_grad"]

# What fleet of Fluid 1.8.5 makes of this model: worker, its startup, server 0, its startup.
FLUIDS = {
    "sync": (["send", "send_barrier", "recv"], 1, ["sum", "scale", "sgd"], 2, 0),
    "async": (["send", "recv"], 1, ["sgd"], 2, 1),
    "half_async": (["send", "send_barrier", "recv"], 1, ["sgd"], 2, 1),
    "geo": (["sgd", "send"], 2, ["sum"], 1, 3),
}


@pytest.mark.parametrize("name", FLUIDS)
def test_programs_are_those_of_fluids_fleet(name):
    make = getattr(StrategyFactory, f"create_{name}_strategy")
    last, fills, update, server_fills, mode = FLUIDS[name]
    worker, server = started(), started(Role.SERVER)
    minimized(worker, make())
    # The synchronous strategy uses the transpiler's synchronous mode, which waits by an operator.
    extra = ["fetch_barrier"] if name == "sync" else []
    assert types(worker.main_program) == STEP + last + extra
    received = ["recv", "fetch_barrier"] + (["send"] if name == "geo" else [])
    assert types(worker.startup_program) == ["fill_constant"] * fills + received
    minimized(server, make())
    assert types(server.main_program) == ["listen_and_serv", *update]
    assert types(server.startup_program) == ["fill_constant"] * server_fills
    serve = server.main_program.global_block().ops[0]
    assert serve.attrs["distributed_mode"] == mode
    assert serve.attrs["Fanin"] == 2


def test_the_synchronous_strategy_is_what_the_transpiler_makes():
    fleet = started(index=1)
    minimized(fleet)
    loss, startup = build()
    with fluid.program_guard(loss.block.program, startup):
        fluid.optimizer.SGD(0.1).minimize(loss)
    transpiler = DistributeTranspiler()
    servers = ",".join(SERVERS)
    transpiler.transpile(
        1, loss.block.program, pservers=servers, trainers=2, startup_program=startup
    )
    assert str(fleet.main_program) == str(transpiler.get_trainer_program())
    assert str(fleet.startup_program) == str(transpiler.get_trainer_startup_program())


def test_settings_reach_the_transpiler():
    strategy = StrategyFactory.create_sync_strategy()
    strategy.set_server_runtime_config({"_rpc_send_thread_num": 24})
    fleet = started(Role.SERVER, 1)
    minimized(fleet, strategy)
    serve = fleet.main_program.global_block().ops[0]
    assert serve.attrs["rpc_send_thread_num"] == 24
    assert serve.attrs["endpoint"] == SERVERS[1]
    config = DistributeTranspilerConfig()
    config.sync_mode = False
    config.runtime_split_send_recv = True
    fleet = started()
    minimized(fleet, config)
    assert types(fleet.main_program)[-2:] == ["send", "recv"]


def test_a_process_alone_trains_what_was_built():
    fleet = Fleet()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TRAINING_ROLE", "PADDLE_PSERVERS_IP_PORT_LIST"):
            patch.delenv(name, raising=False)
        fleet.init()
    main, startup = minimized(fleet, StrategyFactory.create_async_strategy())
    assert fleet.main_program is main and fleet.startup_program is startup
    assert fleet._origin_program is main
    assert fleet.is_first_worker() and fleet.server_num() == 0


def test_minimize_returns_what_the_optimizer_does():
    loss, startup = build()
    optimizer = started().distributed_optimizer(fluid.optimizer.SGD(0.1))
    ops, pairs = optimizer.minimize(loss, startup_program=startup)
    assert [op.type for op in ops] == ["sgd"]
    assert [(p.name, g.name) for p, g in pairs] == [("fc_0.w_0", "fc_0.w_0@GRAD")]


# -- who is who --------------------------------------------------------------------------------
def test_fleet_answers_for_its_role_maker():
    fleet = started(Role.SERVER, 1)
    assert fleet.is_server() and not fleet.is_worker() and not fleet.is_first_worker()
    assert (fleet.worker_num(), fleet.server_num(), fleet.server_index()) == (2, 2, 1)
    assert fleet.server_endpoints() == SERVERS
    assert fleet.server_endpoints(to_string=True) == ",".join(SERVERS)
    assert fleet.worker_endpoints() == [] and fleet.worker_endpoints(to_string=True) == ""


def test_the_module_answers_like_the_object():
    assert fleet_module.init == fleet_module.fleet.init
    assert fleet_module.split_files == fleet_module.fleet.split_files
    with pytest.raises(AttributeError, match="no attribute 'worker_indices'"):
        fleet_module.worker_indices  # noqa: B018


# -- refusals ----------------------------------------------------------------------------------
def test_calls_before_init():
    fleet = Fleet()
    for call in (fleet.worker_index, fleet.init_server, fleet.stop_worker):
        with pytest.raises(ValueError, match=r"call fleet\.init\(\) first"):
            call()
    with pytest.raises(ValueError, match=r"call fleet\.init\(\) first"):
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1))


def test_calls_before_minimize():
    for role, name in ((Role.WORKER, "init_worker"), (Role.SERVER, "run_server")):
        with pytest.raises(ValueError, match=r"minimize\(loss\) first"):
            getattr(started(role), name)()
    with pytest.raises(ValueError, match=r"minimize\(loss\) first"):
        started().main_program  # noqa: B018


def test_calls_of_the_other_role():
    for name in ("init_server", "run_server"):
        with pytest.raises(ValueError, match=f"{name} is for servers.*worker 0 of 2 workers"):
            getattr(started(), name)()
    for name in ("init_worker", "stop_worker"):
        with pytest.raises(ValueError, match=f"{name} is for workers.*server 0 of 2 workers"):
            getattr(started(Role.SERVER), name)()


def test_a_second_init_starts_over():
    fleet = started()
    minimized(fleet)
    fleet.init(UserDefinedRoleMaker(1, Role.WORKER, 2, SERVERS))
    assert fleet.worker_index() == 1
    with pytest.raises(ValueError, match=r"minimize\(loss\) first"):
        fleet.startup_program  # noqa: B018


def test_wrong_arguments():
    with pytest.raises(TypeError, match="role_maker: expected"):
        Fleet().init("TRAINER")
    fleet = started()
    with pytest.raises(ValueError, match="optimizer: expected an optimizer, got 0.1"):
        fleet.distributed_optimizer(0.1)
    with pytest.raises(TypeError, match="strategy: expected a strategy of StrategyFactory"):
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), "sync")
    optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1))
    loss, startup = build()
    with pytest.raises(TypeError, match="one loss Variable"):
        optimizer.minimize([loss])
    with pytest.raises(TypeError, match="one startup Program"):
        optimizer.minimize(loss, startup_program=[startup])
    with pytest.raises(TypeError, match="scopes must be None"):
        optimizer.minimize(loss, [startup])


def test_a_directory_that_is_not_there(tmp_path):
    fleet = started(Role.SERVER)
    minimized(fleet)
    with pytest.raises(ValueError, match="there is no directory"):
        fleet.init_server(str(tmp_path / "none"))


def test_saving_checks_its_arguments(tmp_path):
    fleet = started()
    minimized(fleet)
    exe, where = fluid.Executor(), str(tmp_path)
    with pytest.raises(TypeError, match="executor must be an Executor, got None"):
        fleet.save_persistables(None, where)
    with pytest.raises(TypeError, match="main_program must be a Program, got 'main'"):
        fleet.save_inference_model(exe, where, ["x"], [], main_program="main")
    with pytest.raises(ValueError, match="main_program is a local program"):
        fleet.save_persistables(exe, where, fluid.Program())
    with pytest.raises(ValueError, match="save_persistables: mode 1: expected one of 0, 3"):
        fleet.save_persistables(exe, where, None, 1)
    with pytest.raises(ValueError, match="load_model: mode 2: expected one of 0, 3"):
        fleet.load_model(where, 2)


def test_the_communicators_settings_become_the_environments(monkeypatch):
    monkeypatch.setenv("FLAGS_communicator_send_wait_times", "5")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    strategy = StrategyFactory.create_geo_strategy()
    strategy.set_trainer_runtime_config({"communicator_send_wait_times": 9})
    fleet = started()
    minimized(fleet, strategy)
    fleet.init_worker()
    assert os.environ["FLAGS_communicator_send_wait_times"] == "9"


# -- import paths ------------------------------------------------------------------------------
@pytest.fixture
def paddle():
    aspaddle.install()
    yield
    aspaddle.uninstall()


PARAMETER_SERVER = "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        (PARAMETER_SERVER, "hpcdist.fleet"),
        (f"{PARAMETER_SERVER}.distributed_strategy", "hpcdist.fluid.fleet.strategy"),
        ("paddle.fluid.incubate.fleet.base.role_maker", "hpcdist.fluid.fleet.role_maker"),
        ("paddle.fluid.incubate.fleet.base.fleet_base", "hpcdist.fluid.fleet.fleet_base"),
        ("paddle.distributed.fleet", "hpcdist.fleet"),
        ("paddle.fluid.incubate.fleet.collective", "hpcdist.fluid.fleet.collective"),
        ("paddle.distributed.fleet.base.role_maker", "hpcdist.fluid.fleet.role_maker"),
    ],
)
def test_paths_of_fluid(paddle, path, meant):
    assert importlib.import_module(path) is importlib.import_module(meant)
    assert fleet_module.fleet is importlib.import_module(PARAMETER_SERVER).fleet


def test_what_a_path_does_not_have_is_refused(paddle):
    version = importlib.import_module("paddle.fluid.incubate.fleet.parameter_server.version")
    with pytest.raises(AttributeError, match=r"version\.is_transpiler of Fluid 1\.8\.5 is not in"):
        version.is_transpiler()
