"""What distributions share: parameters, and numbers drawn in their shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import creation, declare, tensor
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.variable import Variable

MODULE = "paddle.distribution"


class Distribution:
    """Base of distributions; samples are Variables of [*shape, *batch_shape, *event_shape].

    They are drawn anew in every step; gradients flow to the parameters where they are composed of
    these and of noise, as in 2.6.2's static programs.
    """

    def __init__(self, batch_shape: Any = (), event_shape: Any = ()) -> None:
        self.batch_shape, self.event_shape = tuple(batch_shape), tuple(event_shape)

    @property
    def mean(self) -> Any:
        """Return the mean."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def variance(self) -> Any:
        """Return the variance."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Any:
        """Return the standard deviation."""
        return layers.sqrt(self.variance)

    def sample(self, shape: Any = ()) -> Variable:
        """Draw values."""
        return self.rsample(shape)

    def rsample(self, shape: Any = ()) -> Variable:
        """Draw values through which gradients flow to the parameters."""
        raise NotImplementedError(f"{type(self).__name__} cannot be drawn from")

    def entropy(self) -> Variable:
        """Return the entropy."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at ``value``."""
        raise NotImplementedError(f"{type(self).__name__} has no density")

    def prob(self, value: Variable) -> Variable:
        """Return the density at ``value``."""
        return layers.exp(self.log_prob(value))

    def probs(self, value: Variable) -> Variable:
        """Return the density at ``value``."""
        return self.prob(value)

    def kl_divergence(self, other: Distribution) -> Variable:
        """Return the divergence of this distribution from one of its kind."""
        if type(other) is not type(self):
            raise GraphTypeError(
                f"{MODULE}.{type(self).__name__}.kl_divergence: expected a {type(self).__name__}, "
                f"got {other!r:.80}; {MODULE}.register_kl tells it of two kinds"
            )
        return self._divergence(other)

    def _divergence(self, other: Any) -> Variable:
        raise GraphError(f"{MODULE}: the divergence of two {type(self).__name__} is not there")


class ExponentialFamily(Distribution):
    """Base of distributions whose density is the exponential of a product with parameters."""


def parameters(of: str, **given: Any) -> list[Variable]:
    """Return parameters as Variables of one shape: all are Variables, or all numbers or arrays."""
    made: list[Any] = []
    for name, value in given.items():
        if isinstance(value, Variable):
            if not is_float(value.dtype):
                raise GraphTypeError(
                    f"{MODULE}.{of}: {name}: expected floats, got {value.name!r} of {value.dtype}: "
                    "paddle.cast makes them"
                )
            made.append(value)
            continue
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind not in "iuf":
            raise GraphTypeError(
                f"{MODULE}.{of}: {name}: expected a number, an array or a Variable, got "
                f"{value!r:.80}"
            )
        wide = isinstance(value, np.ndarray) and array.dtype == np.float64
        made.append(array if wide else array.astype("float32"))
    if len({isinstance(one, Variable) for one in made}) > 1:
        raise GraphTypeError(
            f"{MODULE}.{of}: {' and '.join(given)}: expected Variables only, or numbers only"
        )
    if isinstance(made[0], Variable):
        return made
    try:
        alike = np.broadcast_arrays(*made)
    except ValueError:
        shapes = " and ".join(str(one.shape) for one in made)
        raise GraphError(f"{MODULE}.{of}: shapes {shapes} do not broadcast") from None
    return [creation.assign(np.array(one)) for one in alike]


def name_of(of: object) -> str:
    """Return the name that scripts have for a class of this module."""
    return f"{MODULE}.{type(of).__name__}"


def sum_last(value: Variable, count: int) -> Variable:
    """Return sums over the last ``count`` dimensions."""
    if count < 1:
        return value
    return tensor.sum(value, list(range(-count, 0)))


def some(where: str, count: Any) -> int:
    """Return a number of dimensions, 1 at least."""
    found: int = declare.KINDS["int"](where, count)
    if found < 1:
        raise GraphError(f"{where}: expected 1 at least, got {count!r}")
    return found


def broadcast(of: str, **given: Any) -> list[Variable]:
    """Return parameters, of which numbers are made Variables, in their common shape."""
    made = [v if isinstance(v, Variable) else parameters(of, **{k: v})[0] for k, v in given.items()]
    if len({one.shape for one in made}) > 1:
        made = tensor.broadcast_tensors(made)
    return made


def values(of: str, value: Any, like: Variable) -> Variable:
    """Return the operand of a density in the element type of the parameters."""
    if not isinstance(value, Variable):
        raise GraphTypeError(f"{MODULE}.{of}: value: expected a Variable, got {value!r:.80}")
    return value if value.dtype == like.dtype else tensor.cast(value, like.dtype)


def noise(
    of: str, draw: Callable[..., Variable], like: Variable, shape: Any, **facts: Any
) -> Variable:
    """Draw [*shape, *shape of ``like``] by ``draw`` of ``creation``, "uniform" or "normal".

    Where the first extent of ``like`` is the batch's, each of its rows has numbers of its own.
    """
    front = declare.KINDS["ints"](f"{MODULE}.{of}.sample: shape", shape)
    if -1 not in like.shape:
        wide = draw([*front, *like.shape] or [1], **facts)
        return wide if front or like.shape else tensor.reshape(wide, [])
    if -1 in like.shape[1:]:
        raise GraphError(
            f"{MODULE}.{of}.sample: only the first extent of parameters may be open, got "
            f"{like.shape}"
        )
    ones = layers.fill_constant_batch_size_like(
        like, [-1, *front, *like.shape[1:]], like.dtype, 0.0
    )
    by_rows = _LIKE[draw](ones, list(ones.shape), **facts)
    rank, count = len(by_rows.shape), len(front)
    return layers.transpose(by_rows, [*range(1, count + 1), 0, *range(count + 1, rank)])


def uniform(shape: Any, low: float, high: float, dtype: str) -> Variable:
    """Draw from [low, high)."""
    return layers.uniform_random(shape, dtype, low, high)


def normal(shape: Any, dtype: str) -> Variable:
    """Draw from the normal distribution."""
    return layers.gaussian_random(shape, dtype=dtype)


def _uniform_like(like: Variable, shape: Any, low: float, high: float, dtype: str) -> Variable:
    return layers.uniform_random_batch_size_like(like, shape, dtype, min=low, max=high)


def _normal_like(like: Variable, shape: Any, dtype: str) -> Variable:
    return layers.gaussian_random_batch_size_like(like, shape, dtype=dtype)


_LIKE: dict[Any, Callable[..., Variable]] = {uniform: _uniform_like, normal: _normal_like}
__all__ = ["Distribution", "ExponentialFamily"]
