"""Programs as bytes in Fluid's format, and attributes that are blocks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import CheckpointError, FeedError
from hpcdist.fluid.io.program_data import from_data, to_data


def regression() -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = layers.data("x", [3]), layers.data("y", [1])
        loss = layers.mean(layers.square_error_cost(layers.fc(x, 1), y))
        fluid.optimizer.Adam(0.1).minimize(loss)
    return main, startup, loss


def test_a_program_goes_through_bytes_and_trains_on():
    main, startup, loss = regression()
    parsed, made = (
        fluid.Program.parse_from_string(program.desc.serialize_to_string())
        for program in (main, startup)
    )
    assert [str(op) for op in parsed.global_block().ops] == [
        str(op) for op in main.global_block().ops
    ]
    feed = {"x": np.ones((2, 3), np.float32), "y": np.ones((2, 1), np.float32)}
    losses = []
    for first, program in ((startup, main), (made, parsed)):
        exe, scope = fluid.Executor(), fluid.Scope()
        exe.run(first, scope=scope)
        fetched = [
            exe.run(program, feed=feed, fetch_list=[loss.name], scope=scope)[0] for _ in range(3)
        ]
        losses.append(np.concatenate(fetched))
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_array_equal(*losses)


def test_bytes_that_are_no_program_are_refused():
    with pytest.raises(CheckpointError, match="parse_from_string: neither a model of hpcdist nor"):
        fluid.Program.parse_from_string(b"\x07nonsense")


def test_a_servers_optimize_blocks_are_blocks():
    """As Fluid's own tests of the transpiler read them."""
    main, startup, _ = regression()
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, main, "ps0:6174", 2, startup_program=startup)
    server = transpiler.get_pserver_program("ps0:6174")
    (serve,) = server.global_block().ops
    blocks = serve.attr("optimize_blocks")
    assert blocks == serve.all_attrs()["optimize_blocks"] == server.blocks[1:]
    assert all(block.ops[-1].type in ("adam", "scale") for block in blocks)
    assert serve._blocks_attr_ids("optimize_blocks") == [block.idx for block in blocks]
    parsed = fluid.Program.parse_from_string(server.desc.serialize_to_string())
    assert [[op.type for op in block.ops] for block in parsed.blocks] == [
        [op.type for op in block.ops] for block in server.blocks
    ]


def test_descs_are_the_parts_of_a_program_under_the_names_of_fluids_core():
    main, _, _ = regression()
    program = main.desc
    block = program.block(0)
    assert (program.num_blocks(), block.id, block.parent) == (1, 0, -1)
    assert [block.op(k).type() for k in range(block.op_size())] == [
        op.type for op in main.global_block().ops
    ]
    mul = main.global_block().ops[0].desc
    assert (mul.type(), mul.input_names(), mul.input("X")) == ("mul", ["X", "Y"], ["x"])
    assert mul.output_arg_names() == mul.output("Out") == mul.outputs()["Out"]
    assert mul.has_attr("x_num_col_dims") and mul.attr("x_num_col_dims") == 1
    of_int = main.global_block().ops[0].attr_type("x_num_col_dims")
    assert mul.attr_type("x_num_col_dims") == of_int == fluid.core.AttrType.INT
    assert "x_num_col_dims" in mul.attr_names() and mul.block() == block
    x = block.find_var(b"x")
    assert (x.name(), x.shape(), x.dtype(), x.lod_level()) == ("x", [-1, 3], "float32", 0)
    assert x.type() == fluid.core.VarDesc.VarType.LOD_TENSOR and not x.persistable()
    assert x == block.find_var_recursive("x") and x in block.all_vars()
    assert x.name() in main.global_block().vars and not block.has_var("z")
    assert block.find_var("z") is None is block.find_var_recursive("z")


def test_what_is_changed_by_a_desc_is_changed_in_the_program():
    main, _, loss = regression()
    block = main.global_block()
    before = main.version
    loss.desc.set_persistable(True)
    loss.desc.set_shape([1])
    mul = block.ops[0]
    mul.desc.set_input("X", [block.var("y")])
    mul.desc._rename_input("y", "x")
    mul.desc._set_attr("x_num_col_dims", 2)
    assert loss.persistable and main.version > before
    assert mul.input("X") == ["x"] and mul.attr("x_num_col_dims") == 2
    count = len(block.ops)
    block.desc._remove_op(count - 2, count)
    assert len(block.ops) == count - 2


@pytest.mark.parametrize("fluids", [True, False])
def test_what_is_fed_to_a_stored_program_is_checked_as_before(fluids):
    main = fluid.Program()
    with fluid.program_guard(main), fluid.unique_name.guard():
        loss = layers.mean(fluid.data("x", [None, 3]))
    loss.stop_gradient = 0  # as scripts may say it
    stored = main.desc.serialize_to_string() if fluids else json.loads(json.dumps(to_data(main)))
    read = fluid.Program.parse_from_string(stored) if fluids else from_data(stored, "file")
    for program in (read, read.clone(for_test=True)):
        with pytest.raises(FeedError, match="'x': expected float32"):
            fluid.Executor().run(program, {"x": np.ones((2, 4), "float32")}, [loss.name])
