"""Values made from nothing or copied: constants, casts, assignments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.graph.names import grad_name
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.ops.common import Wanted, same


def _fill_bind(xp: Any, out: Any, value: float, **_: Any) -> Callable[[], Any]:
    return functools.partial(out.fill, value)


define(
    "fill_constant",
    " -> Out",
    attrs={"shape": (1,), "dtype": "float32", "value": 0.0, "force_cpu": False},
    infer=lambda shape, dtype, **_: Meta(tuple(shape), dtype),
    bind=_fill_bind,
)


# -- cast ----------------------------------------------------------------------------------------
def _cast_bind(xp: Any, x: Any, out: Any, in_dtype: str, out_dtype: str) -> Callable[[], Any]:
    return functools.partial(xp.copyto, out, x, casting="unsafe")


def _cast_grad(op: Any, wanted: Wanted) -> list[GradOp]:
    (x,), (out,) = op.input("X"), op.output("Out")
    attrs = {"in_dtype": op.attr("out_dtype"), "out_dtype": op.attr("in_dtype")}
    return [GradOp("cast", {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}, attrs)]


define(
    "cast",
    "X -> Out",
    attrs={"in_dtype": "float32", "out_dtype": "float32"},
    infer=lambda x, in_dtype, out_dtype: Meta(x.shape, out_dtype),
    bind=_cast_bind,
    grad=_cast_grad,
)
