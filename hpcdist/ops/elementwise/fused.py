"""fused_elemwise_activation: a sum or product of two values, and a function of it or of the second.

Fluid's passes put it in place of two operators; stored models that they have passed contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import broadcast
from hpcdist.ops.algebra.norms_distances import summed_to
from hpcdist.ops.common import define_with_grad, same
from hpcdist.ops.elementwise.binary import broadcast_shapes, operand_views
from hpcdist.ops.formulas import sigmoid
from hpcdist.ops.types import Array, ArrayModule, Metas

Functors = Sequence[str]
_BINARY = ("elementwise_add", "elementwise_mul")
# A function of a value, and its slope there: (xp, value, scale) -> array.
_UNARY: dict[str, tuple[Callable[..., Array], Callable[..., Array]]] = {
    "relu": (
        lambda xp, v, scale: xp.maximum(v, 0),
        lambda xp, v, scale: (v > 0).astype(v.dtype),
    ),
    "scale": (
        lambda xp, v, scale: v * scale,
        lambda xp, v, scale: xp.full(v.shape, scale, v.dtype),
    ),
    "sigmoid": (
        lambda xp, v, scale: sigmoid(xp, v),
        lambda xp, v, scale: sigmoid(xp, v) * (1 - sigmoid(xp, v)),
    ),
    "tanh": (lambda xp, v, scale: xp.tanh(v), lambda xp, v, scale: 1 - xp.tanh(v) ** 2),
}


def _of_second(functors: Functors) -> bool:
    """Return whether the function is of the second value: ``[elementwise_add, relu]``."""
    inner, outer = (*functors, "", "")[:2]
    if len(functors) == 2 and inner in _BINARY and outer in _UNARY:
        return True
    if len(functors) == 2 and inner in _UNARY and outer in _BINARY:
        return False
    raise GraphError(
        f"fused_elemwise_activation: functor_list {list(functors)}, expected one of "
        f"{', '.join(_BINARY)}, and one of {', '.join(_UNARY)}"
    )


def _infer(x: Meta, y: Meta, functor_list: Functors, axis: int, **_) -> Metas:
    out = Meta(broadcast_shapes(x.shape, y.shape, axis)[2], x.dtype)
    return out, same(y) if _of_second(functor_list) else out


def _joined(functors: Functors, x, y) -> Array:
    return x + y if "elementwise_add" in functors else x * y


def _fused(
    xp: ArrayModule, x, y, out, between, functor_list: Functors, axis: int, scale: float, **_
) -> None:
    """[binary, f]: x with f(y); [f, binary]: f of both."""
    a, b = operand_views(x, y, axis)
    if _of_second(functor_list):
        inner = _UNARY[functor_list[1]][0](xp, b, scale)
        out[...] = _joined(functor_list, a, inner)
    else:
        inner = _joined(functor_list, a, b)
        out[...] = _UNARY[functor_list[0]][0](xp, inner, scale)
    if between is not None:
        between[...] = inner.reshape(between.shape)


def _fused_grad(
    xp: ArrayModule, x, y, dout, dx, dy, functor_list: Functors, axis: int, scale: float, **_
) -> None:
    a, b = operand_views(x, y, axis)
    adds = "elementwise_add" in functor_list
    if _of_second(functor_list):
        function, slope = _UNARY[functor_list[1]]
        of_a = dout if adds else dout * function(xp, b, scale)
        of_b = (dout if adds else dout * a) * slope(xp, b, scale)
    else:
        inner = dout * _UNARY[functor_list[0]][1](xp, _joined(functor_list, a, b), scale)
        of_a, of_b = (inner, inner) if adds else (inner * b, inner * a)
    for target, value, view in ((dx, of_a, a), (dy, of_b, b)):
        if target is not None:
            target[...] = summed_to(value, view.shape).reshape(target.shape)


define_with_grad(
    "fused_elemwise_activation",
    "X, Y -> Out, IntermediateOut?",
    "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=broadcast(),
    attrs={
        "functor_list": (),
        "axis": -1,
        "scale": 0.0,
        "save_intermediate_out": False,
    },
    infer=_infer,
    kernel=_fused,
    grad_kernel=_fused_grad,
)
