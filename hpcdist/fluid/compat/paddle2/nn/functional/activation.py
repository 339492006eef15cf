"""Activations."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import composed, creation, declare, reductions
from hpcdist.fluid.compat.paddle2.kinds import Positive
from hpcdist.fluid.layers.helper import append
from hpcdist.graph.variable import Variable

_MODULE = "paddle.nn.functional"

DECLARED = declare.functions(_MODULE, "activations")
globals().update(DECLARED)


def softmax(x: Variable, axis: int = -1, dtype: Any = None, name: str | None = None) -> Variable:
    """Return exp(x) over its sum along ``axis``, computed in ``dtype`` if that is given."""
    if dtype is not None:
        x = composed.cast(x, dtype)
    return append("softmax", {"X": x}, name, axis=axis)


def log_softmax(
    x: Variable, axis: int = -1, dtype: Any = None, name: str | None = None
) -> Variable:
    """Return the logarithm of the softmax along ``axis``, by way of the maximum."""
    if dtype is not None:
        x = composed.cast(x, dtype)
    return x - composed.logsumexp(x, axis, True)


def softplus(
    x: Variable, beta: Positive = 1.0, threshold: float = 20.0, name: str | None = None
) -> Variable:
    """Return log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    if threshold != 20.0:
        raise GraphError(f"{_MODULE}.softplus: threshold is 20 here, got {threshold}")
    scaled = x if beta == 1.0 else x * beta
    out = append("softplus", {"X": scaled}, name)
    return out if beta == 1.0 else out / beta


def leaky_relu(x: Variable, negative_slope: float = 0.01, name: str | None = None) -> Variable:
    """Return x from 0 on, x times the slope below; at 0 the gradient is 1, and not the slope."""
    inputs = {"Condition": x >= 0.0, "X": x, "Y": x * negative_slope}
    return append("where", inputs, name, dtype=x.dtype)


def celu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """Return max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    return layers.elu(x / alpha, 1.0) * alpha


def prelu(
    x: Variable, weight: Variable, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Return x where it is above 0, else weight x; one weight, or one for each channel."""
    if weight.shape == (1,):
        alpha = weight
    else:
        channel = 1 if data_format.startswith("NC") else len(x.shape) - 1
        alpha = layers.reshape(weight, [-1] + [1] * (len(x.shape) - 1 - channel))
    return layers.relu(x) - alpha * layers.relu(layers.scale(x, -1.0))


def glu(x: Variable, axis: int = -1, name: str | None = None) -> Variable:
    """Return the first half along ``axis`` times the sigmoid of the second."""
    first, second = composed.split(x, 2, axis)
    return first * layers.sigmoid(second)


def gumbel_softmax(
    x: Variable,
    temperature: float = 1.0,
    hard: bool = False,
    axis: int = -1,
    name: str | None = None,
) -> Variable:
    """Draw from the softmax with Gumbel noise; hard: 1 at the greatest, gradients as if soft."""
    if not temperature > 0:
        raise GraphError(
            f"{_MODULE}.gumbel_softmax: temperature must be above 0, got {temperature}"
        )
    drawn = layers.uniform_random_batch_size_like(x, list(x.shape), x.dtype, min=1e-20, max=1.0)
    noise = layers.scale(layers.log(layers.scale(layers.log(drawn), -1.0)), -1.0)
    soft = softmax((x + noise) / temperature, axis)
    if not hard:
        return soft
    greatest = layers.cast(soft >= reductions.max(soft, axis, True), x.dtype)  # type: ignore[attr-defined]
    first = layers.cast(composed.cumsum(greatest, axis) <= 1.0, x.dtype)  # of equal ones
    chosen = greatest * first
    chosen.stop_gradient = True
    still = creation.assign(soft)
    still.stop_gradient = True
    return chosen - still + soft


def rrelu(
    x: Variable,
    lower: float = 1.0 / 8.0,
    upper: float = 1.0 / 3.0,
    training: bool = True,
    name: str | None = None,
) -> Variable:
    """Return x where it is 0 or more, else x times a number drawn from [lower, upper].

    Without ``training`` the number is their mean.
    """
    if not 0.0 <= lower <= upper <= 1.0:
        raise GraphError(
            f"{_MODULE}.rrelu: expected 0 <= lower <= upper <= 1, got {lower} and {upper}"
        )
    drawn = layers.uniform_random_batch_size_like(x, list(x.shape), x.dtype, min=0.0, max=1.0)
    inputs, test = {"X": x, "Chance": drawn}, not training
    return append("drawn_leaky_relu", inputs, name, lower=lower, upper=upper, is_test=test)


__all__ = declare.offered(_MODULE, globals(), DECLARED)
