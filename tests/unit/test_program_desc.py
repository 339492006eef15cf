"""Programs as bytes in Fluid's format, and attributes that are blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import CheckpointError


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
