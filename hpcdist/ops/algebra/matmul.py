"""Matrix products: mul, which flattens both sides to matrices, and matmul with batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import flat_product, product_of_matrices
from hpcdist.ops.algebra.second_derivatives import bilinear
from hpcdist.ops.common import define_with_grad, in_sequence, of_gradients
from hpcdist.ops.types import Array, ArrayModule, Call, DeviceArray

_MUL_ATTRS = {"x_num_col_dims": 1, "y_num_col_dims": 1}


def _mul_infer(x: Meta, y: Meta, x_num_col_dims: int, y_num_col_dims: int) -> Meta:
    inner_x, inner_y = x.shape[x_num_col_dims:], y.shape[:y_num_col_dims]
    if not (inner_x and len(y.shape) > y_num_col_dims):
        raise GraphError(
            f"cannot multiply {x.shape} by {y.shape}: x needs more dimensions than x_num_col_dims="
            f"{x_num_col_dims}, y more than y_num_col_dims={y_num_col_dims}"
        )
    if -1 not in inner_x + inner_y and math.prod(inner_x) != math.prod(inner_y):
        raise GraphError(
            f"cannot multiply {x.shape} by {y.shape}: {math.prod(inner_x)} columns "
            f"(x_num_col_dims={x_num_col_dims}) meet {math.prod(inner_y)} rows"
        )
    return Meta(x.shape[:x_num_col_dims] + y.shape[y_num_col_dims:], x.dtype)


def flat2d(array, columns_from: int) -> Array:
    """View an array as a matrix: dimensions before ``columns_from`` are its rows."""
    rows, columns = array.shape[:columns_from], array.shape[columns_from:]
    return array.reshape(math.prod(rows), math.prod(columns))


def _mul_flops(x, y, out, x_num_col_dims: int, **_) -> int:
    return 2 * int(out.size) * math.prod(x.shape[x_num_col_dims:])


def _mul_bind(xp: ArrayModule, x, y, out, x_num_col_dims: int, y_num_col_dims: int) -> Call:
    x2, y2 = flat2d(x, x_num_col_dims), flat2d(y, y_num_col_dims)
    return partial(xp.dot, x2, y2, out.reshape(x2.shape[0], y2.shape[1]))


def _mul_grad_bind(
    xp: ArrayModule, x, y, dout, dx, dy, x_num_col_dims: int, y_num_col_dims: int
) -> Call:
    """dx = dout y^T;  dy = x^T dout."""
    x2, y2 = flat2d(x, x_num_col_dims), flat2d(y, y_num_col_dims)
    d2 = dout.reshape(x2.shape[0], y2.shape[1])
    to_y = None if dy is None else partial(xp.dot, x2.T, d2, dy.reshape(y2.shape))
    to_x = None if dx is None else partial(xp.dot, d2, y2.T, dx.reshape(x2.shape))
    return in_sequence(*(step for step in (to_x, to_y) if step))


_MUL_GRAD = "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?"
define_with_grad(
    "mul",
    "X, Y -> Out",
    _MUL_GRAD,
    rows=flat_product,
    attrs=_MUL_ATTRS,
    infer=_mul_infer,
    bind=_mul_bind,
    flops=_mul_flops,
    grad_bind=_mul_grad_bind,
    grad_flops=of_gradients(_mul_flops),
    grad_grad=bilinear("mul"),
)


# -- matmul ----------------------------------------------------------------------------------------
_MATMUL_ATTRS = {"transpose_X": False, "transpose_Y": False, "alpha": 1.0}


def _matrix_shape(shape: tuple[int, ...], transpose: bool, is_x: bool) -> tuple[int, ...]:
    """Return the shape as the product sees it: a vector is a row on the left, else a column."""
    if len(shape) == 1:
        shape = (1, *shape) if is_x else (*shape, 1)
    return (*shape[:-2], shape[-1], shape[-2]) if transpose else shape


def _matmul_flops(x, y, out, transpose_X: bool, **_) -> int:
    return 2 * int(out.size) * _matrix_shape(x.shape, transpose_X, is_x=True)[-1]


def _batch_shape(x: Sequence[int], y: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + tuple(x), (1,) * (rank - len(y)) + tuple(y)
    if any(a != b and min(a, b) > 1 for a, b in zip(x, y)):
        raise GraphError(f"cannot multiply batches of shapes {x} and {y}")
    return tuple((b if a == 1 else a) if 1 in (a, b) else max(a, b) for a, b in zip(x, y))


def _matmul_infer(x: Meta, y: Meta, transpose_X: bool, transpose_Y: bool, alpha: float) -> Meta:
    a, b = _matrix_shape(x.shape, transpose_X, True), _matrix_shape(y.shape, transpose_Y, False)
    if a[-1] != b[-2] and -1 not in (a[-1], b[-2]):
        raise GraphError(
            f"cannot multiply {x.shape} by {y.shape} (transpose_x={transpose_X}, "
            f"transpose_y={transpose_Y}): {a[-1]} columns meet {b[-2]} rows"
        )
    shape = [*_batch_shape(a[:-2], b[:-2]), a[-2], b[-1]]
    if len(y.shape) == 1 and shape[-1] == 1:
        shape.pop()
        if len(x.shape) == 1 and shape[-1] == 1:
            shape.pop()
    elif len(x.shape) == 1 and shape[-2] == 1:
        shape.pop(-2)
    return Meta(tuple(shape) or (1,), x.dtype)


@dataclass(frozen=True)
class ProductViews:
    """Views with ``out = a @ b``, and how to view other arrays of x's, y's or out's shape so."""

    a_of: Callable[[DeviceArray], DeviceArray]
    b_of: Callable[[DeviceArray], DeviceArray]
    out_of: Callable[[DeviceArray], DeviceArray]


def product_views(x, y, transpose_X: bool, transpose_Y: bool) -> ProductViews:
    """Return how matmul views arrays as matrices; a vector x is a row, a vector y a column."""

    def matrix(array, transpose: bool, is_x: bool) -> DeviceArray:
        if array.ndim == 1:
            array = array.reshape(1, -1) if is_x else array.reshape(-1, 1)
        return array.swapaxes(-1, -2) if transpose else array

    a, b = matrix(x, transpose_X, True), matrix(y, transpose_Y, False)
    rows, columns = a.shape[-2], b.shape[-1]
    if b.ndim == 2 and a.ndim > 2 and not transpose_X:
        # One product over all rows at once instead of one per batch.
        return ProductViews(
            lambda like_x: like_x.reshape(-1, a.shape[-1]),
            lambda like_y: matrix(like_y, transpose_Y, False),
            lambda like_out: like_out.reshape(-1, columns),
        )
    shape = (*_batch_shape(a.shape[:-2], b.shape[:-2]), rows, columns)
    return ProductViews(
        lambda like_x: matrix(like_x, transpose_X, True),
        lambda like_y: matrix(like_y, transpose_Y, False),
        lambda like_out: like_out.reshape(shape),
    )


def _matmul_bind(
    xp: ArrayModule, x, y, out, transpose_X: bool, transpose_Y: bool, alpha: float
) -> Call:
    view = product_views(x, y, transpose_X, transpose_Y)
    return _scaled_product(xp, view.a_of(x), view.b_of(y), view.out_of(out), alpha)


def _scaled_product(xp: ArrayModule, a, b, out, alpha: float) -> Call:
    """Return the call that writes alpha * a @ b, summed over batches that ``out`` lacks."""
    batch = _batch_shape(a.shape[:-2], b.shape[:-2])
    out_batch = (1,) * (len(batch) + 2 - out.ndim) + out.shape[:-2]
    target = out.reshape(*out_batch, *out.shape[-2:]) if len(out_batch) + 2 != out.ndim else out
    if out_batch == batch:
        steps = [partial(xp.matmul, a, b, out=target)]
    else:
        full = xp.empty((*batch, *out.shape[-2:]), out.dtype)
        axes = tuple(i for i, (extent, all_) in enumerate(zip(out_batch, batch)) if extent != all_)
        steps = [
            partial(xp.matmul, a, b, out=full),
            partial(full.sum, axis=axes, out=target, keepdims=True),
        ]
    if alpha != 1:
        steps.append(partial(xp.multiply, out, alpha, out=out))
    return in_sequence(*steps)


def _matmul_grad_bind(
    xp: ArrayModule, x, y, dout, dx, dy, transpose_X: bool, transpose_Y: bool, alpha: float
) -> Call:
    """da = alpha dout b^T;  db = alpha a^T dout, for a and b as the product sees x and y."""
    view = product_views(x, y, transpose_X, transpose_Y)
    a, b, d = view.a_of(x), view.b_of(y), view.out_of(dout)
    steps = []
    if dy is not None:
        steps.append(_scaled_product(xp, a.swapaxes(-1, -2), d, view.b_of(dy), alpha))
    if dx is not None:
        steps.append(_scaled_product(xp, d, b.swapaxes(-1, -2), view.a_of(dx), alpha))
    return in_sequence(*steps)


define_with_grad(
    "matmul",
    "X, Y -> Out",
    _MUL_GRAD,
    rows=product_of_matrices,
    attrs=_MATMUL_ATTRS,
    infer=_matmul_infer,
    bind=_matmul_bind,
    flops=_matmul_flops,
    grad_bind=_matmul_grad_bind,
    grad_flops=of_gradients(_matmul_flops),
    grad_grad=bilinear("matmul"),
)
