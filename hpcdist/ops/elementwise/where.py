"""Elements of one value or of another, as a condition says."""

from __future__ import annotations

from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_element
from hpcdist.ops.common import define_with_grad, fits, in_sequence
from hpcdist.ops.types import ArrayModule, Call


def _infer(condition: Meta, x: Meta, y: Meta) -> Meta:
    if condition.dtype != "bool" or x.dtype != y.dtype:
        raise GraphError(
            f"where: expected a bool condition and values of one element type, got "
            f"{condition.dtype}, {x.dtype} and {y.dtype}"
        )
    if not (fits(x.shape, condition.shape) and fits(y.shape, condition.shape)):
        raise GraphError(
            f"where: condition, x and y must have one shape, got {condition.shape}, {x.shape} and "
            f"{y.shape}"
        )
    return Meta(x.shape, x.dtype)


def _bind(xp: ArrayModule, condition, x, y, out) -> Call:
    return in_sequence(partial(xp.copyto, out, y), partial(xp.copyto, out, x, where=condition))


def _grad(xp: ArrayModule, condition, dout, dx, dy) -> None:
    """dx = dout where the condition holds, dy = dout where it does not; 0 elsewhere."""
    if dx is not None:
        xp.multiply(dout, condition, out=dx)
    if dy is not None:
        xp.multiply(dout, ~condition, out=dy)


define_with_grad(
    "where",
    "Condition, X, Y -> Out",
    "Condition, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=by_element(),
    infer=_infer,
    bind=_bind,
    grad_infer=lambda condition, dout: (dout, dout),
    grad_kernel=_grad,
)
