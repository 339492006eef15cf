"""Operators that take parts of a value, or turn it round: slice, strided_slice, reverse."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.names import grad_name
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.graph.rows import by_row, moved, off_rows
from hpcdist.ops.common import Wanted, grad_by, in_sequence, like_inputs, resolve_axis, same

# -- slice, strided_slice --------------------------------------------------------------------------
_SLICE = {"axes": (), "starts": (), "ends": (), "decrease_axis": (), "infer_flags": ()}
_STRIDED = {**_SLICE, "strides": ()}


def _slices(
    rank: int, axes: Sequence[int], starts: Any, ends: Any, strides: Any = ()
) -> tuple[slice, ...]:
    strides = strides or [1] * len(axes)
    if not len(axes) == len(starts) == len(ends) == len(strides) or 0 in strides:
        raise GraphError(
            f"slice: axes {list(axes)}, starts {list(starts)}, ends {list(ends)} and strides "
            f"{list(strides)} must be equally many, and no stride 0"
        )
    index = [slice(None)] * rank
    for axis, start, end, stride in zip(axes, starts, ends, strides):
        index[resolve_axis(axis, rank)] = slice(start, end, stride)
    return tuple(index)


def _slice_infer(
    x: Meta,
    axes: Any,
    starts: Any,
    ends: Any,
    decrease_axis: Any,
    infer_flags: Any,
    strides: Any = (),
) -> Meta:
    index = _slices(len(x.shape), axes, starts, ends, strides)
    shape = [-1 if d == -1 else len(range(*i.indices(d))) for i, d in zip(index, x.shape)]
    if 0 in shape:
        by = f", strides {list(strides)}" if strides else ""
        raise GraphError(
            f"slice of {x.shape} by axes {list(axes)}, starts {list(starts)}, ends {list(ends)}"
            f"{by} is empty"
        )
    kept = [d for i, d in enumerate(shape) if i not in decrease_axis]
    return Meta(tuple(kept) or (1,), x.dtype)


def _slice_bind(
    xp: Any, x: Any, out: Any, axes: Any, starts: Any, ends: Any, strides: Any = (), **_: Any
) -> Callable[[], Any]:
    part = x[_slices(x.ndim, axes, starts, ends, strides)]
    return functools.partial(xp.copyto, out.reshape(part.shape), part)


def _slice_grad_bind(
    xp: Any,
    x: Any,
    dout: Any,
    dx: Any,
    axes: Any,
    starts: Any,
    ends: Any,
    strides: Any = (),
    **_: Any,
) -> Callable[[], Any]:
    part = dx[_slices(x.ndim, axes, starts, ends, strides)]
    return in_sequence(
        [
            functools.partial(dx.fill, 0),
            functools.partial(xp.copyto, part, dout.reshape(part.shape)),
        ]
    )


_SLICE_GRAD = "Input, Out@GRAD -> Input@GRAD"
for _type, _attrs in (("slice", _SLICE), ("strided_slice", _STRIDED)):
    define(
        _type,
        "Input -> Out",
        rows=by_row(apart=off_rows("axes"), totals=moved),
        attrs=_attrs,
        infer=_slice_infer,
        bind=_slice_bind,
        grad=grad_by(f"{_type}_grad", _SLICE_GRAD),
    )
    define(
        f"{_type}_grad",
        _SLICE_GRAD,
        attrs=_attrs,
        infer=like_inputs(_SLICE_GRAD),
        bind=_slice_grad_bind,
        shape_only=("Input",),
    )


# -- reverse ---------------------------------------------------------------------------------------
def _reverse_infer(x: Meta, axis: Sequence[int]) -> Meta:
    if not axis:
        raise GraphError("reverse: expected at least one axis")
    for one in axis:
        resolve_axis(one, len(x.shape))
    return same(x)


def _reverse_bind(xp: Any, x: Any, out: Any, axis: Sequence[int]) -> Callable[[], Any]:
    turned = {resolve_axis(one, x.ndim) for one in axis}
    index = tuple(slice(None, None, -1 if i in turned else None) for i in range(x.ndim))
    return functools.partial(xp.copyto, out, x[index])


def _reverse_grad(op: Any, wanted: Wanted) -> list[GradOp]:
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
