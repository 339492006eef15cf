"""Transforms of what distributions draw, and the distributions of what they give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.compat.paddle2 import creation, declare, tensor
from hpcdist.fluid.compat.paddle2.distribution.distribution import (
    Distribution,
    name_of,
    some,
    sum_last,
)
from hpcdist.fluid.compat.paddle2.nn import functional as F
from hpcdist.fluid.compat.public_names import public
from hpcdist.graph.variable import Variable

t: Any = tensor  # whose functions are declared


class Transform:
    """Base of transforms: subclasses write ``_forward``, ``_inverse``, and a log-determinant.

    That is ``_forward_log_det_jacobian``, or that of the inverse; ``_forward_shape`` and
    ``_inverse_shape`` where shapes change, and ``_ranks`` where an event has dimensions.
    """

    _ranks = (0, 0)  # how many dimensions an event has, before and behind

    def _forward(self, x: Variable) -> Variable:
        raise self._missing("forward")

    def _inverse(self, y: Variable) -> Any:
        raise self._missing("inverse")

    def _forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def _inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def __call__(self, input: Any) -> Any:
        """Transform a Variable, a distribution, or what another transform gives."""
        from hpcdist.fluid.compat.paddle2.distribution.transformed_distribution import (
            TransformedDistribution,
        )

        if isinstance(input, Distribution):
            return TransformedDistribution(input, [self])
        chained = isinstance(input, Transform)
        return ChainTransform([self, input]) if chained else self.forward(input)

    def forward(self, x: Variable) -> Variable:
        """Apply the transform to ``x``."""
        return self._forward(self._checked("forward: x", x, self._ranks[0]))

    def inverse(self, y: Variable) -> Any:
        """Return the value that the transform makes ``y`` of."""
        return self._inverse(self._checked("inverse: y", y, self._ranks[1]))

    def forward_log_det_jacobian(self, x: Variable) -> Variable:
        """Return the logarithm of the size of the determinant at ``x``."""
        x = self._checked("forward_log_det_jacobian: x", x, self._ranks[0])
        if hasattr(self, "_forward_log_det_jacobian"):
            return self._forward_log_det_jacobian(x)
        if hasattr(self, "_inverse_log_det_jacobian"):
            return -self._inverse_log_det_jacobian(self.forward(x))
        raise self._missing("forward_log_det_jacobian")

    def inverse_log_det_jacobian(self, y: Variable) -> Any:
        """Return that of the inverse at ``y``."""
        y = self._checked("inverse_log_det_jacobian: y", y, self._ranks[1])
        if hasattr(self, "_inverse_log_det_jacobian"):
            return self._inverse_log_det_jacobian(y)
        if hasattr(self, "_forward_log_det_jacobian"):
            return -self._forward_log_det_jacobian(self.inverse(y))
        raise self._missing("inverse_log_det_jacobian")

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that ``forward`` gives."""
        return self._forward_shape(self._shape("forward_shape", shape, self._ranks[0]))

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that ``inverse`` gives."""
        return self._inverse_shape(self._shape("inverse_shape", shape, self._ranks[1]))

    def _checked(self, of: str, value: Any, rank: int) -> Variable:
        x = declare.operand(f"{name_of(self)}.{of}", value)
        self._shape(of, x.shape, rank)
        return x

    def _shape(self, of: str, shape: Any, rank: int) -> tuple[int, ...]:
        where = f"{name_of(self)}.{of}"
        found = tuple(declare.KINDS["ints"](f"{where}: shape", shape))
        if len(found) < rank:
            raise GraphError(f"{where}: an event has {rank} dimensions, got the shape {found}")
        return found

    def _missing(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{name_of(self)} has no {what}")


def transforms_of(of: object, transforms: Any) -> list[Transform]:
    if not isinstance(transforms, (list, tuple)) or not all(
        isinstance(one, Transform) for one in transforms
    ):
        raise GraphTypeError(
            f"{name_of(of)}: transforms: expected a list of transforms, got {transforms!r:.80}"
        )
    return list(transforms)


class AbsTransform(Transform):
    """The size of x; each y above 0 has two inverses."""

    def _forward(self, x: Variable) -> Variable:
        return t.abs(x)

    def _inverse(self, y: Variable) -> tuple[Variable, Variable]:
        return -y, y

    def _inverse_log_det_jacobian(self, y: Variable) -> tuple[Variable, Variable]:
        zero = creation.zeros([], y.dtype)
        return zero, zero

    def forward_log_det_jacobian(self, x: Variable) -> Variable:
        """Refuse: two values have one image."""
        raise self._missing("forward_log_det_jacobian: two values have one image")


class AffineTransform(Transform):
    """Scale and move: loc + scale x."""

    def __init__(self, loc: Variable, scale: Variable) -> None:
        self.loc = declare.operand(f"{name_of(self)}: loc", loc)
        self.scale = declare.operand(f"{name_of(self)}: scale", scale)

    def _forward(self, x: Variable) -> Variable:
        return self.loc + self.scale * x

    def _inverse(self, y: Variable) -> Variable:
        return (y - self.loc) / self.scale

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        return t.log(t.abs(self.scale))

    def _forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        both = t.broadcast_shape(self.loc.shape, self.scale.shape)
        return tuple(t.broadcast_shape(shape, both))

    _inverse_shape = _forward_shape


class ExpTransform(Transform):
    """The exponential."""

    def _forward(self, x: Variable) -> Variable:
        return t.exp(x)

    def _inverse(self, y: Variable) -> Variable:
        return t.log(y)

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        return x


class PowerTransform(Transform):
    """Powers of what is above 0."""

    def __init__(self, power: Variable) -> None:
        self.power = declare.operand(f"{name_of(self)}: power", power)

    def _forward(self, x: Variable) -> Variable:
        return t.pow(x, self.power)

    def _inverse(self, y: Variable) -> Variable:
        return t.pow(y, 1 / self.power)

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        return t.log(t.abs(self.power * t.pow(x, self.power - 1)))

    def _forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(t.broadcast_shape(shape, self.power.shape))

    _inverse_shape = _forward_shape


class SigmoidTransform(Transform):
    """The logistic function."""

    def _forward(self, x: Variable) -> Variable:
        return F.sigmoid(x)

    def _inverse(self, y: Variable) -> Variable:
        return t.log(y) - t.log1p(-y)

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        return -F.softplus(-x) - F.softplus(x)


class TanhTransform(Transform):
    """The hyperbolic tangent."""

    def _forward(self, x: Variable) -> Variable:
        return t.tanh(x)

    def _inverse(self, y: Variable) -> Variable:
        return t.atanh(y)

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        return (math.log(2.0) - x - F.softplus(x * -2.0)) * 2.0


class SoftmaxTransform(Transform):
    """Exponentials, divided by their sum: not one to one, so it has no determinant."""

    _ranks = (1, 1)

    def _forward(self, x: Variable) -> Variable:
        return F.softmax(x)

    def _inverse(self, y: Variable) -> Variable:
        return t.log(y)


def _part(x: Variable, end: int) -> Variable:
    return t.slice(x, [len(x.shape) - 1], [0], [end])


class StickBreakingTransform(Transform):
    """Shares [..., n + 1] by breaking n pieces off a stick, of numbers [..., n]."""

    _ranks = (1, 1)

    def _offset(self, count: int) -> Variable:
        if count < 1:
            raise GraphError(f"{name_of(self)}: the last extent must be known and 1 at least")
        return creation.assign(np.log(np.arange(count, 0, -1, dtype="float32")))

    def _forward(self, x: Variable) -> Variable:
        x = x - self._offset(x.shape[-1])
        broken, left = F.sigmoid(x), t.exp(t.cumsum(F.log_sigmoid(-x), -1))
        one = _part(t.ones_like(broken), 1)
        return t.concat([broken, one], -1) * t.concat([one, left], -1)

    def _inverse(self, y: Variable) -> Variable:
        shares = _part(y, -1)
        left = 1 - t.cumsum(shares, -1)
        return t.log(shares) - t.log(left) + self._offset(shares.shape[-1])

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        shares = t.log(_part(self._forward(x), -1))
        x = x - self._offset(x.shape[-1])
        return t.sum(F.log_sigmoid(x) - x + shares, -1)

    def _forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + 1)

    def _inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] - 1)


class ReshapeTransform(Transform):
    """Events in another shape."""

    def __init__(self, in_event_shape: Sequence[int], out_event_shape: Sequence[int]) -> None:
        ints = declare.KINDS["ints"]
        self.in_event_shape = tuple(ints(f"{name_of(self)}: in_event_shape", in_event_shape))
        self.out_event_shape = tuple(ints(f"{name_of(self)}: out_event_shape", out_event_shape))
        if math.prod(self.in_event_shape) != math.prod(self.out_event_shape):
            raise GraphError(
                f"{name_of(self)}: expected shapes of as many elements, got {self.in_event_shape} "
                f"and {self.out_event_shape}"
            )
        self._ranks = len(self.in_event_shape), len(self.out_event_shape)

    def _forward(self, x: Variable) -> Variable:
        return t.reshape(x, list(self._forward_shape(x.shape)))

    def _inverse(self, y: Variable) -> Variable:
        return t.reshape(y, list(self._inverse_shape(y.shape)))

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        return t.zeros_like(sum_last(x, self._ranks[0]))

    def _forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._replaced(shape, self.in_event_shape, self.out_event_shape)

    def _inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._replaced(shape, self.out_event_shape, self.in_event_shape)

    def _replaced(
        self, shape: tuple[int, ...], old: tuple[int, ...], new: tuple[int, ...]
    ) -> tuple[int, ...]:
        kept = len(shape) - len(old)
        if tuple(shape[kept:]) != old:
            raise GraphError(f"{name_of(self)}: expected events {old}, got the shape {shape}")
        return (*shape[:kept], *new)


class ChainTransform(Transform):
    """One transform after another, the first one first."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = transforms_of(self, transforms)
        if not self.transforms:
            raise GraphError(f"{name_of(self)}: transforms: expected one at least")
        need, given = self.transforms[-1]._ranks[1], self.transforms[0]._ranks[0]
        for before, behind in (one._ranks for one in reversed(self.transforms)):
            need = max(need - (behind - before), before)
        for before, behind in (one._ranks for one in self.transforms):
            given = max(given + behind - before, behind)
        self._ranks = need, given

    def _forward(self, x: Variable) -> Variable:
        for one in self.transforms:
            x = one.forward(x)
        return x

    def _inverse(self, y: Variable) -> Any:
        for one in reversed(self.transforms):
            y = one.inverse(y)
        return y

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        rank, parts = self._ranks[0], []
        for one in self.transforms:
            parts.append(sum_last(one.forward_log_det_jacobian(x), rank - one._ranks[0]))
            x, rank = one.forward(x), rank + one._ranks[1] - one._ranks[0]
        return sum(parts[1:], parts[0])

    def _forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        for one in self.transforms:
            shape = one.forward_shape(shape)
        return shape

    def _inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        for one in reversed(self.transforms):
            shape = one.inverse_shape(shape)
        return shape


class IndependentTransform(Transform):
    """A transform whose last dimensions of a batch are those of an event."""

    def __init__(self, base: Transform, reinterpreted_batch_rank: int) -> None:
        self._base = transforms_of(self, [base])[0]
        self._count = some(f"{name_of(self)}: reinterpreted_batch_rank", reinterpreted_batch_rank)
        before, behind = self._base._ranks
        self._ranks = before + self._count, behind + self._count

    def _forward(self, x: Variable) -> Variable:
        return self._base.forward(x)

    def _inverse(self, y: Variable) -> Any:
        return self._base.inverse(y)

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        return sum_last(self._base.forward_log_det_jacobian(x), self._count)

    def _forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._base.forward_shape(shape)

    def _inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self._base.inverse_shape(shape)


class StackTransform(Transform):
    """One transform for each place along ``axis``."""

    def __init__(self, transforms: Sequence[Transform], axis: int = 0) -> None:
        self.transforms = transforms_of(self, transforms)
        self.axis = declare.KINDS["int"](f"{name_of(self)}: axis", axis)

    def _each(self, method: str, value: Variable) -> Variable:
        axis = declare.axis_of(f"{name_of(self)}: axis", self.axis, len(value.shape))
        if value.shape[axis] != len(self.transforms):
            raise GraphError(
                f"{name_of(self)}: expected {len(self.transforms)} places along dimension {axis}, "
                f"one for each transform, got the shape {tuple(value.shape)}"
            )
        parts = zip(self.transforms, t.unstack(value, axis))
        return t.stack([getattr(one, method)(part) for one, part in parts], axis)

    def _forward(self, x: Variable) -> Variable:
        return self._each("forward", x)

    def _inverse(self, y: Variable) -> Variable:
        return self._each("inverse", y)

    def _forward_log_det_jacobian(self, x: Variable) -> Variable:
        return self._each("forward_log_det_jacobian", x)


__all__ = public(globals())
