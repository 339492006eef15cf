"""Operators that join values, or take parts of them: concat, split, stack, unstack, gather."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Given, GradOp, Meta, define
from hpcdist.graph.rows import by_row, moved, off_rows
from hpcdist.ops.algebra.second_derivatives import joining
from hpcdist.ops.common import (
    Wanted,
    define_with_grad,
    in_sequence,
    open_shape,
    resolve_axis,
    same_buffer,
)
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.loss.labels import range_check, take
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.tensor.copies import copies
from hpcdist.ops.types import ArrayModule, Call, DeviceArray, Operands


# -- concat and split ------------------------------------------------------------------------------
def _concat_infer(xs: Sequence[Meta], axis: int | None) -> Meta:
    if not xs:
        raise GraphError("concat: expected at least one input")
    shape = list(xs[0].shape)
    if axis is None:
        return Meta((-1,) * len(shape), xs[0].dtype)
    axis = resolve_axis(axis, len(shape))
    for x in xs[1:]:
        if len(x.shape) != len(shape) or any(
            a != b and -1 not in (a, b) for i, (a, b) in enumerate(zip(shape, x.shape)) if i != axis
        ):
            raise GraphError(f"cannot concat shapes {[m.shape for m in xs]} along axis {axis}")
        joined = -1 if -1 in (shape[axis], x.shape[axis]) else shape[axis] + x.shape[axis]
        shape = [max(a, b) for a, b in zip(shape, x.shape)]
        shape[axis] = joined
    return Meta(tuple(shape), xs[0].dtype, lod=_joined_lod(xs) if axis == 0 else None)


def _joined_lod(xs: Sequence[Meta]) -> Lod | None:
    """Return the sequences of all, None if they are not all of sequences of as many levels."""
    lods = [x.lod for x in xs if x.lod is not None]
    if len(lods) < len(xs) or len({lod.level for lod in lods}) > 1:
        return None
    return Lod.joined(lods) if all(lod.known for lod in lods) else Lod(lods[0].level)


def _concat_bind(xp: ArrayModule, xs: Operands, out, axis: int) -> Call:
    axis = resolve_axis(axis, out.ndim)
    parts = _parts(out, [x.shape[axis] for x in xs], axis)
    by_numpy = partial(xp.concatenate, xs, axis=axis, out=out)
    if any(same_buffer(xp, x, out) for x in xs):  # they are some of its rows
        return by_numpy
    return copies(xp, zip(parts, xs), by_numpy)


def _parts(joined, extents: Sequence[int], axis: int) -> list[DeviceArray]:
    """View an array as parts of these extents along an axis."""
    parts, start = [], 0
    for extent in extents:
        index = [slice(None)] * joined.ndim
        index[axis] = slice(start, start + extent)
        parts.append(joined[tuple(index)])
        start += extent
    return parts


def _copy_parts(xp: ArrayModule, joined, outs: Operands, extents: Sequence[int], axis: int) -> Call:
    pairs = zip(outs, _parts(joined, extents, axis))
    return copies(xp, [(out, part) for out, part in pairs if out is not None])


def _concat_grad_bind(xp: ArrayModule, xs: Operands, dout, dxs: Operands, axis: int) -> Call:
    axis = resolve_axis(axis, dout.ndim)
    return _copy_parts(xp, dout, dxs, [x.shape[axis] for x in xs], axis)


def split_extents(extent: int, num: int, sections: Sequence[int | None]) -> list[int]:
    """Return the extents of the parts; -1 in ``sections`` is what the others leave.

    Where one of them is None, it is -1 in the result, as what is left beside it.
    """
    if not sections:
        if extent == -1:
            return [-1] * num
        if num < 1 or extent % num:
            raise GraphError(f"split: {extent} cannot be cut into {num} equal parts")
        return [extent // num] * num
    sizes = list(open_shape(sections))
    if None in sections:
        return sizes
    if extent != -1 and sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = extent - sum(sizes) - 1
    if extent != -1 and (sum(sizes) != extent or min(sizes) < 0):
        raise GraphError(f"split: sections {list(sections)} do not add up to {extent}")
    return sizes


def _split_infer(
    x: Meta, num: int, sections: Sequence[int | None], axis: int | None
) -> tuple[list[Meta]]:
    if axis is None:
        return ([Meta((-1,) * len(x.shape), x.dtype)] * (num or len(sections)),)
    axis = resolve_axis(axis, len(x.shape))
    extents = split_extents(x.shape[axis], num, sections)
    return ([Meta((*x.shape[:axis], e, *x.shape[axis + 1 :]), x.dtype) for e in extents],)


def _split_bind(
    xp: ArrayModule, x, outs: Operands, num: int, sections: Sequence[int], axis: int
) -> Call:
    axis = resolve_axis(axis, x.ndim)
    return _copy_parts(xp, x, outs, split_extents(x.shape[axis], num, sections), axis)


def _split_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    operands = {"X": [grad_name(out) for out in op.output("Out")]}
    if op.input("AxisTensor"):
        operands["AxisTensor"] = op.input("AxisTensor")
    (x,) = op.input("X")
    return [GradOp("concat", operands, {"Out": [grad_name(x)]}, {"axis": op.attr("axis")})]


define_with_grad(
    "concat",
    "X*, AxisTensor? -> Out",
    "X*, Out@GRAD -> X@GRAD*",
    rows=by_row(apart=off_rows("axis"), totals=moved),
    attrs={"axis": 0},
    given={"axis": Given("AxisTensor")},
    infer=_concat_infer,
    bind=_concat_bind,
    folds=True,
    grad_bind=_concat_grad_bind,
    grad_grad=joining("concat"),
    grad_shape_only=("X",),
)
define(
    "split",
    "X, AxisTensor?, SectionsTensorList* -> Out*",
    rows=by_row(apart=off_rows("axis"), totals=moved),
    attrs={"num": 0, "sections": (), "axis": 0},
    given={"axis": Given("AxisTensor"), "sections": Given(listed="SectionsTensorList")},
    infer=_split_infer,
    bind=_split_bind,
    grad=_split_grad,
)


# -- stack -----------------------------------------------------------------------------------------
def _stack_infer(xs: Sequence[Meta], axis: int, num: int = 0) -> Meta:
    shape = list(xs[0].shape)
    shape.insert(resolve_axis(axis, len(shape) + 1), len(xs))
    return Meta(tuple(shape), xs[0].dtype)


def _layers_of(stacked, axis: int) -> list[DeviceArray]:
    """View an array as the values stacked in it."""
    axis = resolve_axis(axis, stacked.ndim)
    return [stacked[(slice(None),) * axis + (i, ...)] for i in range(stacked.shape[axis])]


def _join_bind(xp: ArrayModule, xs: Operands, y, axis: int, num: int = 0) -> Call:
    return copies(xp, zip(_layers_of(y, axis), xs))


def _part_bind(xp: ArrayModule, y, xs: Operands, axis: int, num: int = 0) -> Call:
    pairs = zip(xs, _layers_of(y, axis))
    return copies(xp, [(x, layer) for x, layer in pairs if x is not None])


def _part_infer(y: Meta, axis: int, num: int = 0) -> tuple[list[Meta]]:
    axis = resolve_axis(axis, len(y.shape))
    if y.shape[axis] < 0:
        raise GraphError(f"cannot unstack dimension {axis} of {y.shape}: its extent must be known")
    if num not in (0, y.shape[axis]):
        raise GraphError(f"cannot unstack {y.shape} along {axis} into {num} values")
    one = Meta(y.shape[:axis] + y.shape[axis + 1 :], y.dtype)
    return ([one] * y.shape[axis],)


define_with_grad(
    "stack",
    "X* -> Y",
    "Y@GRAD -> X@GRAD*",
    rows=by_row(apart=off_rows("axis", more_dims=1), totals=moved),
    attrs={"axis": 0},
    infer=shaped("X: ...", _stack_infer),
    bind=_join_bind,
    folds=True,
    grad_infer=_part_infer,
    grad_bind=_part_bind,
)
define_with_grad(
    "unstack",
    "X -> Y*",
    "Y@GRAD* -> X@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs={"axis": 0, "num": 0},
    infer=_part_infer,
    bind=_part_bind,
    grad_infer=_stack_infer,
    grad_bind=_join_bind,
)


# -- gather ----------------------------------------------------------------------------------------
def _gather_infer(x: Meta, index: Meta, overwrite: bool) -> Meta:
    if not index.dtype.startswith("int"):
        raise GraphError(f"gather: index must be of an integer dtype, got {index.dtype}")
    if len(index.shape) > 2 or (len(index.shape) == 2 and index.shape[1] != 1):
        raise GraphError(f"gather: index must be [n] or [n, 1], got {index.shape}")
    return Meta((index.shape[0], *x.shape[1:]), x.dtype)


def _gather_bind(xp: ArrayModule, x, index, out, overwrite: bool) -> Call:
    check = range_check(xp, index, x.shape[0], "gather", "rows")
    return in_sequence(check, take(xp, x, index.reshape(-1), out, axis=0))


def _gather_grad_bind(xp: ArrayModule, x, index, dout, dx, overwrite: bool) -> Call:
    rows = SelectedRows(index.reshape(-1), dout, x.shape[0])
    return in_sequence(partial(dx.fill, 0), partial(rows.add_to, dx))


define_with_grad(
    "gather",
    "X, Index -> Out",
    "X, Index, Out@GRAD -> X@GRAD",
    rows=by_row("Index"),
    attrs={"overwrite": True},
    infer=_gather_infer,
    bind=_gather_bind,
    grad_bind=_gather_grad_bind,
    grad_shape_only=("X",),
)
