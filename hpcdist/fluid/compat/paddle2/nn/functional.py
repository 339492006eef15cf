"""``paddle.nn.functional``: layers without parameters."""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.layers import (
    relu,
    sigmoid,
    softmax_with_cross_entropy,
    square_error_cost,
    tanh,
)
from hpcdist.graph.variable import Variable

__all__ = [
    "cross_entropy",
    "dropout",
    "mse_loss",
    "relu",
    "sigmoid",
    "softmax",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "tanh",
]


def softmax(x: Variable, axis: int = -1, name: str | None = None) -> Variable:
    """Return exp(x) over its sum along ``axis``."""
    return layers.softmax(x, axis=axis, name=name)


def dropout(
    x: Variable, p: float = 0.5, training: bool = True, mode: str = "upscale_in_train"
) -> Variable:
    """Set elements to 0 with probability ``p``; by default the others become x / (1 - p)."""
    return layers.dropout(x, p, is_test=not training, dropout_implementation=mode)


def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, reduction: str = "mean"
) -> Variable:
    """Return the cross entropy of softmax(input): ``input`` are scores, as in Paddle 2.0."""
    losses = layers.softmax_with_cross_entropy(input, label, soft_label=soft_label)
    assert isinstance(losses, Variable)
    return _reduced(losses, reduction)


def mse_loss(input: Variable, label: Variable, reduction: str = "mean") -> Variable:
    """Return the mean of (input - label)^2."""
    return _reduced(square_error_cost(input, label), reduction)


def _reduced(losses: Variable, reduction: str) -> Variable:
    if reduction == "mean":
        return layers.mean(losses)
    if reduction == "sum":
        return layers.reduce_sum(losses)
    if reduction != "none":
        raise GraphError(f"reduction: expected 'mean', 'sum' or 'none', got {reduction!r}")
    return losses
