"""Distributed tables: every row has a server of its own, and no rank has the whole table."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist import initializer, layers, optimizer
from hpcdist.contrib import extend_with_decoupled_weight_decay
from hpcdist.errors import GraphTypeError
from hpcdist.fluid.compat.paddle2.optimizer import AdamW
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.graph import Program, default_main_program, program_guard
from hpcdist.ps.row_policy import RowPolicy
from hpcdist.regularizer import L2Decay, WeightDecayRegularizer
from hpcdist.transpiler import GeoSgdTranspiler
from hpcdist.transpiler.table_metadata import read_tables
from hpcdist.transpiler.trainer import reading_program
from tests.support.transpiler import built, transpile

THREE = "ps0:6174,ps1:6174,ps2:6174"
SYNC = {"sync_mode": True}
ASYNC = {"sync_mode": False}
FLEET_CONFIG = {
    "sync_mode": False,
    "runtime_split_send_recv": True,
    "half_async": True,
    "completely_not_async": True,
}
FLEET = {"sync_mode": False, "config": FLEET_CONFIG}  # synchronous, by a communicator


def table(ids, **how):
    how = {"is_sparse": True, "is_distributed": True, "param_attr": "table", **how}
    return layers.embedding(input=ids, size=[10, 4], **how)


def ids_input(name):
    return layers.data(name=name, shape=[1], dtype="int64")


def two_look_ups(minimize=None, **how):
    """Between the look-ups the ids of the second are computed."""

    def build():
        ids = ids_input("ids")
        first = table(ids, **how)
        second = table(layers.cast(layers.scale(layers.cast(ids, "float32"), 2.0), "int64"), **how)
        loss = layers.mean(layers.fc(input=[first, second], size=1))
        (minimize or optimizer.Adam(learning_rate=0.1)).minimize(loss)

    return build


def distributed(build=None, **arguments):
    return transpile(built(build or two_look_ups()), 1, THREE, 3, **arguments)


def of_type(program, kind):
    return [op for block in program.blocks for op in block.ops if op.type == kind]


def test_all_look_ups_become_one_question_to_every_server():
    transpiler = distributed()
    ops = transpiler.get_trainer_program().global_block().ops
    kinds = [op.type for op in ops]
    assert "lookup_table" not in kinds
    at = kinds.index("split_ids")
    split, prefetch, merge = ops[at : at + 3]
    assert kinds[at : at + 3] == ["split_ids", "prefetch", "merge_ids"]
    assert split.input("Ids") == merge.input("Ids") == ["ids", ops[at - 1].output("Out")[0]]
    assert split.output("Out") == prefetch.input("X") == merge.input("Rows")
    assert len(split.output("Out")) == 3
    assert prefetch.attrs["epmap"] == transpiler.pserver_endpoints
    assert prefetch.attrs["trainer_id"] == 0
    assert merge.output("Out") == ["embedding_0.tmp_0", "embedding_1.tmp_0"]


@pytest.mark.parametrize("mode", [SYNC, ASYNC, FLEET], ids=["sync", "async", "fleet"])
def test_what_a_trainer_pushes_is_what_servers_add(mode):
    transpiler = distributed(**mode)
    program = transpiler.get_trainer_program()
    (push,) = [op for op in of_type(program, "send") if op.attrs["op_role_var"][0] == "table"]
    (split,) = [op for op in of_type(program, "split_ids") if "table@GRAD" in op.input("Ids")]
    assert split.output("Out") == push.input("X")
    assert push.attrs["epmap"] == transpiler.pserver_endpoints
    assert push.attrs["trainer_id"] == 1
    for k, (endpoint, sent) in enumerate(zip(push.attrs["epmap"], push.input("X"))):
        server = transpiler.get_pserver_program(endpoint)
        (held,) = server.distribution.tables
        assert sent in held.received
        assert len(held.received) == (1 if mode is ASYNC else 3)
        kinds = [op.type for op in server.block(held.update).ops]
        assert kinds == (["adam"] if mode is ASYNC else ["sum", "adam"])
        (serve,) = of_type(server, "listen_and_serv")
        assert f"{held.gradient}:{held.update}" in serve.attrs["grad_to_block_id"]
        assert serve.attrs["prefetch_var_name_to_block_id"] == [
            f"prefetch_compress_in_tmp_{k}:{held.lookup}"
        ]
        assert serve.attrs["checkpint_block_id"] == held.save
        assert held.update in serve.attrs["optimize_blocks"]
        assert held.height == 4
        assert server.global_block().var("table").shape == (4, 4)
        assert server._distributed_lookup_table == "table"


def test_nobody_receives_the_table():
    transpiler = distributed()
    for program in (transpiler.get_trainer_program(), transpiler.get_trainer_startup_program()):
        received = [n for op in of_type(program, "recv") for n in op.output("Out")]
        assert received
        assert not any(name.startswith("table") for name in received)
    (left_open,) = of_type(transpiler.get_trainer_startup_program(), "fake_init")
    assert left_open.output("Out") == ["table"]
    held = transpiler.param_grad_ep_mapping.values()
    assert "table" not in [v.name for at in held for v in at["params"]]


def test_servers_begin_with_different_rows():
    transpiler = distributed()
    draws = []
    for endpoint in transpiler.pserver_endpoints:
        startup = transpiler.get_startup_program(endpoint)
        (draw,) = [op for op in of_type(startup, "uniform_random") if "table" in op.output("Out")]
        assert draw.attrs["shape"] == [4, 4]
        draws.append((draw.attrs["offset"], draw.attrs["full_size"]))
    assert draws == [(0, 48), (16, 48), (32, 48)]


def test_a_test_program_asks_the_servers_too():
    transpiler = distributed()
    plan = transpiler.get_trainer_program().distribution
    test = Program()
    with program_guard(test, Program()):
        table(ids_input("ids"))
    asking = reading_program(test, plan)
    assert [op.type for op in asking.global_block().ops] == ["split_ids", "prefetch", "merge_ids"]


def wide_rows():
    rows = table(ids_input("ids"), dtype="float64")
    optimizer.SGD(0.1).minimize(layers.mean(rows))


def padded_otherwise():
    rows = [table(ids_input("ids"), padding_idx=k) for k in (1, None)]
    optimizer.SGD(0.1).minimize(layers.mean(layers.sums(rows)))


def read_whole():
    rows = table(ids_input("ids"))
    whole = default_main_program().global_block().var("table")
    loss = layers.elementwise_add(layers.mean(rows), layers.mean(whole))
    optimizer.SGD(0.1).minimize(loss)


def refused(build, **arguments):
    with pytest.raises(ValueError, match="is_distributed") as caught:
        distributed(build, **arguments)
    return str(caught.value)


def test_what_a_distributed_table_cannot_do_is_refused():
    assert "is_sparse=True" in refused(two_look_ups(is_sparse=False))
    assert "DC-ASGD" in refused(None, config={"enable_dc_asgd": True}, **ASYNC)
    expected = "expected one of sgd, momentum, adagrad, adam, adamax, rmsprop, ftrl, lamb"
    assert expected in refused(two_look_ups(optimizer.DecayedAdagrad(0.1)))
    assert "float32" in refused(wide_rows)
    assert "different padding_idx" in refused(padded_otherwise)
    assert "reads the whole table" in refused(read_whole)

    def ids_from_rows():
        rows = table(ids_input("ids"))
        ids = layers.cast(layers.reduce_sum(rows, dim=[1], keep_dim=True), "int64")
        optimizer.SGD(learning_rate=0.1).minimize(layers.mean(table(ids)))

    assert "computed from rows" in refused(ids_from_rows)


def test_one_moment_for_a_row_is_for_adagrad():
    by_row = ParamAttr("table", row_policy=RowPolicy(row_wise=True))
    with pytest.raises(ValueError, match="'table': RowPolicy.row_wise=True.*adam is to move it"):
        distributed(two_look_ups(optimizer.Adam(0.1), param_attr=by_row))


def test_a_regularizer_is_part_of_the_update_of_a_table():
    decay = L2Decay(0.1)
    for build in (
        two_look_ups(param_attr=ParamAttr("table", regularizer=decay)),
        two_look_ups(optimizer.SGD(0.1, regularization=decay)),
    ):
        main, _ = built(build)
        (found,) = read_tables(main)
        assert dict(found.attrs)["l2_decay"] == 0.1
        readers = {o.type for o in main.global_block().ops if found.parameter in o.input_arg_names}
        assert readers == {"lookup_table", "lookup_table_grad", found.optimizer}

    def by_no_rule():
        two_look_ups(optimizer.SGD(0.1, regularization=WeightDecayRegularizer(0.1)))()

    with pytest.raises(GraphTypeError, match="expected L1Decay or L2Decay"):
        built(by_no_rule)


def test_a_decoupled_decay_is_part_of_the_update_of_a_table():
    decaying = extend_with_decoupled_weight_decay(optimizer.Momentum)
    adamw = AdamW(0.1, weight_decay=0.03)
    for rule, name, coefficient in (
        (decaying(0.02, learning_rate=0.1, momentum=0.9), "decoupled_decay", 0.02),
        (adamw, "rate_decay", 0.03),
    ):
        main, _ = built(two_look_ups(rule))
        (found,) = read_tables(main)
        assert dict(found.attrs)[name] == coefficient
        readers = {o.type for o in main.global_block().ops if found.parameter in o.input_arg_names}
        assert readers == {"lookup_table", "lookup_table_grad", found.optimizer}

    def by_a_variable():
        rate = layers.fill_constant([1], "float32", 0.1)
        two_look_ups(decaying(rate, learning_rate=0.1, momentum=0.9))()

    with pytest.raises(GraphTypeError, match="the decay of its rows must be a number"):
        built(by_a_variable)


def test_geo_has_no_distributed_tables():
    main, startup = built(two_look_ups())
    with pytest.raises(ValueError, match="not in GEO mode"):
        GeoSgdTranspiler().transpile(0, program=main, startup_program=startup)


def test_an_initializer_that_tells_rows_apart_is_refused():
    values = initializer.NumpyArrayInitializer(np.zeros((10, 4), "float32"))
    filled = two_look_ups(param_attr=ParamAttr("table", initializer=values))
    assert "constant or random" in refused(filled)
