"""Functions keep their digits near 0 and far from it, where shorter formulas cancel or overflow."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.fluid.compat.paddle2 import tensor as paddle
from hpcdist.fluid.compat.paddle2.nn import functional

POINTS = [0.0, 1e-10, 1e-6, 1e-3, 0.1, 0.5, 0.9, 1.5, 3, 6, 10, 20, 30, 50, 80]
POINTS += [-x for x in POINTS[1:]]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x])


L, F = fluid.layers, functional
# The layer, the function, its derivative, and the points at which it is tried.
CURVES: dict[str, tuple[Callable, Callable, Callable, Callable[[float], bool]]] = {
    "sigmoid": (L.sigmoid, sigmoid, lambda x: sigmoid(x) * sigmoid(-x), lambda x: x < 6),
    "logsigmoid": (L.logsigmoid, lambda x: -softplus(-x), lambda x: sigmoid(-x), lambda x: True),
    "softplus": (L.softplus, softplus, sigmoid, lambda x: True),
    "log of sigmoid": (
        lambda x: L.log(L.sigmoid(x)),
        lambda x: -softplus(-x),
        lambda x: sigmoid(-x),
        lambda x: x < 6,
    ),
    "swish": (
        L.swish,
        lambda x: x * sigmoid(x),
        lambda x: sigmoid(x) * (1 + x * sigmoid(-x)),
        lambda x: abs(x + 1.278) > 0.3,  # the derivative is 0 there
    ),
    "erf": (L.erf, erf, lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x), lambda x: abs(x) < 9),
    "elu": (
        L.elu,
        lambda x: np.where(x > 0, x, np.expm1(x)),
        lambda x: np.where(x > 0, 1, np.exp(x)),
        lambda x: x > -9,
    ),
    "log1p": (L.log1p, np.log1p, lambda x: 1 / (1 + x), lambda x: x > -0.95),
    "expm1": (paddle.expm1, np.expm1, np.exp, lambda x: x > -4),
    "sinh": (paddle.sinh, np.sinh, np.cosh, lambda x: True),
    "cosh": (paddle.cosh, np.cosh, np.sinh, lambda x: True),
    "asinh": (paddle.asinh, np.arcsinh, lambda x: 1 / np.sqrt(1 + x * x), lambda x: True),
    "acosh": (paddle.acosh, np.arccosh, lambda x: 1 / np.sqrt(x * x - 1), lambda x: x > 1),
    "atanh": (paddle.atanh, np.arctanh, lambda x: 1 / (1 - x * x), lambda x: abs(x) < 0.95),
    "tan": (paddle.tan, np.tan, lambda x: 1 / np.cos(x) ** 2, lambda x: abs(x) < 1.2),
    "log2": (paddle.log2, np.log2, lambda x: 1 / (x * np.log(2)), lambda x: x > 0),
    "log10": (paddle.log10, np.log10, lambda x: 1 / (x * np.log(10)), lambda x: x > 0),
    "leaky_relu of Paddle 2": (
        F.leaky_relu,
        lambda x: np.where(x < 0, 0.01 * x, x),
        lambda x: np.where(x < 0, 0.01, 1),
        lambda x: True,
    ),
}


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("name", CURVES)
def test_functions_keep_their_digits(name, dtype, bound):
    layer, function, derivative, within = CURVES[name]
    points = np.array([x for x in POINTS if within(x)], dtype)
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = fluid.data("x", [None], dtype)
        x.stop_gradient = False
        y = layer(x)
        fetched = [y, *fluid.gradients(y, x)]
        found = fluid.Executor().run(feed={"x": points}, fetch_list=fetched)
    exact = points.astype(np.float64)
    np.testing.assert_allclose(found[0], function(exact), rtol=bound, atol=0)
    # A derivative by way of the result is no nearer than the result is.
    np.testing.assert_allclose(found[1], derivative(exact), rtol=4 * bound, atol=0)


def test_halves_are_rounded_as_each_dialect_does():
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, 3.0], np.float32)
    x = fluid.layers.assign(halves)
    found = fluid.Executor().run(fetch_list=[fluid.layers.round(x), paddle.round(x)])
    np.testing.assert_array_equal(found[0], [-2, -2, 0, 0, 2, 2, 0, 3])  # Fluid 1.8.5
    np.testing.assert_array_equal(found[1], [-3, -2, -1, 1, 2, 3, 0, 3])  # 2.6.2


def test_remainders_and_losses_keep_what_is_small():
    x = fluid.layers.assign(np.array([[1e-6], [-1e-6], [7.0]], np.float32))
    half = fluid.layers.fill_constant([1], "float32", 0.5)
    click = fluid.layers.assign(np.array([[-1.0], [-1.0], [-1.0]], np.float32))
    rest = fluid.layers.elementwise_mod(x, half)
    loss = fluid.layers.teacher_student_sigmoid_loss(x, click)
    found = fluid.Executor().run(fetch_list=[rest, loss])
    small = np.float32(1e-6)
    np.testing.assert_allclose(found[0].ravel(), [small, 0.5 - small, 0.0], rtol=1e-6)
    exact = np.log1p(np.exp(-np.array([1e-6, -1e-6, 7.0])))
    np.testing.assert_allclose(found[1].ravel(), exact, rtol=1e-6)
