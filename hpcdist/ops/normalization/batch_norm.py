"""Normalization of each channel over a batch, with running mean and variance for testing."""

from __future__ import annotations

import math
from functools import cache, partial

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Given, GradOp, Meta, define
from hpcdist.graph.rows import SAME, Applied, OfRows, each_row
from hpcdist.ops.common import Wanted, grad_by, in_sequence, like_inputs, same
from hpcdist.ops.convolution.windows import LAYOUTS
from hpcdist.ops.host_loops import compiled
from hpcdist.ops.types import Array, ArrayModule, Call, GradRule, Kernel, Metas, Operands

ATTRS = {
    "momentum": 0.9,
    "epsilon": 1e-5,
    "data_layout": "NCHW",
    "is_test": False,
    "use_global_stats": False,
}


def infer_batch_norm(
    x: Meta,
    scale: Meta,
    bias: Meta,
    mean: Meta,
    variance: Meta,
    momentum: float,
    epsilon: float,
    data_layout: str,
    is_test: bool,
    use_global_stats: bool,
) -> Metas:
    """Return Y as x, and running and saved statistics as ``scale``; GraphError on wrong shapes."""
    if data_layout not in LAYOUTS:
        raise GraphError(f"data_layout must be one of {', '.join(LAYOUTS)}, got {data_layout!r}")
    if not 2 <= len(x.shape) <= 5:
        raise GraphError(f"the input must have 2 to 5 dimensions, got shape {x.shape}")
    channels = x.shape[1 if data_layout == "NCHW" else -1]
    named = {"scale": scale, "bias": bias, "mean": mean, "variance": variance}
    for name, vector in named.items():
        if channels >= 0 and vector.shape != (channels,):
            raise GraphError(
                f"the {name} must be of shape ({channels},) for an input of shape {x.shape} "
                f"({data_layout}), got {vector.shape}"
            )
    if epsilon < 0:
        raise GraphError(f"epsilon must not be negative, got {epsilon}")
    per_channel = Meta(scale.shape, scale.dtype)
    return same(x), per_channel, per_channel, per_channel, per_channel


def as_planes(array, data_layout: str) -> Array:
    """View values as [n, channels, elements of a plane]."""
    if array is None:
        return None
    if data_layout == "NCHW":
        return array.reshape(*array.shape[:2], math.prod(array.shape[2:]))
    inner = array.reshape(array.shape[0], math.prod(array.shape[1:-1]), array.shape[-1])
    return inner.swapaxes(1, 2)


def bind_batch_norm(
    xp: ArrayModule,
    x,
    scale,
    bias,
    mean,
    variance,
    y,
    *moments_out,
    momentum: float,
    epsilon: float,
    data_layout: str,
    is_test: bool,
    use_global_stats: bool,
) -> Call:
    """``moments_out``: MeanOut, VarianceOut, SavedMean and SavedVariance."""
    x3, y3 = as_planes(x, data_layout), as_planes(y, data_layout)
    moments = (mean, variance, *moments_out)
    of_batch = not (is_test or use_global_stats)
    if of_batch and any(moment is None for moment in moments):
        raise GraphError(
            "batch_norm with is_test=False lacks one of its outputs MeanOut, VarianceOut, "
            "SavedMean, SavedVariance: a model that normalizes by its batches has them all"
        )
    if of_batch and x.size == scale.size:  # one element of each channel: as in Fluid, left alone
        return in_sequence(
            partial(xp.copyto, y, x), partial(xp.copyto, moments_out[2], x3.reshape(-1))
        )
    if xp is np:
        numbers = tuple(x.dtype.type(v) for v in (momentum, 1 - momentum, epsilon))
        kernel = "normalize" if data_layout == "NCHW" else "normalize_channels_last"
        if data_layout != "NCHW":
            x3, y3 = x3.swapaxes(1, 2), y3.swapaxes(1, 2)
        return compiled(
            "normalization.batch_norm_kernels",
            kernel,
            x3,
            scale,
            bias,
            y3,
            moments,
            numbers,
            of_batch,
        )
    return partial(_on_device, xp, x3, scale, bias, y3, moments, momentum, epsilon, of_batch)


def _on_device(
    xp: ArrayModule,
    x,
    scale,
    bias,
    y,
    moments: Operands,
    momentum: float,
    epsilon: float,
    of_batch: bool,
) -> None:
    mean, variance, *moments_out = moments
    kernels, number = device_kernels(xp), x.dtype.type
    if of_batch:
        batch_mean = x.mean((0, 2))
        kernels["squares"](x, _channels(batch_mean), y)
        batch_variance = y.mean((0, 2))
    else:
        batch_mean, batch_variance, momentum = mean, variance, 1.0
    numbers = tuple(map(number, (momentum, 1 - momentum, epsilon)))
    kernels["moments"](batch_mean, batch_variance, mean, variance, *moments_out, *numbers)
    kernels["normalize"](x, *map(_channels, (*moments_out[2:], scale, bias)), y)


def _channels(values) -> Array:
    """View one value for each channel as planes."""
    return values.reshape(1, -1, 1)


@cache
def device_kernels(xp) -> dict[str, Kernel]:
    """Return the element-wise computations on a GPU, each as one kernel."""

    def squares(x, mean, out) -> None:
        out[...] = (x - mean) * (x - mean)

    def moments(
        mean,
        variance,
        running_mean,
        running_variance,
        mean_out,
        variance_out,
        saved_mean,
        saved_deviation,
        momentum,
        rest,
        epsilon,
    ) -> None:
        deviation = xp.reciprocal(xp.sqrt(variance + epsilon))
        kept_mean = running_mean * momentum + mean * rest
        kept_variance = running_variance * momentum + variance * rest
        saved_mean[...], saved_deviation[...] = mean, deviation
        mean_out[...], variance_out[...] = kept_mean, kept_variance

    def normalize(x, mean, deviation, scale, bias, y) -> None:
        y[...] = (x - mean) * (scale * deviation) + bias

    def slopes(x, mean, deviation, dy, out) -> None:
        out[...] = dy * ((x - mean) * deviation)

    def scaled(dy, scale, deviation, dx) -> None:
        dx[...] = dy * (scale * deviation)

    def back(x, mean, deviation, scale, dy, dscale, dbias, dx, share) -> None:
        normed = (x - mean) * deviation
        dx[...] = scale * deviation * (dy - dbias * share - normed * (dscale * share))

    return {f.__name__: xp.fuse(f) for f in (squares, moments, normalize, slopes, scaled, back)}


def bind_batch_norm_grad(
    xp: ArrayModule,
    x,
    scale,
    bias,
    saved_mean,
    saved_deviation,
    mean,
    variance,
    dy,
    dx,
    dscale,
    dbias,
    momentum: float,
    epsilon: float,
    data_layout: str,
    is_test: bool,
    use_global_stats: bool,
) -> Call:
    """Return the call that writes the gradients of x, scale and bias that are not None."""
    x3, dy3, dx3 = (as_planes(array, data_layout) for array in (x, dy, dx))
    of_batch = not (is_test or use_global_stats)
    if of_batch and x.size == scale.size:
        steps = [partial(d.fill, 0) for d in (dscale, dbias) if d is not None]
        return in_sequence(*(steps + ([] if dx is None else [partial(xp.copyto, dx, dy)])))
    if xp is np:
        dscale, dbias = (np.empty_like(scale) if d is None else d for d in (dscale, dbias))
        moments = (saved_mean, saved_deviation)
        outputs = (np.empty((0, 0, 0), x.dtype) if dx is None else dx3, dscale, dbias)
        kernel = "normalize_back"
        if data_layout != "NCHW":
            kernel = "normalize_channels_last_back"
            x3, dy3 = x3.swapaxes(1, 2), dy3.swapaxes(1, 2)
            outputs = (outputs[0].swapaxes(1, 2), dscale, dbias)
        return compiled(
            "normalization.batch_norm_kernels", kernel, x3, scale, *moments, dy3, *outputs, of_batch
        )
    return partial(
        _back_on_device,
        *(xp, x3, scale, saved_mean, saved_deviation, dy3, dx3, dscale, dbias, of_batch),
    )


def _back_on_device(
    xp: ArrayModule, x, scale, mean, deviation, dy, dx, dscale, dbias, of_batch: bool
) -> None:
    kernels = device_kernels(xp)
    dscale, dbias = (xp.empty_like(scale) if d is None else d for d in (dscale, dbias))
    products = xp.empty_like(x) if dx is None else dx
    kernels["slopes"](x, _channels(mean), _channels(deviation), dy, products)
    dy.sum((0, 2), None, dbias)
    products.sum((0, 2), None, dscale)
    if dx is None:
        return
    if not of_batch:
        kernels["scaled"](dy, _channels(scale), _channels(deviation), dx)
        return
    # dx = scale / deviation (dy - mean(dy) - normed mean(dy normed)), means over the batch
    share = x.dtype.type(1 / (x.shape[0] * x.shape[2]))
    of_channels = map(_channels, (mean, deviation, scale))
    kernels["back"](x, *of_channels, dy, _channels(dscale), _channels(dbias), dx, share)


FORWARD = "X, Scale, Bias, Mean, Variance -> Y, MeanOut, VarianceOut, SavedMean, SavedVariance"
GRAD = (
    "X, Scale, Bias, SavedMean, SavedVariance, Mean?, Variance?, Y@GRAD"
    " -> X@GRAD?, Scale@GRAD?, Bias@GRAD?"
)


def grad_of(type: str, signature: str) -> GradRule:
    """Return the gradient rule of batch_norm, by an operator of this type and signature."""
    by_batch = grad_by(type, signature.replace("Mean?, Variance?, ", ""))
    by_running = grad_by(type, signature)

    def grad(op: Operator, wanted: Wanted) -> list[GradOp]:
        if op.attrs.get("is_test"):
            raise GraphError(
                f"{op.output('Y')[0]!r} is normalized with is_test=True, which has no gradient; to "
                "train with the running mean and variance, say use_global_stats=True"
            )
        return (by_running if op.attrs.get("use_global_stats") else by_batch)(op, wanted)

    return grad


def normed_rows(op: Applied) -> dict[str, OfRows]:
    """Rows, each normalized by the moments of the whole batch, see `sync_batch_norm`."""
    return {"Y": each_row(op, "X"), "MeanOut": SAME, "VarianceOut": SAME}


define(
    "batch_norm",
    FORWARD.replace(" ->", ", MomentumTensor? ->"),
    rows=normed_rows,
    attrs=ATTRS,
    given={"momentum": Given("MomentumTensor")},
    infer=infer_batch_norm,
    bind=bind_batch_norm,
    grad=grad_of("batch_norm_grad", GRAD),
)
define("batch_norm_grad", GRAD, attrs=ATTRS, infer=like_inputs(GRAD), bind=bind_batch_norm_grad)
