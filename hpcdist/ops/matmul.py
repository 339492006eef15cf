"""Matrix products: mul (flattening) and its gradient."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.ops.common import grad_by, like_inputs

_MUL_ATTRS = {"x_num_col_dims": 1, "y_num_col_dims": 1}


def _mul_infer(x: Meta, y: Meta, x_num_col_dims: int, y_num_col_dims: int) -> Meta:
    inner_x, inner_y = x.shape[x_num_col_dims:], y.shape[:y_num_col_dims]
    if -1 not in inner_x + inner_y and math.prod(inner_x) != math.prod(inner_y):
        raise GraphError(
            f"cannot multiply {x.shape} by {y.shape}: {math.prod(inner_x)} columns "
            f"(x_num_col_dims={x_num_col_dims}) meet {math.prod(inner_y)} rows"
        )
    return Meta(x.shape[:x_num_col_dims] + y.shape[y_num_col_dims:], x.dtype)


def flat2d(array: Any, columns_from: int) -> Any:
    """View an array as a matrix: dimensions before ``columns_from`` are its rows."""
    return array.reshape(math.prod(array.shape[:columns_from]), -1)


def _mul_bind(
    xp: Any, x: Any, y: Any, out: Any, x_num_col_dims: int, y_num_col_dims: int
) -> Callable[[], Any]:
    x2, y2 = flat2d(x, x_num_col_dims), flat2d(y, y_num_col_dims)
    return functools.partial(xp.dot, x2, y2, out.reshape(x2.shape[0], y2.shape[1]))


def _mul_grad_bind(
    xp: Any, x: Any, y: Any, dout: Any, dx: Any, dy: Any, x_num_col_dims: int, y_num_col_dims: int
) -> Callable[[], Any]:
    x2, y2 = flat2d(x, x_num_col_dims), flat2d(y, y_num_col_dims)
    d2 = dout.reshape(x2.shape[0], y2.shape[1])
    to_y = None if dy is None else functools.partial(xp.dot, x2.T, d2, dy.reshape(y2.shape))
    to_x = None if dx is None else functools.partial(xp.dot, d2, y2.T, dx.reshape(x2.shape))
    if to_x is None or to_y is None:
        return to_x or to_y  # type: ignore[return-value]

    def both() -> None:
        to_x()
        to_y()

    return both


_MUL_GRAD = "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?"
define(
    "mul",
    "X, Y -> Out",
    attrs=_MUL_ATTRS,
    infer=_mul_infer,
    bind=_mul_bind,
    grad=grad_by("mul_grad", _MUL_GRAD),
)
define("mul_grad", _MUL_GRAD, attrs=_MUL_ATTRS, infer=like_inputs(_MUL_GRAD), bind=_mul_grad_bind)
