"""Operators that take parts of a value, or reverse it: slice, strided_slice, reverse."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Given, GradOp, Meta, define
from hpcdist.graph.rows import by_row, moved, off_rows
from hpcdist.ops.algebra import second_derivatives
from hpcdist.ops.common import (
    Wanted,
    define_with_grad,
    in_sequence,
    resolve_axis,
    same,
)
from hpcdist.ops.types import ArrayModule, Call

# -- slice, strided_slice --------------------------------------------------------------------------
_SLICE = {"axes": (), "starts": (), "ends": (), "decrease_axis": (), "infer_flags": ()}
_STRIDED = {**_SLICE, "strides": ()}


def slices(
    rank: int, axes: Sequence[int], starts, ends, strides=(), decrease_axis=()
) -> tuple[slice, ...]:
    """Return the index of a part of a value of ``rank`` dimensions.

    Of an axis that is dropped, the place from -1 to 0 is the last one: ``x[-1]``.
    """
    strides = strides or [1] * len(axes)
    if not len(axes) == len(starts) == len(ends) == len(strides) or 0 in strides:
        raise GraphError(
            f"slice: axes {list(axes)}, starts {list(starts)}, ends {list(ends)} and strides "
            f"{list(strides)} must be equally many, and no stride 0"
        )
    index = [slice(None)] * rank
    for axis, start, end, stride in zip(axes, starts, ends, strides):
        last = axis in decrease_axis and (start, end) == (-1, 0)
        index[resolve_axis(axis, rank)] = slice(start, None if last else end, stride)
    return tuple(index)


def _slice_infer(x: Meta, axes, starts, ends, decrease_axis, infer_flags=(), strides=()) -> Meta:
    rank, steps = len(x.shape), strides or [1] * len(axes)
    bounds = zip(axes, starts, ends, steps)
    open_ = {resolve_axis(axis, rank) for axis, *place in bounds if None in place}
    known = [1 if step is None else step for step in steps]
    index = slices(rank, axes, starts, ends, known, decrease_axis)
    shape = [
        d if i == slice(None) else -1 if d == -1 or n in open_ else len(range(*i.indices(d)))
        for n, (i, d) in enumerate(zip(index, x.shape))
    ]
    if 0 in shape:
        by = f", strides {list(strides)}" if strides else ""
        raise GraphError(
            f"slice of {x.shape} by axes {list(axes)}, starts {list(starts)}, ends {list(ends)}"
            f"{by} is empty"
        )
    extents = [d for i, d in enumerate(shape) if i not in decrease_axis]
    return Meta(tuple(extents) or (1,), x.dtype)


def _slice_bind(xp: ArrayModule, x, out, infer_flags=(), **places) -> Call:
    part = x[slices(x.ndim, **places)]
    return partial(xp.copyto, out.reshape(part.shape), part)


def _slice_grad_bind(xp: ArrayModule, x, dout, dx, infer_flags=(), **places) -> Call:
    part = dx[slices(dx.ndim, **places)]
    return in_sequence(partial(dx.fill, 0), partial(xp.copyto, part, dout.reshape(part.shape)))


_PLACES = "StartsTensor?, EndsTensor?, StartsTensorList*, EndsTensorList*"
_BY_PLACES = {
    "starts": Given("StartsTensor", "StartsTensorList"),
    "ends": Given("EndsTensor", "EndsTensorList"),
}
_STEPS = "StridesTensor?, StridesTensorList*"
_BY_STEPS = {**_BY_PLACES, "strides": Given("StridesTensor", "StridesTensorList")}
for _type, _slots, _attrs, _given in (
    ("slice", _PLACES, _SLICE, _BY_PLACES),
    ("strided_slice", f"{_PLACES}, {_STEPS}", _STRIDED, _BY_STEPS),
):
    define_with_grad(
        _type,
        f"Input, {_slots} -> Out",
        "Input, Out@GRAD -> Input@GRAD",
        rows=by_row("Input", apart=off_rows("axes"), totals=moved),
        attrs=_attrs,
        given=_given,
        infer=_slice_infer,
        bind=_slice_bind,
        folds=True,
        grad_bind=_slice_grad_bind,
        grad_grad=second_derivatives.linear(_type, x="Input"),
        grad_shape_only=("Input",),
    )


# -- reverse ---------------------------------------------------------------------------------------
def _reverse_infer(x: Meta, axis: Sequence[int]) -> Meta:
    if not axis:
        raise GraphError("reverse: expected at least one axis")
    for one in axis:
        resolve_axis(one, len(x.shape))
    return same(x)


def _reverse_bind(xp: ArrayModule, x, out, axis: Sequence[int]) -> Call:
    turned = {resolve_axis(one, x.ndim) for one in axis}
    index = tuple(slice(None, None, -1 if i in turned else None) for i in range(x.ndim))
    return partial(xp.copyto, out, x[index])


def _reverse_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    (x,), (out,) = op.input("X"), op.output("Out")
    attrs = {"axis": op.attr("axis")}
    return [GradOp("reverse", {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}, attrs)]


define(
    "reverse",
    "X -> Out",
    rows=by_row(apart=off_rows("axis"), totals=moved),
    attrs={"axis": ()},
    infer=_reverse_infer,
    bind=_reverse_bind,
    grad=_reverse_grad,
)
