"""Operators that take parts of a value, or reverse it: slice, strided_slice, reverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hpcdist.errors import GraphError
from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.graph.rows import by_row, moved, off_rows
from hpcdist.ops.algebra import second_derivatives
from hpcdist.ops.common import (
    Wanted,
    define_with_grad,
    in_sequence,
    resolve_axis,
    same,
)
from hpcdist.ops.types import ArrayModule, Call, DeviceArray

# -- slice, strided_slice --------------------------------------------------------------------------
_SLICE = {"axes": (), "starts": (), "ends": (), "decrease_axis": (), "infer_flags": ()}
_STRIDED = {**_SLICE, "strides": ()}


def slices(rank: int, axes: Sequence[int], starts, ends, strides=()) -> tuple[slice, ...]:
    """Return what takes a part of a value of ``rank`` dimensions."""
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
    starts_tensor: Meta | None,
    ends_tensor: Meta | None,
    starts_list: Sequence[Meta],
    ends_list: Sequence[Meta],
    axes,
    starts,
    ends,
    decrease_axis,
    infer_flags,
    strides=(),
) -> Meta:
    begins = _known_numbers(starts, starts_tensor, starts_list, len(axes), infer_flags)
    limits = _known_numbers(ends, ends_tensor, ends_list, len(axes), infer_flags)
    open_ = {
        resolve_axis(a, len(x.shape)) for a, *pair in zip(axes, begins, limits) if None in pair
    }
    index = slices(len(x.shape), axes, begins, limits, strides)
    shape = [
        -1 if d == -1 or n in open_ else len(range(*i.indices(d)))
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


def _known_numbers(
    numbers: Sequence[int],
    tensor: Meta | None,
    listed: Sequence[Meta],
    count: int,
    flags: Sequence[int],
) -> list[int | None]:
    """Return starts or ends that may be in values; None where not known yet.

    Where a flag is 1, what is given is what is in the values.
    """
    if tensor is not None:
        return list(tensor.numbers or [None] * count)
    if not listed:
        return list(numbers)
    certain = [n if flag == 1 else None for n, flag in zip(numbers, flags)] or [None] * count
    return [of.numbers[0] if of.numbers else n for of, n in zip(listed, certain)]


def _numbers(numbers: Sequence[int], tensor, listed: Sequence[DeviceArray]) -> list[int]:
    """Return starts or ends as they are in this step."""
    if tensor is not None:
        return [int(number) for number in tensor.reshape(-1)]
    return [int(value.reshape(-1)[0]) for value in listed] if listed else list(numbers)


def _part_of(axes, starts, ends, strides, values) -> Callable[[DeviceArray], DeviceArray]:
    """Return what takes the part of an array; ``values``: starts and ends that are in values."""
    starts_tensor, ends_tensor, starts_list, ends_list = values

    def part(array) -> DeviceArray:
        begins = _numbers(starts, starts_tensor, starts_list)
        limits = _numbers(ends, ends_tensor, ends_list)
        return array[slices(array.ndim, axes, begins, limits, strides)]

    return part


def _are_fixed(values) -> bool:
    return all(value is None or (isinstance(value, list) and not value) for value in values)


def _slice_bind(xp: ArrayModule, x, *operands, axes, starts, ends, strides=(), **_) -> Call:
    *values, out = operands
    part_of = _part_of(axes, starts, ends, strides, values)

    def copy() -> None:
        part = part_of(x)
        xp.copyto(out.reshape(part.shape), part)

    if not _are_fixed(values):
        return copy
    part = part_of(x)
    return partial(xp.copyto, out.reshape(part.shape), part)


def _slice_grad_bind(xp: ArrayModule, x, *operands, axes, starts, ends, strides=(), **_) -> Call:
    *values, dout, dx = operands
    part_of = _part_of(axes, starts, ends, strides, values)

    def copy() -> None:
        part = part_of(dx)
        xp.copyto(part, dout.reshape(part.shape))

    if _are_fixed(values):
        part = part_of(dx)
        copy = partial(xp.copyto, part, dout.reshape(part.shape))
    return in_sequence(partial(dx.fill, 0), copy)


_PLACES = "StartsTensor?, EndsTensor?, StartsTensorList*, EndsTensorList*"
_SLICE_GRAD = f"Input, {_PLACES}, Out@GRAD -> Input@GRAD"
for _type, _attrs in (("slice", _SLICE), ("strided_slice", _STRIDED)):
    define_with_grad(
        _type,
        f"Input, {_PLACES} -> Out",
        _SLICE_GRAD,
        rows=by_row("Input", apart=off_rows("axes"), totals=moved),
        attrs=_attrs,
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
