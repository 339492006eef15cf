"""Operators that change shape or order only: reshape2, transpose2, concat, split, slice, ...

``XShape`` (shape (0, *shape of X), no elements) tells the gradient what X looked like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph import rows
from hpcdist.graph.registry import Given, Meta
from hpcdist.graph.rows import by_row, moved
from hpcdist.ops.algebra import second_derivatives
from hpcdist.ops.common import (
    define_with_grad,
    in_sequence,
    open_shape,
    resolve_axis,
    same_buffer,
)
from hpcdist.ops.types import ArrayModule, Call, DeviceArray

Shape = tuple[int, ...]


# -- reshape2, flatten2, squeeze2, unsqueeze2: the same elements under another shape --------------
def reshaped(x: Shape, shape: Sequence[int]) -> Shape:
    """Return the new shape: 0 keeps the extent at its place, one -1 is what is left."""
    if any(d == 0 and i >= len(x) for i, d in enumerate(shape)) or list(shape).count(-1) > 1:
        raise GraphError(
            f"cannot reshape {x} to {list(shape)}: 0 keeps an extent of the input, "
            "and one -1 is allowed"
        )
    out = [x[i] if d == 0 else d for i, d in enumerate(shape)]
    unknown = x.count(-1) - sum(d == 0 and x[i] == -1 for i, d in enumerate(shape))
    if unknown:  # the batch size goes into the -1, whatever it is
        return tuple(out)
    have = math.prod(d for d in x if d != -1)
    want = math.prod(d for d in out if d != -1)
    if -1 in shape and want and have % want == 0:
        out[list(shape).index(-1)] = have // want
    elif have != want:
        raise GraphError(f"cannot reshape {x} ({have} elements) to {list(shape)}")
    return tuple(out)


def _flattened(x: Shape, axis: int) -> Shape:
    if not 0 <= axis <= len(x):
        raise GraphError(f"flatten: axis {axis} is outside a value of {len(x)} dimensions")
    return tuple(-1 if -1 in part else math.prod(part) for part in (x[:axis], x[axis:]))


def _squeezed(x: Shape, axes: Sequence[int]) -> Shape:
    drop = {resolve_axis(a, len(x)) for a in axes} or {i for i, d in enumerate(x) if d == 1}
    for a in drop:
        if x[a] not in (1, -1):
            raise GraphError(f"squeeze: dimension {a} of {x} is {x[a]}, expected 1")
    return tuple(d for i, d in enumerate(x) if i not in drop)


def _unsqueezed(x: Shape, axes: Sequence[int | None]) -> Shape:
    out = list(x)
    if None in axes:
        return (-1,) * (len(x) + len(axes))
    for axis in axes:
        assert axis is not None
        out.insert(resolve_axis(axis, len(out) + 1), 1)
    return tuple(out)


def _copy_bind(xp: ArrayModule, x, out, xshape=None, **_) -> Call:
    if same_buffer(xp, x, out):
        return in_sequence()
    return partial(xp.copyto, out.reshape(-1), x.reshape(-1))


def _copy_grad_bind(xp: ArrayModule, xshape, *rest, **_) -> Call:
    return _copy_bind(xp, *rest[-2:])


_SHAPE_GRAD = "XShape, Out@GRAD -> X@GRAD"


def _before(xshape: Meta, *rest, **_) -> Meta:
    return Meta(xshape.shape[1:], rest[-1].dtype)


def _squeezes_others(op: rows.Applied) -> bool:
    """Return whether dimension 0 stays; which dimensions go must not depend on the batch."""
    return bool(op.attrs["axes"]) and rows.off_rows("axes")(op)


def _puts_none_before(op: rows.Applied) -> bool:
    if None in op.attrs["axes"]:
        return False
    ranks = range(op.rank + 1, op.rank + 1 + len(op.attrs["axes"]))
    return all(axis % rank for axis, rank in zip(op.attrs["axes"], ranks))


def _reshape_infer(x: Meta, shape: Sequence[int | None]) -> tuple[Meta, Meta]:
    if None in shape:  # a -1 beside it is open, too: what the others leave
        out = open_shape([x.shape[i] if d == 0 else d for i, d in enumerate(shape)])
    else:
        out = reshaped(x.shape, open_shape(shape))
    return Meta(out, x.dtype), Meta((0, *x.shape), x.dtype)


define_with_grad(
    "reshape2",
    "X, Shape?, ShapeTensor* -> Out, XShape?",
    _SHAPE_GRAD,
    rows=rows.reshaped,
    attrs={"shape": ()},
    given={"shape": Given("Shape", "ShapeTensor")},
    infer=_reshape_infer,
    bind=_copy_bind,
    folds=True,
    alias={"Out": "X"},
    grad_infer=_before,
    grad_bind=_copy_grad_bind,
    grad_grad=second_derivatives.linear("reshape2"),
    grad_alias={"X@GRAD": "Out@GRAD"},
    grad_shape_only=("XShape",),
)
_UNSQUEEZED_BY = {"axes": Given("AxesTensor", "AxesTensorList")}
for _type, _rule, _attrs, _given, _rows in (
    ("flatten2", _flattened, {"axis": 1}, {}, rows.flattened),
    ("squeeze2", _squeezed, {"axes": ()}, {}, by_row(apart=_squeezes_others, totals=moved)),
    (
        "unsqueeze2",
        _unsqueezed,
        {"axes": ()},
        _UNSQUEEZED_BY,
        by_row(apart=_puts_none_before, totals=moved),
    ),
):
    define_with_grad(
        _type,
        "X, AxesTensor?, AxesTensorList* -> Out, XShape?" if _given else "X -> Out, XShape?",
        _SHAPE_GRAD,
        rows=_rows,
        attrs=_attrs,
        given=_given,
        infer=lambda x, _rule=_rule, **attrs: (
            Meta(_rule(x.shape, *attrs.values()), x.dtype),
            Meta((0, *x.shape), x.dtype),
        ),
        bind=_copy_bind,
        folds=True,
        alias={"Out": "X"},
        grad_infer=_before,
        grad_bind=_copy_grad_bind,
        grad_grad=second_derivatives.linear(_type),
        grad_alias={"X@GRAD": "Out@GRAD"},
        grad_shape_only=("XShape",),
    )


# -- transpose2 ------------------------------------------------------------------------------------
def _permutation(rank: int, axis: Sequence[int]) -> list[int]:
    perm = [resolve_axis(a, rank) for a in axis]
    if sorted(perm) != list(range(rank)):
        raise GraphError(f"transpose: {list(axis)} is not a permutation of {rank} dimensions")
    return perm


def _transpose_infer(x: Meta, axis: Sequence[int]) -> tuple[Meta, Meta]:
    shape = tuple(x.shape[a] for a in _permutation(len(x.shape), axis))
    return Meta(shape, x.dtype), Meta((0, *x.shape), x.dtype)


def _transpose_bind(xp: ArrayModule, x, out, xshape, axis: Sequence[int]) -> Call:
    return partial(xp.copyto, out, x.transpose(_permutation(x.ndim, axis)))


def _transpose_grad_bind(xp: ArrayModule, xshape, dout, dx, axis: Sequence[int]) -> Call:
    return partial(xp.copyto, dx.transpose(_permutation(dx.ndim, axis)), dout)


define_with_grad(
    "transpose2",
    "X -> Out, XShape?",
    _SHAPE_GRAD,
    rows=by_row(apart=lambda op: op.attrs["axis"][0] == 0, totals=moved),
    attrs={"axis": ()},
    infer=_transpose_infer,
    bind=_transpose_bind,
    grad_infer=_before,
    grad_bind=_transpose_grad_bind,
    grad_grad=second_derivatives.linear("transpose2"),
    grad_shape_only=("XShape",),
)


# -- expand: repeat along every dimension ----------------------------------------------------------
def _expand_infer(x: Meta, expand_times: Sequence[int | None]) -> Meta:
    if len(expand_times) != len(x.shape):
        raise GraphError(f"expand: {list(expand_times)} must be as long as the shape {x.shape}")
    shape = tuple(
        -1 if d == -1 or n is None or n < 0 else d * n for d, n in zip(x.shape, expand_times)
    )
    return Meta(shape, x.dtype)


def _tiles(big, small) -> tuple[DeviceArray, DeviceArray]:
    """View both with two dimensions per dimension: copies, and the elements of one copy."""
    pairs = [p for n, d in zip(big.shape, small.shape) for p in (n // d if d else 1, d)]
    singles = [p for d in small.shape for p in (1, d)]
    return big.reshape(pairs), small.reshape(singles)


def _expand_bind(xp: ArrayModule, x, out, expand_times: Sequence[int]) -> Call:
    return partial(xp.copyto, *_tiles(out, x))


def _expand_grad_bind(xp: ArrayModule, x, dout, dx, expand_times: Sequence[int]) -> Call:
    big, small = _tiles(dout, dx)
    return partial(big.sum, axis=tuple(range(0, big.ndim, 2)), out=small, keepdims=True)


define_with_grad(
    "expand",
    "X, ExpandTimes?, expand_times_tensor* -> Out",
    "X, Out@GRAD -> X@GRAD",
    rows=by_row("X", apart=lambda op: op.attrs["expand_times"][:1] == [1], totals=moved),
    attrs={"expand_times": ()},
    given={"expand_times": Given("ExpandTimes", "expand_times_tensor")},
    ranges={"expand_times": "at least 1"},
    infer=_expand_infer,
    bind=_expand_bind,
    grad_bind=_expand_grad_bind,
    grad_grad=second_derivatives.linear("expand"),
    grad_shape_only=("X",),
)
