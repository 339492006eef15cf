"""Gradients of values that a later operator of the forward pass overwrites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcdist import layers
from hpcdist.backward import append_backward, gradients
from hpcdist.errors import GraphError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.fluid.layers.control_flow import ConditionalBlock
from hpcdist.graph.program import (
    default_main_program,
    default_startup_program,
)
from hpcdist.graph.variable import Variable
from hpcdist.initializer import ConstantInitializer

pytestmark = pytest.mark.usefixtures("programs")


def slopes(build: Callable[[Variable, Variable], Variable]) -> list[Any]:
    """Return the slopes of what is built of x = 3 and a = 5, by each of them."""
    x, a = (layers.data(name, [1], append_batch_size=False) for name in "xa")
    x.stop_gradient = a.stop_gradient = False
    found = gradients([build(x, a)], [x, a])
    exe, scope = Executor(), Scope()
    exe.run(default_startup_program(), scope=scope)
    fed = {"x": np.float32([3]), "a": np.float32([5])}
    asked = [slope for slope in found if slope is not None]
    values = iter(exe.run(feed=fed, fetch_list=asked, scope=scope))
    return [None if slope is None else float(next(values)[0]) for slope in found]


def eleven() -> Variable:
    return layers.fill_constant([1], "float32", 11.0)


def of_data(x: Variable, a: Variable) -> Variable:
    square = x * x
    layers.assign(eleven(), x)
    return square


def of_a_product(x: Variable, a: Variable) -> Variable:
    product = x * a
    square = product * product
    layers.assign(eleven(), product)
    return square


def of_a_state(x: Variable, a: Variable) -> Variable:
    state = layers.create_global_var([1], 7.0, "float32", persistable=True)
    read = state * x
    layers.assign(a, state)
    return read


def by_a_sum(x: Variable, a: Variable) -> Variable:
    product = x * a
    square = product * product
    return square + 3.0 * layers.sums([product, a], out=product)


def by_an_increment(x: Variable, a: Variable) -> Variable:
    product = x * a
    square = product * product
    return square + layers.increment(product, 3.0)


def by_a_loop(x: Variable, a: Variable) -> Variable:
    product = x * a
    square = product * product
    i, n = (layers.fill_constant([1], "int64", number) for number in (0, 2))
    more = layers.less_than(i, n)
    loop = layers.While(more)
    with loop.block():
        layers.assign(product + a, product)
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    return square + product


def by_a_branch(x: Variable, a: Variable) -> Variable:
    product = x * a
    square = product * product
    with ConditionalBlock([layers.less_than(x, a)], is_scalar_condition=True).block():
        layers.assign(x * x, product)
    return square + 3.0 * product


def by_two_loops(x: Variable, a: Variable) -> Variable:
    product = x * a
    for _ in range(2):
        i, n = (layers.fill_constant([1], "int64", number) for number in (0, 1))
        more = layers.less_than(i, n)
        loop = layers.While(more)
        with loop.block():
            layers.assign(product * product, product)
            layers.increment(i)
            layers.less_than(i, n, cond=more)
    return product


SLOPES = {
    of_data: [6.0, None],
    of_a_product: [150.0, 90.0],
    of_a_state: [7.0, None],
    by_a_sum: [165.0, 102.0],
    by_an_increment: [155.0, 93.0],
    by_a_loop: [155.0, 95.0],
    by_a_branch: [168.0, 90.0],
    by_two_loops: [67500.0, 40500.0],
}


@pytest.mark.parametrize("build", SLOPES)
def test_gradients_read_values_as_they_were_before(build):
    assert slopes(build) == SLOPES[build]


def test_two_backward_passes_keep_copies_of_their_own():
    x = layers.data("x", [1], append_batch_size=False)
    x.stop_gradient = False
    value = layers.scale(x, 1.0)
    for _ in range(3):
        default_main_program().global_block().append_op("square", {"X": [value]}, {"Out": [value]})
    found = [gradients([target], [x])[0] for target in (value + 0.0, value * value)]
    got = Executor().run(feed={"x": np.float32([2])}, fetch_list=found, scope=Scope())
    assert [float(one[0]) for one in got] == [8 * 2**7, 16 * 2**15]


@pytest.mark.parametrize("checkpoints", [False, True])
def test_data_that_is_overwritten_is_not_read_to_compute_again(checkpoints):
    x = layers.data("x", [1], append_batch_size=False)
    weight = layers.create_parameter([1], "float32", default_initializer=ConstantInitializer(2.0))
    inner = layers.exp(x)
    first = inner * inner * weight
    layers.assign(eleven(), x)
    loss = first * first
    (pair,) = append_backward(loss, checkpoints=[first, loss] if checkpoints else None)
    exe, scope = Executor(), Scope()
    exe.run(default_startup_program(), scope=scope)
    (slope,) = exe.run(feed={"x": np.float32([0])}, fetch_list=[pair[1]], scope=scope)
    assert slope == [4.0]


def test_what_no_gradient_reads_is_not_copied():
    def build(x: Variable, a: Variable) -> Variable:
        total = x + a
        layers.assign(eleven(), x)
        return total

    assert slopes(build) == [1.0, 1.0]
    assert [op.type for op in default_main_program().global_block().ops].count("assign") == 1


def and_both_count(x: Variable, a: Variable) -> Variable:
    product = x * a
    twice = 2.0 * product
    layers.assign(x * x, product)
    return twice + 3.0 * product


def and_it_alone_counts(x: Variable, a: Variable) -> Variable:
    product = x * a
    layers.assign(x * x, product)
    return 3.0 * product


def data_too(x: Variable, a: Variable) -> Variable:
    square = x * x
    layers.assign(eleven(), x)
    return square + x


@pytest.mark.parametrize("build", [and_both_count, and_it_alone_counts, data_too])
def test_gradients_of_two_values_under_one_name_are_refused(build):
    with pytest.raises(GraphError, match=r"assign\(.*overwrites .* write into another variable"):
        slopes(build)


def test_what_a_loop_has_read_may_not_be_overwritten():
    def build(x: Variable, a: Variable) -> Variable:
        product, total = x * a, x + a
        i, n = (layers.fill_constant([1], "int64", number) for number in (0, 2))
        more = layers.less_than(i, n)
        loop = layers.While(more)
        with loop.block():
            layers.assign(total + product * product, total)
            layers.increment(i)
            layers.less_than(i, n, cond=more)
        layers.assign(eleven(), product)
        return total

    with pytest.raises(GraphError, match=r"gradient of while needs .* overwrites"):
        slopes(build)
