"""Forward values computed again: the same bits in less memory, and what is kept all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import GraphAssertionError, GraphError, GraphTypeError
from hpcdist.runtime.batches.analysis import SharedProgram

WIDTH, ROWS = 32, 64


def mlp(depth: int = 9) -> tuple[Any, list[Any]]:
    value, y = layers.data("x", [WIDTH]), layers.data("y", [1])
    outputs = []
    for _ in range(depth):
        value = layers.fc(value, WIDTH, act="tanh")
        outputs.append(value)
    loss = layers.mean(layers.square_error_cost(layers.fc(value, 1), y))
    return loss, [outputs[2], outputs[5]]


def with_drawn_masks() -> tuple[Any, list[Any]]:
    """Dropout, a batch_norm and values that pass over a checkpoint."""
    x, y = layers.data("x", [WIDTH]), layers.data("y", [1])
    first = layers.fc(x, WIDTH, act="relu")
    second = layers.dropout(layers.fc(first, WIDTH, act="tanh"), 0.4)
    third = layers.fc(layers.elementwise_add(second, first), WIDTH, act="sigmoid")
    fourth = layers.batch_norm(layers.fc(third, WIDTH), act="relu")
    fifth = layers.softmax(layers.fc(layers.elementwise_mul(fourth, first), WIDTH))
    sixth = layers.fc(layers.elementwise_add(fifth, third), WIDTH, act="relu")
    loss = layers.mean(layers.square_error_cost(layers.fc(sixth, 1), y))
    return loss, [second, fifth]


def images() -> tuple[Any, list[Any]]:
    x, y = layers.data("x", [WIDTH]), layers.data("y", [1])
    image = layers.reshape(x, [-1, 2, 4, 4])
    first = layers.conv2d(image, 4, 3, padding=1, act="relu")
    second = layers.pool2d(layers.conv2d(first, 4, 3, padding=1), 2, "max", 2)
    third = layers.concat([second, layers.transpose(second, [0, 1, 3, 2])], axis=1)
    fourth = layers.layer_norm(layers.fc(third, WIDTH))
    loss = layers.mean(layers.square_error_cost(layers.fc(fourth, 1), y))
    return loss, [first, third]


def trained(
    net: Any, again: bool, saving: bool = False, rows: int = ROWS
) -> tuple[list[bytes], int]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss, checkpoints = net()
        optimizer = fluid.optimizer.Momentum(0.1, 0.9)
        if again:
            optimizer = fluid.optimizer.RecomputeOptimizer(optimizer)
            optimizer._set_checkpoints(checkpoints)
        optimizer.minimize(loss)
    if saving:
        fluid.memory_optimize(main)
    exe = fluid.Executor()
    rng = np.random.default_rng(0)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        losses = []
        for _ in range(4):
            feed = {
                "x": rng.normal(size=(rows, WIDTH)).astype("float32"),
                "y": rng.normal(size=(rows, 1)).astype("float32"),
            }
            losses.append(exe.run(main, feed=feed, fetch_list=[loss])[0].tobytes())
        kept = [v.name for v in main.list_vars() if v.persistable]
        held = fluid.global_scope()
        values = [np.array(held.find_var(n).get_tensor()).tobytes() for n in sorted(kept)]
    return [*losses, *values], max(e.compiled.pool_bytes for e in exe.forms())


@pytest.mark.parametrize("saving", [False, True])
@pytest.mark.parametrize("net", [mlp, with_drawn_masks, images])
def test_bits_are_the_same(net: Any, saving: bool) -> None:
    plain, plainly = trained(net, False, saving)
    again, sparingly = trained(net, True, saving)
    assert again == plain
    assert sparingly <= plainly


def test_it_saves_memory_and_computes_more() -> None:
    _, plainly = trained(mlp, False, saving=True, rows=1024)
    _, sparingly = trained(mlp, True, rows=1024)
    assert sparingly < 0.7 * plainly
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        loss, checkpoints = mlp()
        optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
        optimizer._set_checkpoints(checkpoints)
        optimizer.minimize(loss)
        ops = loss.block.ops
    tanhs = [op for op in ops if op.type == "tanh"]
    assert len(tanhs) == 9 + 4  # two within each of the segments before a checkpoint
    assert not SharedProgram(loss.block.program, 2).why_whole


@pytest.mark.parametrize("mixed", [False, True])
def test_trainers_divide_its_batches_as_without(mixed: bool) -> None:
    """Where a value in between has another first dimension, too: the shape that reshape notes."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = layers.fc(layers.data("x", [6]), 6, act="tanh")
        value = layers.reshape(layers.reshape(x, [-1, 2, 3]), [-1, 6])
        if mixed:
            value = layers.reverse(value, [0])
        checkpoint = layers.fc(value, 6, act="tanh")
        loss = layers.mean(layers.fc(checkpoint, 1))
        if mixed:
            loss = layers.sqrt(layers.square(loss))
        optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
        optimizer._set_checkpoints([checkpoint])
        optimizer.minimize(loss)
    program = loss.block.program
    assert any(name.endswith("@RECOMPUTED") for name in program.global_block().vars)
    assert bool(SharedProgram(program, 2).why_whole) == mixed


def test_it_can_be_asked_of_append_backward() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss, checkpoints = mlp()
        fluid.append_backward(loss, checkpoints=checkpoints)
        assert sum(op.type == "tanh" for op in loss.block.ops) == 9 + 4


def test_refusals() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss, _ = mlp()
        optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
        with pytest.raises(GraphAssertionError, match="call _set_checkpoints first"):
            optimizer.minimize(loss)
        with pytest.raises(GraphTypeError, match="expected a list of Variables"):
            optimizer._set_checkpoints(loss)
        with pytest.raises(NotImplementedError, match="fluid.io loads models"):
            optimizer.load({})
        optimizer._set_checkpoints(["nothing"])
        with pytest.raises(GraphError, match="checkpoint 'nothing' is not computed"):
            optimizer.minimize(loss)
