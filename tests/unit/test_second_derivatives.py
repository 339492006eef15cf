"""Gradients through an earlier gradient: of each operator that has them, and refused for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.backward import gradients
from hpcdist.errors import GraphError

X = np.array([[0.3, 1.2, -2.1, 0.8], [0.7, -1.9, 0.4, 1.4], [-1.1, 0.6, 1.5, -0.2]], np.float32)
Y = np.array([[0.5, 1.1, 0.9, -1.2], [1.6, -0.7, 0.8, 0.4], [0.9, 1.3, 0.6, 1.7]], np.float32)
STEP = 1e-2


@pytest.fixture(autouse=True)
def _program() -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        fluid.default_startup_program().random_seed = 5
        yield


def cube(x: Any) -> Any:
    return layers.square(x) * x


def image(x: Any, height: int = 4) -> Any:
    return layers.reshape(x, [1, 1, height, -1])


def volume(x: Any) -> Any:
    return layers.reshape(x, [1, 1, 3, 2, 2])


def number(n: int) -> Any:
    return layers.fill_constant([1], "int32", n)


def known(x: Any) -> Any:
    """Only the compiled Program knows the shape of ``x``: give it one with the rows of x and y."""
    return layers.reduce_sum(layers.reshape(x, [3, 4, -1]), dim=2)


SCALES = fluid.ParamAttr("scales", fluid.initializer.Constant(1.7))
# Functions of x and y, from -1 to 1 curved, so that what they lead to is not constant.
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "square": lambda x, y: layers.square(x),
    "sqrt": lambda x, y: layers.sqrt(layers.square(x) + 0.5),
    "relu": lambda x, y: cube(layers.relu(x)),
    "leaky_relu": lambda x, y: cube(layers.leaky_relu(x, 0.3)),
    "elu": lambda x, y: layers.elu(x, 0.7),
    "tanh": lambda x, y: layers.tanh(x),
    "sigmoid": lambda x, y: layers.sigmoid(x),
    "exp": lambda x, y: layers.exp(x),
    "elementwise_add": lambda x, y: cube(layers.elementwise_add(x, y)),
    "elementwise_sub": lambda x, y: cube(layers.elementwise_sub(x, y)),
    "elementwise_mul": lambda x, y: cube(layers.elementwise_mul(x, y)),
    "elementwise_div": lambda x, y: layers.elementwise_div(x, layers.square(y) + x * x + 1.0),
    "to columns": lambda x, y: cube(layers.elementwise_mul(x, layers.reduce_sum(y, 0), axis=1)),
    "to rows": lambda x, y: x / (layers.reduce_sum(layers.square(x + y), 1, keep_dim=True) + 1.0),
    "mul": lambda x, y: cube(layers.mul(x, layers.transpose(y * x, [1, 0]))),
    "matmul": lambda x, y: cube(layers.matmul(x, y, transpose_y=True, alpha=0.5)),
    "batches": lambda x, y: layers.square(
        layers.matmul(layers.unsqueeze(x, [0]), layers.unsqueeze(y * x, [0]), transpose_x=True)
    ),
    "mean": lambda x, y: cube(layers.mean(x * y) + 2.0),
    "reduce_sum": lambda x, y: cube(layers.reduce_sum(x * y, 1)),
    "reduce_mean": lambda x, y: cube(layers.reduce_mean(x * y, [0], keep_dim=True)),
    "scale and sum": lambda x, y: cube(layers.sums([layers.scale(x, 0.5, 1.0), y])),
    "reshape": lambda x, y: cube(layers.reshape(x, [2, -1])),
    "transpose": lambda x, y: cube(layers.transpose(x, [1, 0])),
    "squeeze": lambda x, y: cube(layers.squeeze(layers.unsqueeze(x, [1]), [1])),
    "flatten": lambda x, y: cube(layers.flatten(layers.unsqueeze(x, [0]), 2)),
    "slice": lambda x, y: cube(layers.slice(x, [0, 1], [1, 0], [3, 3])),
    "strided_slice": lambda x, y: cube(layers.strided_slice(x, [1], [3], [0], [-2])),
    "expand": lambda x, y: cube(layers.expand(x, [2, 1]) * layers.expand(y, [2, 1])),
    "reshape by values": lambda x, y: known(cube(layers.reshape(x, [number(6), number(2)]))),
    "reshape by a value": lambda x, y: known(
        cube(layers.reshape(x, [6, 2], actual_shape=layers.assign(np.array([2, 6], "int32"))))
    ),
    "expand by values": lambda x, y: known(cube(layers.expand(x, [number(2), 1]))),
    "expand by a value": lambda x, y: known(
        cube(layers.expand(x, layers.assign(np.array([2, 1], "int32"))))
    ),
    "concat": lambda x, y: cube(layers.concat([x, layers.square(x) * y, y], 1)),
    "split": lambda x, y: cube(layers.split(x * y, 2, 1)[1]),
    "cast": lambda x, y: cube(layers.cast(layers.cast(x, "float64"), "float32")),
    "conv2d": lambda x, y: cube(layers.conv2d(image(x), 2, 2, padding=1, bias_attr=False)),
    "strides": lambda x, y: cube(layers.conv2d(image(x), 2, [3, 2], stride=2, bias_attr=False)),
    "conv2d_transpose": lambda x, y: cube(
        layers.conv2d_transpose(image(x), 2, filter_size=3, stride=2, bias_attr=False)
    ),
    "conv3d": lambda x, y: cube(layers.conv3d(volume(x), 2, 2, padding=1, bias_attr=False)),
    "conv3d_transpose": lambda x, y: cube(
        layers.conv3d_transpose(volume(x), 2, filter_size=2, stride=2, bias_attr=False)
    ),
    "instance_norm": lambda x, y: cube(
        layers.instance_norm(image(x, 3), param_attr=SCALES) * image(y, 3)
    ),
    "fc": lambda x, y: layers.tanh(layers.fc(x, 3)),
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_second_derivatives_are_those_of_first_ones(name):
    if name.startswith("conv3d"):
        pytest.importorskip("torch")
    x, y = (layers.data(n, [3, 4], append_batch_size=False) for n in "xy")
    x.stop_gradient = y.stop_gradient = False
    out = FUNCTIONS[name](x, y)
    weights = layers.assign(np.linspace(0.5, 1.5, int(np.prod(out.shape))).astype("float32"))
    first = gradients(out * layers.reshape(weights, list(out.shape)), [x])
    norm = layers.reduce_sum(layers.square(first[0]))
    seconds = [g for g in gradients(norm, [x, y]) if g is not None]
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)

    def run(fetches: list[Any], **moved: np.ndarray) -> list[np.ndarray]:
        feed = {"x": X, "y": Y, **moved}
        used = {
            n: v for n, v in feed.items() if n in fluid.default_main_program().global_block().vars
        }
        return exe.run(feed=used, fetch_list=fetches, scope=scope)

    found = run(seconds)
    for which, base, got in zip("xy", (X, Y), found):
        numeric = np.zeros_like(base, np.float64)
        for place in np.ndindex(base.shape):
            sides = []
            for sign in (1, -1):
                moved = base.copy()
                moved[place] += sign * STEP
                sides.append(float(run([norm], **{which: moved})[0][0]))
            numeric[place] = (sides[0] - sides[1]) / (2 * STEP)
        scale = np.abs(numeric).max()
        np.testing.assert_allclose(
            got, numeric, atol=2e-2 * scale + 1e-3, err_msg=f"{name}, {which}"
        )
        assert scale > 1e-3


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: cube(x) * layers.square(x), [5 * 16, 20 * 8, 60 * 4, 120 * 2]),
        # Of 1 / (x^2 + 1): -2 x / u^2, (6 x^2 - 2) / u^3, 24 x (1 - x^2) / u^4, and
        # 24 (5 x^4 - 10 x^2 + 1) / u^5, where u = x^2 + 1.
        (
            lambda x: 1.0 / (layers.square(x) + 1.0),
            [-4 / 25, 22 / 125, -144 / 625, 24 * 41 / 3125],
        ),
    ],
    ids=["power", "quotient"],
)
def test_fourth_derivatives(function, wanted):
    """Each of them reads gradients of those before, under names of their own."""
    x = layers.data("x", [1], append_batch_size=False)
    x.stop_gradient = False
    found = [function(x)]
    for _ in range(4):
        found += gradients(found[-1], x)
    got = fluid.Executor().run(feed={"x": np.array([2], np.float32)}, fetch_list=found[1:])
    np.testing.assert_allclose([float(v[0]) for v in got], wanted, rtol=1e-5)


def test_parameters_learn_from_a_penalty_on_gradients():
    """A gradient that enters the loss; by central differences of the loss."""
    x = layers.data("x", [3, 4], append_batch_size=False)
    x.stop_gradient = False
    hidden = layers.leaky_relu(layers.fc(x, 5, param_attr="w1", bias_attr="b1"), 0.2)
    score = layers.fc(layers.tanh(hidden), 1, param_attr="w2", bias_attr=False)
    (slope,) = gradients(score, x)
    norms = layers.sqrt(layers.reduce_sum(layers.square(slope), dim=1))
    penalty = layers.mean(layers.square(norms - 1.0)) + layers.mean(score)
    pairs = fluid.optimizer.SGD(0.1).backward(penalty)
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)
    names = [p.name for p, _ in pairs]
    got = exe.run(feed={"x": X}, fetch_list=[g for _, g in pairs], scope=scope)
    for name, gradient in zip(names, got):
        held = scope.find_var(name).get_tensor()
        base = np.array(held)
        place = tuple(d // 2 for d in base.shape)
        sides = []
        for sign in (1, -1):
            moved = base.copy()
            moved[place] += sign * STEP
            held.set(moved, fluid.CPUPlace())
            sides.append(float(exe.run(feed={"x": X}, fetch_list=[penalty], scope=scope)[0][0]))
        held.set(base, fluid.CPUPlace())
        wanted = (sides[0] - sides[1]) / (2 * STEP)
        np.testing.assert_allclose(gradient[place], wanted, atol=5e-3, err_msg=name)
    assert set(names) == {"w1", "b1", "w2"}


def test_gradients_of_scales_and_biases_have_gradients():
    x = layers.data("x", [3, 4], append_batch_size=False)
    x.stop_gradient = False
    images = layers.reshape(x, [1, 1, 3, 4])
    out = cube(layers.instance_norm(images, param_attr=SCALES, bias_attr="biases"))
    block = fluid.default_main_program().global_block()
    both = [block.var(name) for name in ("scales", "biases")]
    firsts = gradients(out, both)
    total = layers.reduce_sum(layers.square(firsts[0])) + layers.square(firsts[1] - 1.0)
    seconds = gradients(total, [x, *both])
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(fluid.default_startup_program(), scope=scope)

    def run(fetches: list[Any], moved: np.ndarray, scale: float = 1.7) -> list[np.ndarray]:
        scope.find_var("scales").get_tensor().set(np.float32([scale]), fluid.CPUPlace())
        return exe.run(feed={"x": moved}, fetch_list=fetches, scope=scope)

    got = run(seconds, X)
    for place in np.ndindex(X.shape):
        step = np.zeros_like(X)
        step[place] = STEP
        sides = [float(run([total], X + sign * step)[0][0]) for sign in (1, -1)]
        assert got[0][place] == pytest.approx((sides[0] - sides[1]) / (2 * STEP), rel=0.02, abs=0.5)
    sides = [float(run([total], X, 1.7 + sign * STEP)[0][0]) for sign in (1, -1)]
    assert got[1][0] == pytest.approx((sides[0] - sides[1]) / (2 * STEP), rel=0.02)


@pytest.mark.parametrize(
    "function", [layers.log, layers.softsign, lambda x: layers.elementwise_max(x, layers.square(x))]
)
def test_second_derivatives_are_refused_by_name(function):
    """Some gradient operators have none of their own: to leave that part out would be wrong."""
    x = layers.data("x", [1], append_batch_size=False)
    x.stop_gradient = False
    (first,) = gradients(function(x), x)
    with pytest.raises(GraphError, match=r"depends on operator '\w+_grad', which has no gradient"):
        gradients(layers.square(first), x)


def test_a_first_gradient_may_be_meant_as_a_constant():
    x = layers.data("x", [1], append_batch_size=False)
    x.stop_gradient = False
    (first,) = gradients(layers.square(x), x)
    first.stop_gradient = True
    (second,) = gradients(first * x, x)
    fed = {"x": np.array([2], np.float32)}
    values = fluid.Executor().run(feed=fed, fetch_list=[first, second])
    assert [float(value) for value in values] == [4.0, 4.0]
