"""Layers that stand for a feature: rows of `WIDTH` become rows of `WIDTH`."""

from __future__ import annotations

from typing import Any

import hpcdist as fluid
from hpcdist import layers
from hpcdist.graph import Variable
from tests.equality.network import CLASSES, WIDTH, WORDS, Net


def looked_up(h: Variable, net: Net, **how: Any) -> Variable:
    """Add rows of a table."""
    rows = layers.embedding(
        net.input("word"), [WORDS, WIDTH], param_attr="table", dtype=net.dtype, **how
    )
    return layers.elementwise_add(h, rows)


def two_look_ups(h: Variable, net: Net, is_sparse: bool) -> Variable:
    """Add rows that two inputs look up in one table."""
    for name in ("word", "other_word"):
        how: dict[str, Any] = {"param_attr": "shared_table", "dtype": net.dtype}
        rows = layers.embedding(net.input(name), [WORDS, WIDTH], is_sparse=is_sparse, **how)
        h = layers.elementwise_add(h, rows)
    return h


def shared_weight(h: Variable, net: Net) -> Variable:
    """Two layers have one weight."""
    for _ in range(2):
        h = layers.fc(h, WIDTH, act="tanh", param_attr="shared_weight")
    return h


def cond_by_step(h: Variable, net: Net) -> Variable:
    """Take one branch in the first two steps, and another one, with a weight, later."""
    step = layers.autoincreased_step_counter("@BRANCH_COUNTER@", begin=0)
    early = layers.less_than(step, layers.fill_constant([1], "int64", 2))
    return layers.cond(
        early,
        lambda: layers.scale(h, 0.5),
        lambda: layers.fc(h, WIDTH, act="tanh", param_attr="late_weight"),
    )


def cond_by_batch(h: Variable, net: Net) -> Variable:
    """Take a branch that follows from all rows of the batch."""
    mean = layers.mean(net.input("x"))
    above = layers.greater_than(mean, layers.fill_constant([1], net.dtype, 0.0))
    return layers.cond(above, lambda: layers.scale(h, 0.5), lambda: layers.tanh(h))


def loop(h: Variable, net: Net) -> Variable:
    """Apply one weight in each of two turns."""
    weight = layers.create_parameter([WIDTH, WIDTH], net.dtype, name="turned_weight")
    turn, turns = (layers.fill_constant([1], "int64", n) for n in (0, 2))
    _, value = layers.while_loop(
        lambda i, v: layers.less_than(i, turns),
        lambda i, v: [layers.increment(i, in_place=True), layers.tanh(layers.matmul(v, weight))],
        [turn, h],
    )
    return value


def static_rnn(h: Variable, net: Net) -> Variable:
    """Go over two halves of each row, and put them together again."""
    half = WIDTH // 2
    parts = layers.transpose(layers.reshape(h, [-1, 2, half]), [1, 0, 2])
    rnn = layers.StaticRNN()
    with rnn.step():
        now = rnn.step_input(parts)
        before = rnn.memory(shape=[-1, half], batch_ref=parts)
        after = layers.fc([now, before], half, act="tanh")
        rnn.update_memory(before, after)
        rnn.step_output(after)
    return layers.reshape(layers.transpose(rnn(), [1, 0, 2]), [-1, WIDTH])


def if_else(h: Variable, net: Net) -> Variable:
    """Compute rows by a mask in one way or the other."""
    first = layers.slice(net.input("x"), [1], [0], [1])
    branches = layers.IfElse(layers.less_than(first, layers.zeros_like(first)))
    with branches.true_block():
        branches.output(layers.scale(branches.input(h), 0.5))
    with branches.false_block():
        branches.output(layers.tanh(branches.input(h)))
    return branches()[0]


def pooled(h: Variable, net: Net) -> Variable:
    """Add the mean of the rows of words."""
    rows = layers.embedding(net.input("words"), [WORDS, WIDTH], dtype=net.dtype)
    return layers.elementwise_add(h, layers.sequence_pool(rows, "average"))


def lstm(h: Variable, net: Net) -> Variable:
    """Add the last value of an LSTM over the lines."""
    gates = layers.fc(net.input("line"), 4 * WIDTH)
    values, _ = layers.dynamic_lstm(gates, 4 * WIDTH, use_peepholes=False, dtype=net.dtype)
    return layers.elementwise_add(h, layers.sequence_last_step(values))


def dynamic_rnn(h: Variable, net: Net) -> Variable:
    """Add the last value of a recurrence over the lines."""
    rnn = layers.DynamicRNN()
    with rnn.block():
        now = rnn.step_input(net.input("line"))
        before = rnn.memory(shape=[WIDTH], value=0.0, dtype=net.dtype)
        after = layers.fc([now, before], WIDTH, act="tanh")
        rnn.update_memory(before, after)
        rnn.output(after)
    return layers.elementwise_add(h, layers.sequence_last_step(rnn()))


def convolution(h: Variable, net: Net) -> Variable:
    """Take a row for an image of two channels."""
    image = layers.reshape(h, [-1, 2, 2, WIDTH // 4])
    return layers.reshape(layers.conv2d(image, 2, 3, padding=1, act="tanh"), [-1, WIDTH])


def with_penalty(cost: Variable) -> Variable:
    """Add to the mean what does not depend on the batch."""
    weight = layers.create_parameter([2, 2], cost.dtype, name="penalized")
    penalty = layers.scale(layers.reduce_sum(layers.square(weight)), 0.1)
    return layers.elementwise_add(layers.mean(cost), penalty)


def _chances(net: Net, h: Variable) -> Variable:
    return layers.fc(h, CLASSES, act="softmax", param_attr="chances_weight")


def accuracy(net: Net, h: Variable) -> list[Variable]:
    return [layers.accuracy(_chances(net, h), net.input("label"))]


def area(net: Net, h: Variable) -> list[Variable]:
    return [layers.auc(_chances(net, h), net.input("label"))[0]]


def by_norm_of_all(pairs: Any) -> Any:
    """Divide gradients by their common norm."""
    norm = layers.sqrt(layers.sums([layers.reduce_sum(layers.square(g)) for _, g in pairs]))
    return [(p, layers.elementwise_div(g, layers.scale(norm, 1.0, 1.0))) for p, g in pairs]


def moving_average() -> Any:
    """Keep moving averages of the parameters."""
    average = fluid.optimizer.ExponentialMovingAverage(0.7)
    average.update()
    return average


def recomputing(optimizer: Any, net: Net) -> Any:
    """Keep the values of some layers only."""
    wrapped = fluid.optimizer.RecomputeOptimizer(optimizer)
    wrapped._set_checkpoints(net.kept)
    return wrapped
