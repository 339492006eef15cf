"""Probability distributions, composed of other layers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.activation import exp, log
from hpcdist.fluid.layers.control_flow import less_than
from hpcdist.fluid.layers.math import (
    elementwise_add,
    elementwise_mul,
    elementwise_pow,
    matmul,
    reduce_max,
    reduce_prod,
    reduce_sum,
)
from hpcdist.fluid.layers.random import (
    gaussian_random,
    gaussian_random_batch_size_like,
    uniform_random,
    uniform_random_batch_size_like,
)
from hpcdist.fluid.layers.tensor import assign, cast, reshape
from hpcdist.graph.variable import Variable

__all__ = [
    "Categorical",
    "MultivariateNormalDiag",
    "Normal",
    "Uniform",
]


def _parameters(*values: Any) -> list[Variable]:
    """Return Variables of one shape: all are Variables, or all are numbers."""
    if all(isinstance(v, Variable) for v in values):
        return list(values)
    if any(isinstance(v, Variable) for v in values):
        raise GraphError("if one argument is a Variable, all arguments should be Variables")
    arrays = [np.atleast_1d(np.asarray(v, np.float32)) for v in values]
    return [assign(np.ascontiguousarray(v)) for v in np.broadcast_arrays(*arrays)]


def _same_kind(mine_: Any, other: Any) -> None:
    if not isinstance(other, type(mine_)):
        raise GraphTypeError(f"kl_divergence: expected a {type(mine_).__name__}, got {other!r}")


class Distribution:
    """What distributions share."""

    def sample(self, shape: list[int], seed: int = 0) -> Variable:
        """Draw values: ``shape`` is put before that of the parameters; ``seed`` 0: unseeded."""
        raise NotImplementedError

    def entropy(self) -> Variable:
        """Return the entropy.

        Has the shape of the parameters, without the classes of a `Categorical`.
        """
        raise NotImplementedError

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at ``value``.

        value: float32, broadcast to the shape of the parameters.
        """
        raise NotImplementedError

    def kl_divergence(self, other: Any) -> Variable:
        """Return the divergence from another distribution of the kind.

        GraphError if ``other`` is of another class. Has the shape of the parameters.
        """
        raise NotImplementedError


def _drawn(
    draw: Any, draw_like: Any, shape: list[int], parameters: list[Variable], numbers: bool
) -> tuple[Variable, Any]:
    """Draw for a shape before that of the parameters; return also what gives the final shape.

    Parameters of a batch, whose rows only the step knows, are drawn for with ``draw_like``.
    """
    like = max(parameters, key=lambda one: (len(one.shape), -1 in one.shape))
    rows, *others = like.shape
    if -1 in others:
        raise GraphError(f"sample: of parameters of {like.shape} only the first extent may be -1")
    if rows == -1:
        drawn = draw_like(like, [*shape, 1, *others], output_dim_idx=len(shape))
    else:
        drawn = draw([*shape, *like.shape])
    return drawn, (lambda drawn_flat: reshape(drawn_flat, shape)) if numbers else (
        lambda drawn_flat: drawn_flat
    )


def _moved(drawn: Variable, scale: Variable, start: Variable) -> Variable:
    """Return drawn values in the range of parameters, which are aligned with their last extents."""
    return elementwise_add(elementwise_mul(drawn, scale), start)


class Uniform(Distribution):
    """Every number of [low, high) alike; ``low``, ``high``: numbers, arrays or Variables."""

    def __init__(self, low: Any, high: Any) -> None:
        self._numbers = isinstance(low, float) and isinstance(high, float)
        self.low, self.high = _parameters(low, high)

    def sample(self, shape: list[int], seed: int = 0) -> Variable:
        """Draw values.

        Returns float32 [*shape, *shape of the parameters].
        """

        of: dict[str, Any] = {"min": 0.0, "max": 1.0, "seed": seed}
        draws = partial(uniform_random, **of), partial(uniform_random_batch_size_like, **of)
        drawn, shaped = _drawn(*draws, shape, [self.low, self.high], self._numbers)
        return shaped(_moved(drawn, self.high - self.low, self.low))

    def log_prob(self, value: Variable) -> Variable:
        """Return -log(high - low) between both, else -inf."""
        above, below = (
            cast(less_than(a, b), value.dtype) for a, b in ((self.low, value), (value, self.high))
        )
        return log(above * below) - log(self.high - self.low)

    def entropy(self) -> Variable:
        """Return log(high - low)."""
        return log(self.high - self.low)


class Normal(Distribution):
    """Normal numbers of mean ``loc`` and deviation ``scale``."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self._numbers = isinstance(loc, float) and isinstance(scale, float)
        self.loc, self.scale = _parameters(loc, scale)

    def sample(self, shape: list[int], seed: int = 0) -> Variable:
        """Draw values.

        Returns float32 [*shape, *shape of the parameters].
        """

        of: dict[str, Any] = {"seed": seed}
        draws = partial(gaussian_random, **of), partial(gaussian_random_batch_size_like, **of)
        drawn, shaped = _drawn(*draws, shape, [self.loc, self.scale], self._numbers)
        return shaped(_moved(drawn, self.scale, self.loc))

    def entropy(self) -> Variable:
        """Return (1 + log(2 pi)) / 2 + log(scale)."""
        return log(self.scale) + (0.5 + 0.5 * math.log(2 * math.pi))

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density."""
        off = value - self.loc
        quadratic = (off * off) / (self.scale * self.scale * 2.0)
        return -1.0 * quadratic - log(self.scale) - math.log(math.sqrt(2.0 * math.pi))

    def kl_divergence(self, other: Any) -> Variable:
        """Return the divergence from another normal distribution."""
        _same_kind(self, other)
        ratio = self.scale / other.scale
        ratio = ratio * ratio
        off = (self.loc - other.loc) / other.scale
        return (ratio + off * off - 1.0 - log(ratio)) * 0.5


class Categorical(Distribution):
    """One of several classes, by logarithms of their weights."""

    def __init__(self, logits: Any) -> None:
        (self.logits,) = _parameters(logits)

    def _parts(self) -> tuple[Variable, Variable, Variable]:
        """Return logits below 0, their exponentials, and the sum of these."""
        logits = self.logits - reduce_max(self.logits, dim=-1, keep_dim=True)
        weights = exp(logits)
        return logits, weights, reduce_sum(weights, dim=-1, keep_dim=True)

    def kl_divergence(self, other: Any) -> Variable:
        """Return the divergence from another distribution over the classes."""
        _same_kind(self, other)
        (logits, weights, z), (other_logits, _, other_z) = self._parts(), other._parts()
        gap = logits - log(z) - other_logits + log(other_z)
        return reduce_sum(weights / z * gap, dim=-1, keep_dim=True)

    def entropy(self) -> Variable:
        """Return the entropy of each row."""
        logits, weights, z = self._parts()
        return reduce_sum(weights / z * (logits - log(z)), dim=-1, keep_dim=True) * -1.0


class MultivariateNormalDiag(Distribution):
    """Normal vectors of mean ``loc`` and a diagonal matrix ``scale`` of variances."""

    def __init__(self, loc: Any, scale: Any) -> None:
        if all(isinstance(v, Variable) for v in (loc, scale)):
            self.loc, self.scale = loc, scale
        else:
            self.loc, self.scale = (_parameters(v)[0] for v in (loc, scale))

    def _diagonal(self) -> Variable:
        return assign(np.eye(self.scale.shape[0], dtype=np.float32))

    def _determinant(self) -> Variable:
        ones = assign(np.ones(self.scale.shape, np.float32))
        return reduce_prod(self.scale + ones - self._diagonal())

    def _inverse(self) -> Variable:
        ones = assign(np.ones(self.scale.shape, np.float32))
        return elementwise_pow(self.scale, ones - self._diagonal() * 2.0)

    def entropy(self) -> Variable:
        """Return the entropy, of shape [1]."""
        size = self.scale.shape[0] * (1.0 + math.log(2 * math.pi))
        return (log(self._determinant()) + size) * 0.5

    def kl_divergence(self, other: Any) -> Variable:
        """Return the divergence from another distribution of the kind."""
        _same_kind(self, other)
        inverse, off = other._inverse(), other.loc - self.loc
        spread = reduce_sum(inverse * self.scale)
        quadratic = matmul(matmul(off, inverse), off)
        sizes = log(other._determinant()) - log(self._determinant())
        return (spread + quadratic - float(self.scale.shape[0]) + sizes) * 0.5
