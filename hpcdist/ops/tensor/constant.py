"""Values made from nothing or copied: constants, casts, assignments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Given, GradOp, Meta, define
from hpcdist.graph.rows import (
    How,
    by_element,
    constant,
    like_batch,
    moved,
    not_on_rows,
    reduces,
)
from hpcdist.graph.values import ARRAY
from hpcdist.ops.common import (
    Wanted,
    define_with_grad,
    in_sequence,
    open_shape,
    same,
    same_buffer,
    shaped_like_batch,
)
from hpcdist.ops.types import ArrayModule, Call


def _fill_bind(xp: ArrayModule, out, value: float, **_) -> Call:
    return partial(out.fill, value)


# -- constants -------------------------------------------------------------------------------------
define(
    "fill_constant",
    "ShapeTensor?, ShapeTensorList*, ValueTensor? -> Out",
    rows=constant,
    attrs={"shape": (1,), "dtype": "float32", "value": 0.0, "force_cpu": False},
    given={"shape": Given("ShapeTensor", "ShapeTensorList"), "value": Given("ValueTensor")},
    infer=lambda shape, dtype, **_: Meta(open_shape(shape), dtype),
    bind=_fill_bind,
    folds=True,
)


define(
    "fill_constant_batch_size_like",
    "Input -> Out",
    rows=like_batch,
    attrs={
        "shape": (),
        "dtype": "float32",
        "value": 0.0,
        "input_dim_idx": 0,
        "output_dim_idx": 0,
        "force_cpu": False,
    },
    infer=shaped_like_batch,
    bind=lambda xp, x, out, value, **_: partial(out.fill, value),
)
define(
    "fill_zeros_like",
    "X -> Out",
    rows=by_element(totals=constant),
    infer=same,
    bind=lambda xp, x, out: partial(out.fill, 0),
)
define(
    "fill_any_like",
    "X -> Out",
    rows=by_element(totals=constant),
    attrs={"value": 0.0, "dtype": None},
    infer=lambda x, value, dtype: Meta(x.shape, dtype or x.dtype),
    bind=lambda xp, x, out, value, dtype: partial(out.fill, value),
)


def _shape_bind(xp: ArrayModule, x, out) -> Call:
    return partial(xp.copyto, out, xp.asarray(x.shape, dtype=out.dtype))


define(
    "shape",
    "Input -> Out",
    rows=not_on_rows,
    infer=lambda x: Meta((len(x.shape),), "int32", numbers=None if -1 in x.shape else x.shape),
    bind=_shape_bind,
)

# -- assign ----------------------------------------------------------------------------------------
# Fluid has one attribute per element type it can hold in a Program; halves are held in single.
VALUE_ATTRS = {
    "float32": "fp32_values",
    "float16": "fp32_values",
    "int32": "int32_values",
    "int64": "int64_values",
    "bool": "bool_values",
}


def _assign_value_bind(xp: ArrayModule, out, shape: Sequence[int], dtype: str, **values) -> Call:
    constant = xp.asarray(values[VALUE_ATTRS[dtype]], dtype=dtype).reshape(tuple(shape))
    return partial(xp.copyto, out, constant)


define(
    "assign_value",
    " -> Out",
    rows=constant,
    attrs={"shape": (), "dtype": "float32", **dict.fromkeys(VALUE_ATTRS.values(), ())},
    infer=lambda shape, dtype, **_: Meta(tuple(shape), dtype),
    bind=_assign_value_bind,
    folds=True,
)


def _assign_bind(xp: ArrayModule, x, out) -> Call:
    if same_buffer(xp, x, out):
        return in_sequence()
    return partial(xp.copyto, out, x)


def _assign_infer(x: Meta) -> Meta:
    return Meta(x.shape, x.dtype, ARRAY) if x.type == ARRAY else same(x)


def _assign_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    (x,), (out,) = op.input("X"), op.output("Out")
    return [GradOp("assign", {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}, {})]


define(
    "assign",
    "X -> Out",
    rows=by_element(totals=moved),
    infer=_assign_infer,
    bind=_assign_bind,
    inplace={"Out": "X"},
    grad=_assign_grad,
    folds=True,
)


define_with_grad(
    "rnn_memory_helper",
    "X -> Out",
    "Out@GRAD -> X@GRAD",
    rows=by_element(totals=moved),
    infer=same,
    bind=_assign_bind,
    grad_bind=_assign_bind,
)


# -- cast ----------------------------------------------------------------------------------------
def _cast_bind(xp: ArrayModule, x, out, in_dtype: str, out_dtype: str) -> Call:
    return partial(xp.copyto, out, x, casting="unsafe")


def _cast_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    (x,), (out,) = op.input("X"), op.output("Out")
    attrs = {"in_dtype": op.attr("out_dtype"), "out_dtype": op.attr("in_dtype")}
    return [GradOp("cast", {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}, attrs)]


define(
    "cast",
    "X -> Out",
    rows=by_element(),
    attrs={"in_dtype": "float32", "out_dtype": "float32"},
    infer=lambda x, in_dtype, out_dtype: Meta(x.shape, out_dtype),
    bind=_cast_bind,
    grad=_cast_grad,
    folds=True,
)


# -- questions about values ------------------------------------------------------------------------
def _isfinite(xp: ArrayModule, x, out) -> None:
    out[...] = xp.isfinite(x).all()


def _isnan(xp: ArrayModule, x, out) -> None:
    out[...] = xp.isnan(x).any()


def _isinf(xp: ArrayModule, x, out) -> None:
    out[...] = xp.isinf(x).any()


define(
    "isfinite",
    "X -> Out",
    rows=reduces(How.MIN),
    infer=lambda x: Meta((1,), "bool"),
    kernel=_isfinite,
)
define(
    "isnan", "X -> Out", rows=reduces(How.MAX), infer=lambda x: Meta((1,), "bool"), kernel=_isnan
)
define(
    "isinf", "X -> Out", rows=reduces(How.MAX), infer=lambda x: Meta((1,), "bool"), kernel=_isinf
)
