"""Distributions made of others: transformed, or with dimensions of a batch as an event's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.compat.paddle2.distribution.distribution import (
    Distribution,
    name_of,
    some,
    sum_last,
)
from hpcdist.fluid.compat.paddle2.distribution.transform import (
    ChainTransform,
    Transform,
    transforms_of,
)
from hpcdist.graph.variable import Variable


def _base(of: object, base: Any) -> Distribution:
    if not isinstance(base, Distribution):
        raise GraphTypeError(f"{name_of(of)}: base: expected a distribution, got {base!r:.80}")
    return base


class Independent(Distribution):
    """A distribution whose last dimensions of a batch are those of an event."""

    def __init__(self, base: Distribution, reinterpreted_batch_rank: int) -> None:
        self._base = _base(self, base)
        where = f"{name_of(self)}: reinterpreted_batch_rank"
        self._count = some(where, reinterpreted_batch_rank)
        kept = len(base.batch_shape) - self._count
        if kept < 0:
            raise GraphError(
                f"{where}: expected at most {len(base.batch_shape)}, the dimensions of its batch, "
                f"got {reinterpreted_batch_rank!r}"
            )
        shape = (*base.batch_shape, *base.event_shape)
        super().__init__(shape[:kept], shape[kept:])

    @property
    def mean(self) -> Any:
        """Return the mean."""
        return self._base.mean

    @property
    def variance(self) -> Any:
        """Return the variance."""
        return self._base.variance

    def rsample(self, shape: Any = ()) -> Variable:
        """Draw values of the base."""
        return self._base.rsample(shape)

    def entropy(self) -> Variable:
        """Return the sum of the entropies of an event's parts."""
        return sum_last(self._base.entropy(), self._count)

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density of whole events."""
        return sum_last(self._base.log_prob(value), self._count)


class TransformedDistribution(Distribution):
    """What transforms, the first one first, make of what a distribution draws."""

    def __init__(self, base: Distribution, transforms: Sequence[Transform]) -> None:
        self._base, self._transforms = _base(self, base), transforms_of(self, transforms)
        shape = (*base.batch_shape, *base.event_shape)
        before, behind = ChainTransform(self._transforms)._ranks if self._transforms else (0, 0)
        if len(shape) < before:
            raise GraphError(
                f"{name_of(self)}: transforms take events of {before} dimensions, base gives "
                f"the shape {shape}"
            )
        if before > len(base.event_shape):
            self._base = base = Independent(base, before - len(base.event_shape))
        for one in self._transforms:
            shape = one.forward_shape(shape)
        kept = len(shape) - behind - (len(base.event_shape) - before)
        super().__init__(shape[:kept], shape[kept:])

    def rsample(self, shape: Any = ()) -> Variable:
        """Draw values of the base, transformed."""
        x = self._base.rsample(shape)
        for one in self._transforms:
            x = one.forward(x)
        return x

    def log_prob(self, value: Variable) -> Variable:
        """Return the logarithm of the density at ``value``."""
        rank, parts = len(self.event_shape), []
        for one in reversed(self._transforms):
            x = one.inverse(value)
            rank += one._ranks[0] - one._ranks[1]
            parts.append(sum_last(one.forward_log_det_jacobian(x), rank - one._ranks[0]))
            value = x
        density = sum_last(self._base.log_prob(value), rank - len(self._base.event_shape))
        for part in parts:
            density = density - part
        return density


__all__ = ["Independent", "TransformedDistribution"]
