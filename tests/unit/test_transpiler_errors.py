"""What the transpiler refuses, at once and with a message that says what to do."""

from __future__ import annotations

import pytest

from hpcdist import layers, optimizer
from hpcdist.errors import HpcdistError
from hpcdist.transpiler import (
    DistributeTranspiler,
    DistributeTranspilerConfig,
    PSDispatcher,
    RoundRobin,
    memory_optimize,
    release_memory,
)
from tests.support.transpiler import built, regression, transpile

NCCL2 = {"mode": "nccl2"}
COLLECTIVE = {"mode": "collective", "collective_mode": "grad_allreduce"}
FLEET_SYNC = {
    "sync_mode": False,
    "runtime_split_send_recv": True,
    "half_async": True,
    "completely_not_async": True,
}
TWO = "a:1,b:1"


class Grandchild(RoundRobin):
    """Not a direct child of PSDispatcher."""


class Stranger:
    """No dispatcher at all."""


class TooFew(PSDispatcher):
    def dispatch(self, varlist):
        return [self.eps[0]] * (len(varlist) - 1)


class Elsewhere(PSDispatcher):
    def dispatch(self, varlist):
        return ["ps9:6174"] * len(varlist)


def hierarchical(per_node):
    return {
        **NCCL2,
        "use_hierarchical_allreduce": True,
        "hierarchical_allreduce_inter_nranks": per_node,
    }


# config fields, transpile arguments, exception type, words of the message
REFUSED = {
    "min_block_size below 8192": ({"min_block_size": 8191}, {}, AssertionError, "8192"),
    "min_block_size no integer": ({"min_block_size": "big"}, {}, TypeError, "integer"),
    "grandchild": ({"split_method": Grandchild}, {}, AssertionError, "directly"),
    "stranger": ({"split_method": Stranger}, {}, AssertionError, "Stranger"),
    "the base itself": ({"split_method": PSDispatcher}, {}, AssertionError, "PSDispatcher"),
    "split_method a string": ({"split_method": "RoundRobin"}, {}, AttributeError, "class"),
    "too few endpoints": ({"split_method": TooFew}, {}, ValueError, "1 endpoints for 2 blocks"),
    "foreign endpoint": ({"split_method": Elsewhere}, {}, ValueError, "ps9:6174"),
    "unknown mode": ({"mode": "bogus"}, {}, ValueError, "bogus"),
    "trainers a string": ({}, {"trainers": "2"}, TypeError, "number of trainers"),
    "trainers a truth": ({}, {"trainers": True}, TypeError, "number of trainers"),
    "no trainers": ({}, {"trainers": 0}, ValueError, "at least 1"),
    "trainer_id too large": ({}, {"trainer_id": 2}, ValueError, "0..1"),
    "trainer_id negative": ({}, {"trainer_id": -1}, ValueError, "0..1"),
    "trainer_id a string": ({}, {"trainer_id": "0"}, TypeError, "integer"),
    "no server": ({}, {"pservers": ""}, ValueError, "endpoints"),
    "trailing comma": ({}, {"pservers": "a:1,"}, ValueError, "endpoints"),
    "repeated server": ({}, {"pservers": "a:1,b:1,a:1"}, ValueError, "repeated.*a:1"),
    "servers in a list": ({}, {"pservers": ["a:1"]}, TypeError, "one string"),
    "unknown argument": ({}, {"sections": 3}, TypeError, "sections"),
    "dc_asgd in sync": ({"enable_dc_asgd": True}, {}, AssertionError, "sync_mode=False"),
    "half_async in sync": ({"half_async": True}, {}, ValueError, "sync_mode=False"),
    "a bound in sync": ({"max_staleness": 1}, {}, ValueError, "max_staleness"),
    "a bound averaged": (
        {**FLEET_SYNC, "max_staleness": 1},
        {"sync_mode": False},
        ValueError,
        "max_staleness",
    ),
    "sync_mode a string": ({}, {"sync_mode": "False"}, TypeError, "True or False"),
    "split by the runtime in sync": (
        {"sync_mode": False, "runtime_split_send_recv": True},
        {},
        ValueError,
        "sync_mode=False",
    ),
    "geo": ({"geo_sgd_mode": True}, {}, ValueError, "GeoSgdTranspiler"),
    "averaged without barrier": (
        {"sync_mode": False, "completely_not_async": True},
        {"sync_mode": False},
        ValueError,
        "runtime_split_send_recv and config.half_async",
    ),
    "dc_asgd averaged": (
        {**FLEET_SYNC, "enable_dc_asgd": True},
        {"sync_mode": False},
        AssertionError,
        "completely_not_async = False",
    ),
    "nccl2, number of trainers": (NCCL2, {"trainers": 2}, AssertionError, "endpoints"),
    "nccl2, negative rank": (NCCL2, {"trainers": TWO, "trainer_id": -1}, ValueError, "0..1"),
    "nccl2, not among trainers": (NCCL2, {"trainers": TWO}, ValueError, "none of the trainers"),
    "hierarchical, no divisor": (
        hierarchical(4),
        {"trainers": "a:1,b:1,c:1,d:1,e:1,f:1"},
        AssertionError,
        "divisor",
    ),
    "hierarchical, one node": (hierarchical(2), {"trainers": TWO}, AssertionError, "smaller"),
    "hierarchical, not set": (
        hierarchical(0),
        {"trainers": TWO},
        AttributeError,
        "ranks on a node",
    ),
    "collective, unknown kind": (
        {"mode": "collective", "collective_mode": "bogus"},
        {"trainers": TWO},
        ValueError,
        "bogus",
    ),
    "collective, number of trainers": (COLLECTIVE, {"trainers": 2}, ValueError, "endpoints"),
    "collective, one trainer": (COLLECTIVE, {"trainers": "a:1"}, ValueError, "two"),
    "collective, not among trainers": (COLLECTIVE, {"trainers": TWO}, ValueError, "none of"),
    "collective, negative rank": (
        COLLECTIVE,
        {"trainers": TWO, "trainer_id": -1},
        ValueError,
        "0..1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_settings_and_arguments_are_refused(case):
    config, arguments, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words) as caught:
        transpile(built(regression()), config=config, **arguments)
    assert isinstance(caught.value, HpcdistError)


@pytest.mark.parametrize("field", ["min_block_size", "split_method", "mode"])
def test_settings_are_checked_when_the_transpiler_is_made(field):
    value = {"min_block_size": 8191, "split_method": Grandchild, "mode": "bogus"}[field]
    with pytest.raises(HpcdistError, match=field):
        DistributeTranspiler(DistributeTranspilerConfig(**{field: value}))


def test_a_config_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="DistributeTranspilerConfig"):
        DistributeTranspiler(config={"min_block_size": 8192})


def test_an_unknown_field_is_refused_with_the_nearest_name():
    config = DistributeTranspilerConfig()
    with pytest.raises(AttributeError, match=r"'slice_vars_up'.*'slice_var_up'"):
        config.slice_vars_up = False


@pytest.mark.parametrize("field", ["sync_mode", "runtime_split_send_recv"])
def test_sync_mode_and_runtime_split_exclude_each_other(field):
    config = DistributeTranspilerConfig()
    with pytest.raises(ValueError, match=f"{field} cannot be None"):
        setattr(config, field, None)
    if field == "sync_mode":
        config.sync_mode = False
        config.runtime_split_send_recv = True
    with pytest.raises(ValueError, match="exclude each other"):
        setattr(config, field, True)


def test_server_config_must_be_one():
    transpiler = DistributeTranspiler()
    with pytest.raises(TypeError, match="ServerRuntimeConfig"):
        transpiler._set_server_config({"_rpc_send_thread_num": 3})


def test_getters_want_transpile_first():
    transpiler = DistributeTranspiler()
    for getter in (
        transpiler.get_trainer_program,
        transpiler.get_trainer_startup_program,
        lambda: transpiler.get_pserver_program("ps0:6174"),
        lambda: transpiler.get_startup_program("ps0:6174"),
        lambda: transpiler.param_grad_ep_mapping,
        lambda: transpiler.vars_overview,
    ):
        with pytest.raises(ValueError, match=r"call transpile\(\) before"):
            getter()


def test_an_unknown_endpoint_is_a_key_error_that_can_be_read():
    transpiler = transpile(built(regression()))
    for getter in (
        transpiler.get_pserver_program,
        transpiler.get_pserver_programs,
        transpiler.get_startup_program,
    ):
        with pytest.raises(KeyError) as caught:
            getter("ps7:6174")
        assert str(caught.value) == (
            "unknown endpoint 'ps7:6174': expected one of ps0:6174, ps1:6174"
        )


def test_programs_must_be_programs():
    main, startup = built(regression())
    with pytest.raises(TypeError, match="program: expected a Program, got str"):
        transpile(("main", startup))
    with pytest.raises(TypeError, match="startup_program: expected a Program, got str"):
        transpile((main, "startup"))
    with pytest.raises(TypeError, match="pserver_program: expected a Program"):
        transpile((main, startup)).get_startup_program("ps0:6174", "main")


def test_a_program_without_optimizer_is_refused():
    def forward_only():
        x = layers.data(name="x", shape=[13], dtype="float32")
        layers.mean(layers.fc(input=x, size=1))

    with pytest.raises(ValueError, match="minimize"):
        transpile(built(forward_only))


def test_a_parameter_with_two_optimizers_is_refused():
    def twice():
        x = layers.data(name="x", shape=[13], dtype="float32")
        loss = layers.mean(layers.fc(input=x, size=1))
        optimizer.SGD(learning_rate=0.1).minimize(loss)
        optimizer.SGD(learning_rate=0.1).minimize(loss)

    with pytest.raises(ValueError, match="updated by 2 optimizer operators"):
        transpile(built(twice))


@pytest.mark.parametrize("config", [NCCL2, COLLECTIVE])
def test_without_servers_there_are_no_servers_programs(config):
    programs = built(regression())
    transpiler = transpile(programs, config=config, trainers=TWO, current_endpoint="a:1")
    assert (transpiler.trainer_num, transpiler.trainer_id) == (2, 0)
    for getter in (
        lambda: transpiler.get_pserver_program("a:1"),
        lambda: transpiler.vars_overview,
    ):
        with pytest.raises(ValueError, match="no parameter servers"):
            getter()
    with pytest.raises(ValueError, match="build it again for pserver mode"):
        transpile(programs)


def test_transpiling_again_starts_over():
    main, startup = built(regression())
    transpile((main, startup), config=COLLECTIVE, trainers=TWO, current_endpoint="a:1")
    once = str(main), str(startup)
    transpile((main, startup), config=NCCL2, trainers=TWO, current_endpoint="a:1")
    transpile((main, startup), config=COLLECTIVE, trainers=TWO, current_endpoint="a:1")
    assert (str(main), str(startup)) == once
    main.global_block().append_op("assign", {"X": "x"}, {"Out": "copy_of_x"})
    with pytest.raises(ValueError, match="transpiled and then changed"):
        transpile((main, startup), config=COLLECTIVE, trainers=TWO, current_endpoint="a:1")


def test_a_table_that_trainers_share_out_is_not_summed_and_refused_by_local_sgd():
    def looked_up():
        ids = layers.data(name="ids", shape=[1], dtype="int64")
        rows = layers.embedding(ids, [10, 4], is_sparse=True, is_distributed=True)
        optimizer.SGD(learning_rate=0.1).minimize(layers.mean(rows))

    main, startup = built(looked_up)
    transpile((main, startup), config=COLLECTIVE, trainers=TWO, current_endpoint="a:1")
    for program in (main, startup):
        ops = program.global_block().ops
        assert not {"c_allreduce_sum", "c_broadcast"} & {op.type for op in ops}
    config = {**COLLECTIVE, "collective_mode": "local_sgd"}
    with pytest.raises(ValueError, match="nobody has all of its rows: local SGD lets trainers"):
        transpile(built(looked_up), config=config, trainers=TWO, current_endpoint="a:1")


def test_a_failed_transpile_leaves_the_plan_that_was_there():
    transpiler = transpile(built(regression()))
    before = str(transpiler.get_trainer_program())
    with pytest.raises(ValueError, match="at least 1"):
        transpiler.transpile(0, trainers=0)
    assert str(transpiler.get_trainer_program()) == before


def test_memory_optimize_checks_and_leaves_the_operators():
    main, _ = built(regression())
    before = str(main)
    memory_optimize(main, skip_opt_set={"x"}, print_log=True, level=1, skip_grads=True)
    release_memory(main)
    assert str(main) == before
    with pytest.raises(ValueError, match="level must be 0 or 1"):
        memory_optimize(main, level=2)
    with pytest.raises(TypeError, match="memory_optimize: expected a Program"):
        memory_optimize("main")
    with pytest.raises(TypeError, match="release_memory: expected a Program"):
        release_memory(None)


@pytest.mark.parametrize(
    ("slot", "made", "words"),
    [
        ("Beta1Tensor", optimizer.Adam, "slots .*'Beta1Tensor'"),
        ("MeanGrad", optimizer.RMSProp, "expected Moment, MeanSquare, MeanGrad"),
    ],
)
def test_servers_take_numbers_and_all_of_an_optimizers_state(slot, made, words):
    programs = built(regression(lambda: made(0.1)))
    for op in programs[0].global_block().ops:
        if op.type == made.type:
            op.inputs[slot] = [] if op.inputs.get(slot) else op.inputs["LearningRate"]
    with pytest.raises(HpcdistError, match=words):
        transpile(programs)
