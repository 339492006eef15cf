"""Sparse tables stay on the servers; what is shared with updates stays on the trainer."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers, optimizer
from hpcdist.errors import FeedError, PlanError
from tests.support.transpiler import SERVERS, built, transpile

EP0, EP1 = SERVERS.split(",")


def table(ids, **how):
    return layers.embedding(input=ids, size=[5000, 16], param_attr="table", **how)


def minimized(*values, rate=0.1):
    loss = layers.mean(layers.fc(input=list(values), size=1))
    optimizer.SGD(learning_rate=rate).minimize(loss)


def ids_input(name):
    return layers.data(name=name, shape=[1], dtype="int64")


def of_type(program, kind):
    return [op for op in program.global_block().ops if op.type == kind]


def test_all_look_ups_in_a_sparse_table_become_one():
    def build():
        minimized(*(table(ids_input(f"ids{k}"), is_sparse=True) for k in range(3)))

    transpiler = transpile(built(build))
    trainer = transpiler.get_trainer_program()
    (lookup,) = of_type(trainer, "distributed_lookup_table")
    assert lookup.input("Ids") == ["ids0", "ids1", "ids2"]
    assert lookup.attrs["height_sections"] == [2500, 2500]
    assert lookup.attrs["table_names"] == ["table.block0", "table.block1"]
    assert not of_type(trainer, "lookup_table")
    assert "table" not in [n for op in of_type(trainer, "recv") for n in op.output("Out")]
    (left_open,) = of_type(transpiler.get_trainer_startup_program(), "fake_init")
    assert left_open.output("Out") == ["table"]
    kinds = {r.vtype for r in transpiler.vars_overview.distributed_vars if r.origin.name == "table"}
    assert kinds == {"RemotePrefetch"}


def test_a_table_that_is_read_otherwise_too_is_received():
    def build():
        rows = table(ids_input("ids"), is_sparse=True)
        whole = rows.block.program.global_block().var("table")
        minimized(rows, layers.reduce_sum(layers.square(whole), dim=[0], keep_dim=True))

    trainer = transpile(built(build)).get_trainer_program()
    assert not of_type(trainer, "distributed_lookup_table")
    received = [n for op in of_type(trainer, "recv") for n in op.output("Out")]
    assert {"table.block0", "table.block1"} <= set(received)


def test_ids_that_depend_on_the_same_table_are_refused():
    def build():
        rows = table(ids_input("ids"), is_sparse=True)
        ids = layers.cast(layers.reduce_sum(rows, dim=[1], keep_dim=True), "int64")
        minimized(rows, table(ids, is_sparse=True))

    with pytest.raises(ValueError, match=r"'table'.*use is_sparse=False"):
        transpile(built(build))


@pytest.mark.parametrize("how", ["is_sparse", "is_distributed"])
def test_what_computes_ids_moves_before_what_reads_other_rows(how):
    """So it is in word2vec: rows of true words are reshaped before ids of the others are."""

    def build():
        given = {"is_sparse": True, how: True}
        true = layers.scale(table(ids_input("true"), **given), 2.0)
        false = layers.reshape(layers.data(name="false", shape=[5], dtype="int64"), [-1, 1])
        minimized(true, table(false, **given))

    ops = transpile(built(build)).get_trainer_program().global_block().ops
    kinds = [op.type for op in ops]
    asks = kinds.index("distributed_lookup_table" if how == "is_sparse" else "prefetch")
    assert kinds.index("reshape2") < asks < kinds.index("scale")


def test_ids_that_change_between_look_ups_are_refused():
    def build():
        ids = ids_input("ids")
        rows = table(ids, is_sparse=True)
        layers.assign(ids_input("others"), ids)
        minimized(rows, table(ids, is_sparse=True))

    with pytest.raises(PlanError, match="'table'.*use is_sparse=False"):
        transpile(built(build))


def test_look_ups_of_a_sparse_table_have_one_padding():
    def build():
        minimized(*(table(ids_input(f"i{k}"), is_sparse=True, padding_idx=k) for k in (0, None)))

    with pytest.raises(PlanError, match="different padding_idx, got .-1, 0."):
        transpile(built(build))


def test_a_learning_rate_that_the_forward_pass_reads_stays_on_the_trainer():
    def build(also_read):
        x = layers.data(name="x", shape=[3], dtype="float32")
        rate = layers.create_global_var([1], 0.1, "float32", persistable=True, name="rate")
        if also_read:
            layers.scale(rate, scale=2.0)
        minimized(x, rate=rate)

    for also_read in (True, False):
        transpiler = transpile(built(lambda read=also_read: build(read)))
        trainer = transpiler.get_trainer_program()
        startup = transpiler.get_trainer_startup_program()
        assert trainer.global_block().has_var("rate") == also_read
        filled = [n for op in startup.global_block().ops for n in op.output_arg_names]
        assert ("rate" in filled) == also_read


def test_what_is_left_open_is_not_read_from_the_scope():
    program, scope = fluid.Program(), fluid.Scope()
    block = program.global_block()
    block.create_var("table", shape=[2, 2], dtype="float32", persistable=True)
    block.append_op("fake_init", outputs={"Out": "table"}, attrs={"shape": [2, 2]})
    fluid.Executor().run(program, scope=scope)
    tensor = scope.find_var("table").get_tensor()
    with pytest.raises(FeedError, match="'table' are on the servers"):
        np.array(tensor)
    tensor.set(np.ones((2, 2), np.float32))
    assert np.array(tensor).tolist() == [[1, 1], [1, 1]]
