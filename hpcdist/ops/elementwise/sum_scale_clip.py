"""Sums of values, scaling and clipping: dense values and SelectedRows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Given, GradOp, Meta, define
from hpcdist.graph.rows import by_element, linear, not_on_rows, shifted
from hpcdist.graph.values import ARRAY
from hpcdist.ops.common import Wanted, define_with_grad, fits, in_sequence, same, same_buffer
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.embedding.sparse_ops import SPARSE, merge_into
from hpcdist.ops.types import ArrayModule, Call, Operands


# -- sum -----------------------------------------------------------------------------------------
def _sum_infer(xs: Sequence[Meta]) -> Meta:
    if not xs:
        raise GraphError("sum: expected at least one input")
    if all(x.type == SPARSE for x in xs):
        rows = -1 if any(x.rows < 0 for x in xs) else sum(x.rows for x in xs)
        return Meta(xs[0].shape, xs[0].dtype, SPARSE, rows)
    if xs[0].type == ARRAY:  # the gradients of an array that is read more than once
        return Meta(xs[0].shape, xs[0].dtype, ARRAY)
    shape = list(xs[0].shape)
    for x in xs[1:]:
        if not fits(x.shape, shape):
            raise GraphError(f"cannot add shapes {[m.shape for m in xs]}: they must be equal")
        shape = [max(a, b) for a, b in zip(shape, x.shape)]
    return Meta(tuple(shape), xs[0].dtype)


def _sum_bind(xp: ArrayModule, xs: Operands, out) -> Call:
    """Add in the order given; out may lie in the buffer of one of them.

    SelectedRows alone are put one after the other; beside dense values they are added to them.
    """
    if isinstance(out, SelectedRows):
        return in_sequence(
            partial(xp.concatenate, [x.rows for x in xs], out=out.rows),
            partial(xp.concatenate, [x.value for x in xs], out=out.value),
        )
    dense = [x for x in xs if not isinstance(x, SelectedRows)]
    steps: list[Call] = []
    if len(dense) > 1:
        needed_later = any(same_buffer(xp, x, out) for x in dense[2:])
        total = xp.empty_like(out) if needed_later else out
        steps.append(partial(xp.add, dense[0], dense[1], out=total))
        steps += [partial(xp.add, total, x, out=total) for x in dense[2:]]
        if needed_later:
            steps.append(partial(xp.copyto, out, total))
    elif not same_buffer(xp, dense[0], out):
        steps.append(partial(xp.copyto, out, dense[0]))
    steps += [partial(x.add_to, out) for x in xs if isinstance(x, SelectedRows)]
    return in_sequence(*steps)


def _sum_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    dout = grad_name(op.output("Out")[0])
    return [
        GradOp("scale", {"X": [dout]}, {"Out": [grad_name(x)]}, {"scale": 1.0})
        for x in op.input("X")
        if wanted(x)
    ]


define(
    "sum",
    "X* -> Out",
    rows=by_element(totals=linear),
    infer=_sum_infer,
    bind=_sum_bind,
    folds=True,
    grad=_sum_grad,
    inplace={"Out": "X"},
)


# -- scale ---------------------------------------------------------------------------------------
def _scale_infer(x: Meta, **_) -> Meta:
    return x


def _scale_bind(xp: ArrayModule, x, out, scale: float, bias: float, bias_after_scale: bool) -> Call:
    if isinstance(x, SelectedRows):
        facts = scale, bias, bias_after_scale
        return partial(out.take, x, lambda value, to: _scale_bind(xp, value, to, *facts)())
    steps: list[Call] = []
    if x.dtype.kind in "iu":  # Fluid converts both to the element type
        scale, bias = int(scale), int(bias)
    if bias and not bias_after_scale:
        steps.append(partial(xp.add, x, bias, out=out))
        x = out
    steps.append(partial(xp.multiply, x, scale, out=out))
    if bias and bias_after_scale:
        steps.append(partial(xp.add, out, bias, out=out))
    return in_sequence(*steps)


def _scale_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    (x,), (out,) = op.input("X"), op.output("Out")
    attrs = {"scale": op.attr("scale"), "bias": 0.0, "bias_after_scale": True}
    inputs = {"X": [grad_name(out)], "ScaleTensor": op.input("ScaleTensor")}
    return [GradOp("scale", inputs, {"Out": [grad_name(x)]}, attrs)]


define(
    "scale",
    "X, ScaleTensor? -> Out",
    rows=by_element(totals=shifted),
    attrs={"scale": 1.0, "bias": 0.0, "bias_after_scale": True},
    given={"scale": Given("ScaleTensor")},
    infer=_scale_infer,
    bind=_scale_bind,
    grad=_scale_grad,
    inplace={"Out": "X"},
    folds=True,
)


# -- increment -----------------------------------------------------------------------------------
def _increment_bind(xp: ArrayModule, x, out, step: float) -> Call:
    return partial(xp.add, x, x.dtype.type(step), out=out)


def _increment_grad(op, wanted: Wanted) -> list[GradOp]:
    (x,), (out,) = op.input("X"), op.output("Out")
    return [GradOp("assign", {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}, {})]


define(
    "increment",
    "X -> Out",
    rows=by_element(totals=shifted),
    attrs={"step": 1.0},
    infer=same,
    bind=_increment_bind,
    grad=_increment_grad,
    inplace={"Out": "X"},
)


# -- clip ----------------------------------------------------------------------------------------
def _clip_rows(
    xp: ArrayModule, x: SelectedRows, out: SelectedRows, low: float, high: float
) -> None:
    """Clip the sums of repeated rows."""
    n = merge_into(x, out)
    xp.clip(out.value[:n], low, high, out=out.value[:n])


def _clip_bind(xp: ArrayModule, x, out, min: float, max: float) -> Call:
    if isinstance(x, SelectedRows):
        return partial(_clip_rows, xp, x, out, min, max)
    return partial(xp.clip, x, min, max, out=out)


def _clip_grad_bind(xp: ArrayModule, x, dout, dx, min: float, max: float) -> Call:
    def run() -> None:
        xp.multiply(dout, (x > min) & (x < max), out=dx)

    return run


_CLIP = {"min": 0.0, "max": 0.0}
define_with_grad(
    "clip",
    "X, Min?, Max? -> Out",
    "X, Out@GRAD -> X@GRAD",
    rows=by_element(),
    attrs=_CLIP,
    given={"min": Given("Min"), "max": Given("Max")},
    infer=_scale_infer,
    bind=_clip_bind,
    grad_bind=_clip_grad_bind,
)


def _clip_by_norm_kernel(xp: ArrayModule, x, squared, out, max_norm: float) -> None:
    """Scale down to the norm ``max_norm``; repeated rows count with their sum.

    ``squared`` is the norm's square where x is a part of what has that norm.
    """
    if squared is None:
        flat = (x.totals(again=False).value if isinstance(x, SelectedRows) else x).reshape(-1)
        squared = xp.dot(flat, flat)
    factor = (max_norm / xp.maximum(xp.sqrt(squared), max_norm)).astype(x.dtype)
    if isinstance(x, SelectedRows):
        out.take(x, lambda value, to: xp.multiply(value, factor, out=to))
    else:
        xp.multiply(x, factor, out=out)


define(
    "clip_by_norm",
    "X, SquaredNorm? -> Out",
    rows=not_on_rows,
    attrs={"max_norm": 1.0},
    ranges={"max_norm": "above 0"},
    infer=lambda x, squared, **attrs: _scale_infer(x, **attrs),
    kernel=_clip_by_norm_kernel,
    inplace={"Out": "X"},
)
