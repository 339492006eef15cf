"""Gradients of what loops and branches compute with arrays, beside differences of the loss."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.graph.variable import Variable

Net = Callable[[Variable, Variable], Variable]
NETS: dict[str, Net] = {}
TURNS = 3


def net(build: Net) -> Net:
    NETS[build.__name__] = build
    return build


def counter() -> Variable:
    return layers.zeros([1], "int64")


def goes_on(i: Variable, *_: Variable) -> Variable:
    return layers.less_than(i, layers.fill_constant([1], "int64", TURNS))


def is_small(x: Variable) -> Variable:
    return layers.less_than(layers.reduce_sum(x), layers.fill_constant([1], "float64", 2.0))


@net
def an_array_that_is_carried(x: Variable, d: Variable) -> Variable:
    def body(i: Variable, array: Variable) -> list[Variable]:
        total = x * d + layers.array_read(array, i)
        i = layers.increment(i)
        layers.array_write(total, i, array)
        return [i, array]

    i = counter()
    i, array = layers.while_loop(goes_on, body, [i, layers.array_write(x, i)])
    return layers.array_read(array, i)


@net
def an_array_beside_a_value_of_it(x: Variable, d: Variable) -> Variable:
    i = counter()
    array = layers.array_write(x, i)
    more = goes_on(i)
    loop = layers.While(more)
    with loop.block():
        value = layers.array_read(array, i) * d + x
        layers.increment(i)
        layers.array_write(value, i, array)
        layers.assign(goes_on(i), more)
    return layers.array_read(array, i)


@net
def a_value_twice_in_an_array(x: Variable, d: Variable) -> Variable:
    i = counter()
    array = layers.array_write(x, i)
    layers.array_write(x, layers.increment(counter()), array)

    def body(i: Variable, s: Variable) -> list[Variable]:
        next_i = layers.increment(layers.assign(i))
        both = layers.array_read(array, counter()) * layers.array_read(
            array, layers.increment(counter())
        )
        return [next_i, s * d + both]

    return layers.while_loop(goes_on, body, [i, x])[1]


@net
def two_arrays(x: Variable, d: Variable) -> Variable:
    def body(i: Variable, a: Variable, b: Variable) -> list[Variable]:
        u, v = layers.array_read(a, i), layers.array_read(b, i)
        i = layers.increment(i)
        layers.array_write(u * v, i, a)
        layers.array_write(u + v, i, b)
        return [i, a, b]

    i = counter()
    begin = [i, layers.array_write(x, i), layers.array_write(x * d, i)]
    i, a, b = layers.while_loop(goes_on, body, begin)
    return layers.array_read(a, i) + layers.array_read(b, i)


@net
def an_array_in_a_loop_in_a_loop(x: Variable, d: Variable) -> Variable:
    def inner(j: Variable, x: Variable, array: Variable) -> list[Variable]:
        total = x * d + layers.array_read(array, j)
        j = layers.increment(j)
        layers.array_write(total, j, array)
        return [j, x, array]

    def outer(i: Variable, x: Variable, array: Variable) -> list[Variable]:
        j, x, array = layers.while_loop(goes_on, inner, [counter(), x, array])
        last = layers.array_read(array, j)
        layers.array_write(last * x, counter(), array)
        return [layers.increment(i), x, array]

    i = counter()
    array = layers.while_loop(goes_on, outer, [i, x, layers.array_write(x, i)])[2]
    return layers.array_read(array, counter())


@net
def an_array_in_a_branch(x: Variable, d: Variable) -> Variable:
    array = layers.array_write(x * d, counter())

    def branch() -> Variable:
        value, second = layers.array_read(array, counter()), layers.increment(counter())
        layers.array_write(value * value + x, second, array)
        return layers.array_read(array, second)

    return layers.cond(is_small(x), branch, lambda: x)


@net
def values_that_change_places(x: Variable, d: Variable) -> Variable:
    def body(i: Variable, u: Variable, v: Variable) -> list[Variable]:
        return [layers.increment(i), v, u * v]

    _, u, v = layers.while_loop(goes_on, body, [counter(), x * d, x + d])
    return u + v


@net
def a_value_that_stays(x: Variable, d: Variable) -> Variable:
    def body(i: Variable, u: Variable, w: Variable) -> list[Variable]:
        return [layers.increment(i), u * w, w]

    _, u, w = layers.while_loop(goes_on, body, [counter(), x * d, x])
    return u * w


@net
def a_branch_in_a_loop(x: Variable, d: Variable) -> Variable:
    def body(i: Variable, u: Variable) -> list[Variable]:
        u = layers.cond(is_small(u), lambda: u * 1.5 + x, lambda: u - d)
        return [layers.increment(i), u]

    return layers.while_loop(goes_on, body, [counter(), x * d])[1]


@net
def memories_that_begin_with_one_value(x: Variable, d: Variable) -> Variable:
    steps = layers.reshape(layers.concat([x, x * d], 0), [2, 1, 3])
    begin = layers.reshape(x, [1, 3])
    rnn = layers.StaticRNN()
    with rnn.step():
        w = rnn.step_input(steps)
        p, q = rnn.memory(init=begin), rnn.memory(init=begin)
        h = p * q * 0.5 + w
        rnn.update_memory(p, h)
        rnn.update_memory(q, h - q * x)
        rnn.step_output(h)
    return layers.reduce_sum(rnn(), 0)


@net
def an_input_that_is_taken_twice(x: Variable, d: Variable) -> Variable:
    steps = layers.reshape(layers.concat([x, x * d], 0), [2, 1, 3])
    rnn = layers.StaticRNN()
    with rnn.step():
        w, same = rnn.step_input(steps), rnn.step_input(steps)
        p = rnn.memory(shape=[-1, 3], batch_ref=w, init_value=0.5)
        rnn.update_memory(p, w * same + p)
        rnn.step_output(w)
        rnn.step_output(p)
    w, p = rnn()
    return layers.reduce_sum(w * w * p, 0)


@pytest.mark.parametrize("name", NETS)
def test_the_gradient_is_the_slope_of_the_loss(name: str) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, d = fluid.data("x", [3], "float64"), fluid.data("d", [3], "float64")
        x.stop_gradient = False
        loss = layers.reduce_sum(NETS[name](x, d))
        fluid.backward.append_backward(loss)
    exe, scope = fluid.Executor(), fluid.Scope()
    at = np.array([0.3, -0.4, 0.9])

    def fetched(x: np.ndarray, what: str) -> np.ndarray:
        feed = {"x": x, "d": np.array([0.5, 1.0, 0.7])}
        return np.array(exe.run(main, feed, [what], scope=scope)[0])

    steps = np.eye(3) * 1e-6
    slopes = [
        (fetched(at + step, loss.name) - fetched(at - step, loss.name)).item() / 2e-6
        for step in steps
    ]
    np.testing.assert_allclose(fetched(at, "x@GRAD"), slopes, 1e-6)


def test_a_place_of_an_array_is_not_written_twice_where_gradients_flow() -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.data("x", [3])
        x.stop_gradient = False
        array = layers.array_write(x, counter())
        first = layers.array_read(array, counter())
        layers.array_write(x * x, counter(), array)
        both = layers.reduce_sum(first + layers.array_read(array, counter()))
    exe, feed = fluid.Executor(), {"x": np.ones(3, "float32")}
    assert exe.run(main, feed, [both])[0].item() == 6
    with fluid.program_guard(main):
        fluid.backward.append_backward(both)
    with pytest.raises(fluid.errors.GraphError, match="holds a value at 0 already, and gradients"):
        exe.run(main, feed, ["x@GRAD"])
