"""Normalizations: over trailing dimensions (layer_norm), to unit length (norm), and cosines."""

from __future__ import annotations

from functools import partial

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import Applied, OfRows, by_row, each_row, off_rows
from hpcdist.ops.algebra.matmul import flat2d
from hpcdist.ops.common import define_with_grad, fits, in_sequence, resolve_axis, same
from hpcdist.ops.types import ArrayModule, Call, Metas

# -- layer_norm ----------------------------------------------------------------------------------


def _layer_norm_infer(
    x: Meta, scale: Meta | None, bias: Meta | None, epsilon: float, begin_norm_axis: int
) -> Metas:
    if not 0 < begin_norm_axis < len(x.shape):
        raise GraphError(
            f"begin_norm_axis {begin_norm_axis} must be within 1..{len(x.shape) - 1} for an input "
            f"of shape {x.shape}"
        )
    columns = Meta(x.shape[begin_norm_axis:], x.dtype).size
    for name, vector in (("scale", scale), ("bias", bias)):
        if vector is not None and columns >= 0 and vector.shape != (columns,):
            raise GraphError(f"the {name} must be of shape ({columns},), got {vector.shape}")
    per_row = Meta((Meta(x.shape[:begin_norm_axis], x.dtype).size,), x.dtype)
    return same(x), per_row, per_row


def _layer_norm_bind(
    xp: ArrayModule, x, scale, bias, y, mean, variance, epsilon: float, begin_norm_axis: int
) -> Call:
    """y = scale (x - mean) / sqrt(variance + epsilon) + bias, by row."""
    x2, y2 = flat2d(x, begin_norm_axis), flat2d(y, begin_norm_axis)
    mean1, variance1 = mean.reshape(-1, 1), variance.reshape(-1, 1)
    squares, deviation = xp.empty(x2.shape, x.dtype), xp.empty(mean1.shape, x.dtype)
    steps = [
        partial(x2.mean, 1, None, mean1, True),
        partial(xp.subtract, x2, mean1, y2),
        partial(xp.multiply, y2, y2, squares),
        partial(squares.mean, 1, None, variance1, True),
        partial(xp.add, variance1, epsilon, deviation),
        partial(xp.sqrt, deviation, deviation),
        partial(xp.divide, y2, deviation, y2),
    ]
    if scale is not None:
        steps.append(partial(xp.multiply, y2, scale, y2))
    if bias is not None:
        steps.append(partial(xp.add, y2, bias, y2))
    return in_sequence(*steps)


def _layer_norm_grad_bind(
    xp: ArrayModule,
    x,
    scale,
    bias,
    mean,
    variance,
    dy,
    dx,
    dscale,
    dbias,
    epsilon: float,
    begin_norm_axis: int,
) -> Call:
    x2, dy2 = flat2d(x, begin_norm_axis), flat2d(dy, begin_norm_axis)
    normed, product = xp.empty(x2.shape, x.dtype), xp.empty(x2.shape, x.dtype)
    deviation, per_row = (xp.empty((len(x2), 1), x.dtype) for _ in range(2))
    steps = [
        partial(xp.add, variance.reshape(-1, 1), epsilon, deviation),
        partial(xp.sqrt, deviation, deviation),
        partial(xp.subtract, x2, mean.reshape(-1, 1), normed),
        partial(xp.divide, normed, deviation, normed),
    ]
    if dbias is not None:
        steps.append(partial(dy2.sum, 0, None, dbias))
    if dscale is not None:
        steps.append(partial(xp.multiply, dy2, normed, product))
        steps.append(partial(product.sum, 0, None, dscale))
    if dx is not None:
        dx2 = flat2d(dx, begin_norm_axis)
        g = dy2
        if scale is not None:
            g = xp.empty(x2.shape, x.dtype)
            steps.append(partial(xp.multiply, dy2, scale, g))
        # dx = (g - mean(g) - normed mean(g normed)) / deviation
        steps += [
            partial(xp.multiply, g, normed, product),
            partial(product.mean, 1, None, per_row, True),
            partial(xp.multiply, normed, per_row, product),
            partial(g.mean, 1, None, per_row, True),
            partial(xp.subtract, g, per_row, dx2),
            partial(xp.subtract, dx2, product, dx2),
            partial(xp.divide, dx2, deviation, dx2),
        ]
    return in_sequence(*steps)


_LN_ATTRS = {"epsilon": 1e-5, "begin_norm_axis": 1}


def _normed_rows(op: Applied) -> dict[str, OfRows]:
    return {"Y": each_row(op, "X", apart=lambda op: op.attrs["begin_norm_axis"] > 0)}


define_with_grad(
    "layer_norm",
    "X, Scale?, Bias? -> Y, Mean, Variance",
    "X, Scale?, Bias?, Mean, Variance, Y@GRAD -> X@GRAD?, Scale@GRAD?, Bias@GRAD?",
    rows=_normed_rows,
    attrs=_LN_ATTRS,
    infer=_layer_norm_infer,
    bind=_layer_norm_bind,
    grad_bind=_layer_norm_grad_bind,
)

# -- norm: division by the length along one axis -------------------------------------------------


def _norm_infer(x: Meta, axis: int, epsilon: float) -> Metas:
    axis = resolve_axis(axis, len(x.shape))
    return same(x), Meta((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)


def _norm_bind(xp: ArrayModule, x, out, norm, axis: int, epsilon: float) -> Call:
    """norm = sqrt(sum(x^2) + epsilon);  out = x / norm."""
    return in_sequence(
        partial(xp.multiply, x, x, out),
        partial(out.sum, axis, None, norm, True),
        partial(xp.add, norm, epsilon, norm),
        partial(xp.sqrt, norm, norm),
        partial(xp.divide, x, norm, out),
    )


def _norm_grad_bind(xp: ArrayModule, x, norm, dout, dx, axis: int, epsilon: float) -> Call:
    along, per_row = xp.empty(x.shape, x.dtype), xp.empty(norm.shape, x.dtype)
    # dx = (dout - x sum(x dout) / norm^2) / norm
    return in_sequence(
        partial(xp.multiply, x, dout, along),
        partial(along.sum, axis, None, per_row, True),
        partial(xp.divide, per_row, norm, per_row),
        partial(xp.divide, per_row, norm, per_row),
        partial(xp.multiply, x, per_row, along),
        partial(xp.subtract, dout, along, dx),
        partial(xp.divide, dx, norm, dx),
    )


_NORM_ATTRS = {"axis": 1, "epsilon": 1e-12}
define_with_grad(
    "norm",
    "X -> Out, Norm",
    "X, Norm, Out@GRAD -> X@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs=_NORM_ATTRS,
    infer=_norm_infer,
    bind=_norm_bind,
    grad_infer=same,
    grad_bind=_norm_grad_bind,
)

# -- cos_sim: the cosine between rows ------------------------------------------------------------


def _cos_sim_infer(x: Meta, y: Meta) -> Metas:
    alike = len(x.shape) >= 2 and fits(x.shape[1:], y.shape[1:])
    if not alike or not (y.shape[0] in (1, -1, x.shape[0]) or x.shape[0] == -1):
        raise GraphError(f"cannot compare the rows of {x.shape} with those of {y.shape}")
    per_x, per_y = (Meta((m.shape[0], 1), x.dtype) for m in (x, y))
    return per_x, per_x, per_y


def _length(xp: ArrayModule, rows, product, norm) -> list[Call]:
    return [
        partial(xp.multiply, rows, rows, product),
        partial(product.sum, 1, None, norm, True),
        partial(xp.sqrt, norm, norm),
    ]


SHORTEST = 1e-4  # of a row in a cosine: rows of zeros, behind a relu say, are no NaN


def _cos_sim_bind(xp: ArrayModule, x, y, out, x_norm, y_norm) -> Call:
    """out = sum(x y) / (|x| |y|), by row; a length counts as `SHORTEST` at least, as in Fluid."""
    x2, y2 = flat2d(x, 1), flat2d(y, 1)
    product_x, product_y = xp.empty(x2.shape, x.dtype), xp.empty(y2.shape, x.dtype)
    return in_sequence(
        *_length(xp, x2, product_x, x_norm),
        partial(xp.maximum, x_norm, SHORTEST, out=x_norm),
        *_length(xp, y2, product_y, y_norm),
        partial(xp.maximum, y_norm, SHORTEST, out=y_norm),
        partial(xp.multiply, x2, y2, product_x),
        partial(product_x.sum, 1, None, out, True),
        partial(xp.divide, out, x_norm, out),
        partial(xp.divide, out, y_norm, out),
    )


def _cos_sim_grad(xp: ArrayModule, x, y, out, x_norm, y_norm, dout, dx, dy) -> None:
    """dx = dout (y / (|x| |y|) - out x / |x|^2), and the same for y, summed if y is one row."""
    per_row = dout / (x_norm * y_norm)
    x2, y2 = flat2d(x, 1), flat2d(y, 1)
    if dx is not None:
        dx2 = flat2d(dx, 1)
        xp.multiply(y2, per_row, out=dx2)
        dx2 -= x2 * (dout * out / (x_norm * x_norm))
    if dy is not None:
        full = x2 * per_row - y2 * (dout * out / (y_norm * y_norm))
        dy2 = flat2d(dy, 1)
        if len(dy2) == len(full):
            dy2[...] = full
        else:
            full.sum(0, None, dy2, True)


def _compared_rows(op: Applied) -> OfRows:
    """Y has a row for each of X, or one for all of them."""
    one = op.inputs["Y"][0].shape[0] == 1
    return each_row(op, "X") if one else each_row(op)


define_with_grad(
    "cos_sim",
    "X, Y -> Out, XNorm, YNorm",
    "X, Y, Out, XNorm, YNorm, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=_compared_rows,
    infer=_cos_sim_infer,
    bind=_cos_sim_bind,
    grad_kernel=_cos_sim_grad,
)
