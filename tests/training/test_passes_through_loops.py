"""Several backward passes go through one loop, each with what the loop has computed."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.executor.scope import Scope, scope_guard

pytestmark = pytest.mark.usefixtures("programs")


def number(value, dtype="int64"):
    return layers.fill_constant([1], dtype, value)


def doubled_in_while(x, weight):
    i, n = number(0), number(2)
    _, value = layers.while_loop(
        lambda i, v: layers.less_than(i, n),
        lambda i, v: [layers.increment(i), layers.tanh(layers.matmul(v, weight))],
        [i, layers.assign(x)],
    )
    return value


def doubled_in_static_rnn(x, weight):
    turns = layers.stack([x, x])
    rnn = layers.StaticRNN()
    with rnn.step():
        rnn.step_input(turns)
        before = rnn.memory(init=x)
        after = layers.tanh(layers.matmul(before, weight))
        rnn.update_memory(before, after)
        rnn.step_output(after)
    return layers.slice(rnn(), [0], [1], [2])


def doubled_through_an_array(x, weight):
    """Places in the array are those of the turn, though `i` goes on."""
    i = number(0)
    array = layers.array_write(x, i)
    for _ in range(2):
        before = layers.array_read(array, i)
        layers.increment(i)
        layers.array_write(layers.tanh(layers.matmul(before, weight)), i, array)
    result = layers.array_read(array, i)
    layers.increment(i)
    return result


def doubled_in_branches(x, weight):
    holds = layers.less_than(number(0), number(1))
    for _ in range(2):
        x = layers.cond(
            holds, lambda x=x: layers.tanh(layers.matmul(x, weight)), lambda x=x: layers.assign(x)
        )
    return x


def doubled(x, weight):
    for _ in range(2):
        x = layers.tanh(layers.matmul(x, weight))
    return x


TWICE_BACK = [
    doubled_in_while,
    doubled_in_static_rnn,
    doubled_through_an_array,
    doubled_in_branches,
]


@pytest.mark.parametrize("how", ["gradients", "minimize"])
@pytest.mark.parametrize("layer", TWICE_BACK, ids=lambda layer: layer.__name__)
def test_several_passes_go_back_through_one_loop(layer, how):
    """Every pass has what the loop has computed: so do three losses of the same layers unrolled."""
    given = np.array([[0.5, -1.0], [1.5, 0.1], [0.2, 0.3]], "float32")

    def trained(layer):
        main, startup = fluid.Program(), fluid.Program()
        startup.random_seed = 3
        with fluid.program_guard(main, startup), fluid.unique_name.guard(), scope_guard(Scope()):
            x = layers.data("x", [3, 2], append_batch_size=False)
            weight = layers.create_parameter([2, 2], "float32", name="weight")
            value = layer(x, weight)
            losses = [
                layers.reduce_sum(layers.square(value)),
                layers.reduce_sum(value),
                layers.reduce_sum(layers.exp(value)),
            ]
            if how == "gradients":
                fetched = [fluid.gradients(loss, weight)[0] for loss in losses]
            else:
                fetched = losses
                for rate, loss in zip((0.1, 0.05, 0.02), losses):
                    fluid.optimizer.Momentum(rate, 0.9).minimize(loss)
            exe = fluid.Executor()
            exe.run(startup)
            return [
                np.array(value)
                for _ in range(3)
                for value in exe.run(main, feed={"x": given}, fetch_list=[*fetched, weight])
            ]

    for found, wanted in zip(trained(layer), trained(doubled), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
