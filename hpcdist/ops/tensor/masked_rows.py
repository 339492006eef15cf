"""Rows chosen by a mask: split for the branches of a condition, and combined again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.values import Value
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.tensor.tensor_array import element, in_loops, open_rows
from hpcdist.ops.types import Array, Operands

# -- rows by a mask --------------------------------------------------------------------------------
_LEVEL = {"level": 0}


def _split(x: Value, mask: Value, level: int) -> tuple[Value, Value]:
    if x.lod is not None:
        raise FeedError("split_lod_tensor: sequences are not divided by a mask; pool them first")
    chosen = mask.array.reshape(-1).astype(bool)
    return Value(x.array[chosen]), Value(x.array[~chosen])


def _merged(x, mask: Value, of_true: Value, of_false: Value, level: int) -> Value:
    chosen = mask.array.reshape(-1).astype(bool)
    some = of_true.array if len(of_true.array) else of_false.array
    out = np.empty((len(chosen), *some.shape[1:]), some.dtype)
    out[chosen], out[~chosen] = of_true.array, of_false.array
    return Value(out)


def _merged_grad(mask: Value, dout: Value, level: int) -> tuple[Value, Value]:
    return _split(dout, mask, level)


define_with_grad(
    "split_lod_tensor",
    "X, Mask -> OutTrue, OutFalse",
    "X, Mask, OutTrue@GRAD, OutFalse@GRAD -> X@GRAD",
    rows=in_loops,
    attrs=_LEVEL,
    infer=lambda x, mask, **_: (open_rows(x), open_rows(x)),
    values=_split,
    grad_infer=element,
    grad_values=_merged,
)


_MERGED: dict[str, Any] = {
    "rows": in_loops,
    "attrs": _LEVEL,
    "infer": lambda x, mask, of_true, of_false, **_: open_rows(of_true),
    "values": _merged,
}
define("merge_lod_tensor_infer", "X?, Mask, InTrue, InFalse -> Out", **_MERGED)
define_with_grad(
    "merge_lod_tensor",
    "X?, Mask, InTrue, InFalse -> Out",
    "Mask, Out@GRAD -> InTrue@GRAD, InFalse@GRAD",
    **_MERGED,
    grad_infer=lambda mask, dout, **_: (open_rows(dout), open_rows(dout)),
    grad_values=_merged_grad,
)


def _selected(x: Operands, mask: Value) -> Array:
    branch = x[int(mask.number)]
    if branch is None:
        raise FeedError(f"select_input: nothing was computed for {int(mask.number)}")
    return branch


def _selected_grad(x: Operands, mask: Value, dout) -> list[Array | None]:
    return [dout if k == int(mask.number) else None for k in range(len(x))]


def _selected_infer(x: Sequence[Meta], mask: Meta) -> Meta:
    # Where ranks differ it is declared as the first one, which Fluid does; the step has its own.
    first, *other_shapes = (meta.shape for meta in x)
    alike = [other for other in other_shapes if len(other) == len(first)]
    extents = (-1, *first[1:]) if len(alike) < len(other_shapes) else first
    shape = tuple(
        extent if all(other[axis] == extent for other in alike) else -1
        for axis, extent in enumerate(extents)
    )
    return Meta(shape, x[0].dtype, x[0].type, lod=x[0].lod)


define_with_grad(
    "select_input",
    "X*, Mask -> Out",
    "X*, Mask, Out@GRAD -> X@GRAD*",
    rows=in_loops,
    infer=_selected_infer,
    values=_selected,
    grad_infer=lambda x, mask, dout: [Meta(m.shape, m.dtype, m.type, lod=m.lod) for m in x],
    grad_values=_selected_grad,
)
