"""What the transpiler promises beyond the golden files: repairs, order, purity."""

from __future__ import annotations

import cProfile
import logging

import numpy as np
import pytest

from hpcdist import initializer, layers, optimizer
from hpcdist.graph.operator import Operator
from hpcdist.transpiler import (
    DistributedMode,
    DistributeTranspiler,
    DistributeTranspilerConfig,
    HashName,
    PSDispatcher,
    RoundRobin,
)
from tests.support.transpiler import SERVERS, built, regression, transpile

EP0, EP1 = SERVERS.split(",")


class FirstServer(PSDispatcher):
    """Gives everything to the first server."""

    def dispatch(self, varlist):
        return [self.eps[0] for _ in varlist]


class ByName(PSDispatcher):
    """Tells weights from biases by their names."""

    def dispatch(self, varlist):
        return [self.eps[".w_" in var.name] for var in varlist]


def ops(program, kind):
    return [op for block in program.blocks for op in block.ops if op.type == kind]


def momentum():
    return optimizer.Momentum(learning_rate=0.1, momentum=0.9)


WIDE = {"width": 100, "hidden": 300}  # fc_0.w_0 is cut in two


# -- how long it takes -----------------------------------------------------------------------------
def test_twice_the_parameters_take_twice_the_looks_at_operators(monkeypatch):
    looked = {"output_arg_names": 0, "input_arg_names": 0}
    for name in looked:
        of = getattr(Operator, name).fget

        def counted(op, name=name, of=of):
            looked[name] += 1
            return of(op)

        monkeypatch.setattr(Operator, name, property(counted))

    def looks(parameters):
        looked.update(dict.fromkeys(looked, 0))

        def chain():
            x = layers.data("x", [4])
            for _ in range(parameters // 2):
                x = layers.fc(x, 4)
            optimizer.Adam(0.1).minimize(layers.mean(x))

        programs = built(chain)
        begun = dict(looked)
        transpile(programs).get_trainer_program()
        return sum(looked.values()) - sum(begun.values())

    assert looks(80) < 2.3 * looks(40)


# -- purity ------------------------------------------------------------------------------------
def test_the_given_programs_stay_as_they_are():
    main, startup = built(regression(momentum, **WIDE))
    before = str(main), str(startup)
    transpiler = transpile((main, startup))
    transpiler.get_trainer_program()
    transpiler.get_pserver_programs(EP0)
    assert (str(main), str(startup)) == before
    assert not main._is_distributed
    assert str(main.on_trainer) == str(transpiler.get_trainer_program())
    assert main.clone(for_test=True).on_trainer is None
    assert str(startup.on_trainer) == str(transpiler.get_trainer_startup_program())


def test_getters_may_be_called_in_any_order_any_number_of_times():
    programs = built(regression(momentum, **WIDE))

    def texts(order):
        transpiler = transpile(programs)
        getters = {
            "trainer": transpiler.get_trainer_program,
            "startup": transpiler.get_trainer_startup_program,
            "server": lambda: transpiler.get_pserver_program(EP1),
            "server startup": lambda: transpiler.get_startup_program(EP1),
        }
        return {name: str(getters[name]()) for name in order}

    forward = texts(["trainer", "startup", "server", "server startup"])
    backward = texts(["server startup", "server", "server", "startup", "trainer", "trainer"])
    assert forward == backward


def test_each_getter_gives_a_new_program():
    transpiler = transpile(built(regression()))
    first = transpiler.get_trainer_program()
    first.global_block().ops.clear()
    assert transpiler.get_trainer_program().global_block().ops


def test_what_is_built_after_transpile_is_not_seen():
    main, startup = built(regression())
    transpiler = transpile((main, startup))
    before = str(transpiler.get_trainer_program())
    main.global_block().ops.pop()
    assert str(transpiler.get_trainer_program()) == before


def test_transpiling_again_plans_afresh():
    programs = built(regression())
    transpiler = transpile(programs, trainers=4)
    transpiler.get_trainer_program()
    transpiler.transpile(1, program=programs[0], startup_program=programs[1], trainers=2)
    assert transpiler.trainer_num == 2
    assert transpiler.pserver_endpoints == ["127.0.0.1:6174"]
    startup = transpiler.get_trainer_startup_program()
    assert startup.on_trainer is None
    assert ops(startup, "recv")[0].attrs["trainer_id"] == 1


def test_the_default_programs_are_transpiled_by_default():
    from hpcdist.graph import program_guard

    main, startup = built(regression())
    with program_guard(main, startup):
        transpiler = DistributeTranspiler()
        transpiler.transpile(0, pservers=SERVERS, trainers=1)
    assert len(ops(transpiler.get_trainer_program(), "send")) == 2


def test_numpys_global_stream_is_not_touched():
    np.random.seed(3)
    expected = np.random.rand()
    np.random.seed(3)
    transpile(built(regression()), config={"slice_var_up": False})
    assert np.random.rand() == expected


# -- fingerprints and marks --------------------------------------------------------------------
def test_all_ranks_have_one_fingerprint():
    def program_of(trainer_id):
        return transpile(built(regression()), trainer_id)

    prints = {program_of(k).get_trainer_program().distribution.fingerprint for k in (0, 1)}
    prints |= {program_of(0).get_pserver_program(ep).distribution.fingerprint for ep in (EP0, EP1)}
    assert len(prints) == 1
    assert len(prints.pop()) == 64


@pytest.mark.parametrize(
    "other",
    [
        lambda: transpile(built(regression(width=14))),
        lambda: transpile(built(regression(momentum))),
        lambda: transpile(built(regression(lambda: optimizer.SGD(0.02)))),
        lambda: transpile(built(regression()), trainers=3),
        lambda: transpile(built(regression()), pservers="ps1:6174,ps0:6174"),
    ],
    ids=["net", "optimizer", "rate", "trainers", "servers"],
)
def test_another_net_or_plan_has_another_fingerprint(other):
    here = transpile(built(regression())).get_trainer_program()
    there = other().get_trainer_program()
    assert here.distribution.fingerprint != there.distribution.fingerprint


def test_programs_say_what_they_are_part_of():
    transpiler = transpile(built(regression()), 1, current_endpoint=EP1)
    for program in (transpiler.get_trainer_program(), transpiler.get_pserver_program(EP0)):
        assert program._is_distributed
        assert not program._is_chief
        assert program._endpoints == [EP0, EP1]
        assert program._ps_endpoint == EP1
        assert program._parameters_on_pservers.get_distributed_var_by_slice("fc_0.w_0")
    assert transpile(built(regression()), 0).get_trainer_program()._is_chief


# -- repairs of Fluid --------------------------------------------------------------------------
def test_one_trainer_sends_what_the_server_reads():
    transpiler = transpile(built(regression()), trainers=1)
    sent = [n for op in ops(transpiler.get_trainer_program(), "send") for n in op.input("X")]
    read = [
        n
        for ep in (EP0, EP1)
        for op in ops(transpiler.get_pserver_program(ep), "sgd")
        for n in op.input("Grad")
    ]
    assert sorted(sent) == sorted(read) == ["fc_0.b_0@GRAD", "fc_0.w_0@GRAD"]
    assert not ops(transpiler.get_pserver_program(EP0), "sum")


@pytest.mark.parametrize("method", [HashName, ByName, RoundRobin])
@pytest.mark.parametrize("slice_var_up", [True, False])
def test_gradients_go_where_their_parameters_go(method, slice_var_up):
    config = {"split_method": method, "slice_var_up": slice_var_up}
    transpiler = transpile(built(regression(momentum, **WIDE)), config=config)
    program = transpiler.get_trainer_program()
    received = {op.attrs["op_role_var"][0]: op.attrs["epmap"] for op in ops(program, "recv")}
    sent = {op.attrs["op_role_var"][0]: op.attrs["epmap"] for op in ops(program, "send")}
    assert sent == received
    for held in transpiler.param_grad_ep_mapping.values():
        params = [v.name for v in held["params"]]
        grads = [v.name.removesuffix(".trainer_0").replace("@GRAD", "") for v in held["grads"]]
        assert params == grads


def test_blocks_of_one_parameter_on_one_server_are_all_updated():
    transpiler = transpile(
        built(regression(momentum, **WIDE)), config={"split_method": FirstServer}
    )
    program = transpiler.get_pserver_program(EP0)
    updates = ops(program, "momentum")
    cut = [op for op in updates if op.input("Param")[0].startswith("fc_0.w_0.block")]
    assert [op.input("Velocity") for op in cut] == [
        ["fc_0.w_0_velocity_0.block0"],
        ["fc_0.w_0_velocity_0.block1"],
    ]
    assert len(updates) == 5
    startup = transpiler.get_startup_program(EP0)
    filled = {n: op.attrs["shape"] for op in startup.global_block().ops for n in op.output("Out")}
    for op in updates:
        for name in (*op.input("Param"), *op.input("Velocity")):
            assert filled[name] == list(program.global_block().var(name).shape)
    assert not ops(transpiler.get_pserver_program(EP1), "momentum")
    kept = transpiler.vars_overview.get_distributed_vars_by_ep(EP0, "Optimizer")
    assert (
        sum(np.prod(r.slice.shape) for r in kept if r.origin.name == "fc_0.w_0_velocity_0") == 30000
    )


def test_a_centered_rmsprop_is_cut_whole():
    def centered():
        return optimizer.RMSProp(learning_rate=0.1, centered=True)

    transpiler = transpile(built(regression(centered, **WIDE)))
    for endpoint in (EP0, EP1):
        block = transpiler.get_pserver_program(endpoint).global_block()
        for op in ops(block.program, "rmsprop"):
            shapes = {
                block.var(n).shape
                for s in ("Param", "Moment", "MeanSquare", "MeanGrad")
                for n in op.input(s)
            }
            assert len(shapes) == 1


def test_slices_of_an_array_are_its_rows():
    values = np.arange(30000, dtype="float32").reshape(100, 300)
    programs = built(regression(initializer=initializer.NumpyArrayInitializer(values), **WIDE))
    transpiler = transpile(programs)
    rows = {}
    for endpoint in (EP0, EP1):
        for op in ops(transpiler.get_startup_program(endpoint), "assign_value"):
            rows[op.output("Out")[0]] = np.reshape(op.attrs["fp32_values"], op.attrs["shape"])
    assert sorted(rows) == ["fc_0.w_0.block0", "fc_0.w_0.block1"]
    assert np.array_equal(np.concatenate([rows[n] for n in sorted(rows)]), values)


@pytest.mark.parametrize("seed", [0, 7])
def test_slices_take_their_part_of_the_whole_parameters_stream(seed):
    main, startup = built(regression(**WIDE))
    main.random_seed = startup.random_seed = seed
    transpiler = transpile((main, startup))
    (whole,) = [op for op in ops(startup, "uniform_random") if op.output("Out") == ["fc_0.w_0"]]
    offsets = {}
    for endpoint in (EP0, EP1):
        program = transpiler.get_startup_program(endpoint)
        assert program.random_seed == seed
        for op in ops(program, "uniform_random"):
            if op.output("Out")[0].startswith("fc_0.w_0"):
                offsets[op.output("Out")[0]] = op.attrs["offset"]
                assert op.attrs["full_size"] == 30000
                assert op.attrs["stream"] == whole.attrs["stream"]
    assert offsets == {"fc_0.w_0.block0": 0, "fc_0.w_0.block1": 15000}


def test_the_sync_mode_argument_decides_for_the_server_too():
    config = DistributeTranspilerConfig(sync_mode=False)
    transpiler = DistributeTranspiler(config)
    main, startup = built(regression())
    transpiler.transpile(0, program=main, startup_program=startup, trainers=2)
    assert transpiler.distributed_mode == DistributedMode.SYNC
    (serve,) = ops(transpiler.get_pserver_program("127.0.0.1:6174"), "listen_and_serv")
    assert serve.attrs["distributed_mode"] == 0


# -- settings ----------------------------------------------------------------------------------
def test_arguments_of_the_first_versions_are_taken():
    programs = built(regression(momentum, **WIDE))
    transpiler = transpile(programs, slice_var_up=False, split_method=FirstServer)
    held = transpiler.param_grad_ep_mapping
    assert "fc_0.w_0" in [v.name for v in held[EP0]["params"]]
    assert held[EP1] == {"params": [], "grads": []}
    assert transpiler.config == DistributeTranspilerConfig()
    large = transpile(programs, min_block_size=20000)
    assert large.vars_overview.get_distributed_var_by_slice("fc_0.w_0") is not None


def test_print_log_logs_every_placement(caplog):
    with caplog.at_level(logging.INFO, "hpcdist.transpiler"):
        transpile(built(regression()), config={"print_log": True})
    assert [r.message for r in caplog.records] == [
        f"{EP0}: Param fc_0.b_0: float32[1] of fc_0.b_0: float32[1]",
        f"{EP1}: Param fc_0.w_0: float32[13, 1] of fc_0.w_0: float32[13, 1]",
    ]


def test_the_servers_thread_counts_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("FLAGS_rpc_send_thread_num", "3")
    (serve,) = ops(transpile(built(regression())).get_pserver_program(EP0), "listen_and_serv")
    assert serve.attrs["rpc_send_thread_num"] == 3
    assert serve.attrs["rpc_get_thread_num"] == 12


# -- what servers are told ---------------------------------------------------------------------
def test_the_server_plan_says_what_lies_where():
    transpiler = transpile(built(regression(momentum, **WIDE)))
    plans = [transpiler.get_pserver_program(ep).distribution for ep in (EP0, EP1)]
    assert [(p.endpoint, p.index, p.plan.trainers, p.schedule) for p in plans] == [
        (EP0, 0, 2, -1),
        (EP1, 1, 2, -1),
    ]
    parts = [b for p in plans for b in p.blocks if b.parameter == "fc_0.w_0"]
    assert sorted((b.begin, b.end, b.name, b.gradient, b.received) for b in parts) == [
        (
            50 * k,
            50 * k + 50,
            f"fc_0.w_0.block{k}",
            f"fc_0.w_0@GRAD.block{k}",
            tuple(f"fc_0.w_0@GRAD.block{k}.trainer_{i}" for i in range(2)),
        )
        for k in range(2)
    ]
    for endpoint, plan in zip((EP0, EP1), plans):
        program = transpiler.get_pserver_program(endpoint)
        for held in plan.blocks:
            (update,) = [op for op in program.block(held.block).ops if op.type == "momentum"]
            assert update.input("Param") == [held.name]
            assert update.input("Grad") == [held.gradient]


def test_overview_finds_records_by_slice_endpoint_and_kind():
    overview = transpile(built(regression(momentum, **WIDE))).vars_overview
    record = overview.get_distributed_var_by_slice("fc_0.w_0.block1")
    assert (record.offset, record.slice.shape, record.is_slice) == (15000, (50, 300), True)
    assert overview.get_distributed_var_by_origin_and_ep("fc_0.w_0", record.endpoint) == record
    assert overview.get_distributed_var_by_slice("nothing") is None
    params = overview.get_distributed_vars_by_vtypes(["Param"])
    groups = overview.get_distributed_vars_by_vtypes(["Param"], groupby=True)
    assert [r for found in groups.values() for r in found] == params
    assert len(groups["fc_0.w_0"]) == 2
    both = overview.get_distributed_vars_by_ep(EP0) + overview.get_distributed_vars_by_ep(EP1)
    assert len(both) == len(overview.distributed_vars) == len(overview.overview().splitlines())


def test_a_trainers_program_cloned_for_test_does_not_talk():
    program = transpile(built(regression(momentum, **WIDE))).get_trainer_program()
    forward = [op.type for op in program.clone(for_test=True).global_block().ops]
    assert forward == [
        *("mul", "elementwise_add", "mul", "elementwise_add"),
        *("elementwise_sub", "square", "mean"),
    ]


def test_the_work_grows_no_faster_than_the_number_of_parameters() -> None:
    def calls(count: int) -> int:
        def net() -> None:
            x = layers.data(name="x", shape=[4], dtype="float32")
            for _ in range(count):
                x = layers.fc(x, size=4)
            optimizer.SGD(0.1).minimize(layers.mean(x))

        profile = cProfile.Profile()
        with profile:
            transpiler = transpile(built(net))
            transpiler.get_trainer_program()
            transpiler.get_pserver_programs(EP0)
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(160) < 2.5 * calls(80)
