"""Rarer functions of one value, element by element; and two whose parts are channels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row, off_rows
from hpcdist.ops.common import define_with_grad, resolve_axis, same
from hpcdist.ops.elementwise.activation import unary
from hpcdist.ops.elementwise.gelu import erf
from hpcdist.ops.types import ArrayModule, Attrs, DeviceArray


# -- inverse functions, erf ------------------------------------------------------------------------
def _acos_grad(xp: ArrayModule, x, dout, dx) -> None:
    xp.divide(-dout, xp.sqrt(1 - x * x), out=dx)


def _asin_grad(xp: ArrayModule, x, dout, dx) -> None:
    xp.divide(dout, xp.sqrt(1 - x * x), out=dx)


def _atan_grad(xp: ArrayModule, x, dout, dx) -> None:
    xp.divide(dout, 1 + x * x, out=dx)


def _log1p_grad(xp: ArrayModule, x, dout, dx) -> None:
    xp.divide(dout, 1 + x, out=dx)


def _erf(xp: ArrayModule, x, out) -> None:
    out[...] = erf(xp, x)


def _erf_grad(xp: ArrayModule, x, dout, dx) -> None:
    """dx = 2 / sqrt(pi) exp(-x^2) dout."""
    xp.multiply(2 / math.sqrt(math.pi) * xp.exp(-x * x), dout, out=dx)


unary("acos", "arccos", "X", _acos_grad)
unary("asin", "arcsin", "X", _asin_grad)
unary("atan", "arctan", "X", _atan_grad)
unary("log1p", "log1p", "X", _log1p_grad)
unary("erf", _erf, "X", _erf_grad)


# -- cut off ---------------------------------------------------------------------------------------
def _brelu(xp: ArrayModule, x, out, t_min: float, t_max: float) -> None:
    xp.clip(x, t_min, t_max, out=out)


def _brelu_grad(xp: ArrayModule, x, dout, dx, t_min: float, t_max: float) -> None:
    xp.multiply(dout, (x > t_min) & (x < t_max), out=dx)


def _soft_relu(xp: ArrayModule, x, out, threshold: float) -> None:
    """out = log(1 + exp(x)), of an x limited to [-threshold, threshold]."""
    xp.log1p(xp.exp(xp.clip(x, -threshold, threshold)), out=out)


def _soft_relu_grad(xp: ArrayModule, out, dout, dx, threshold: float) -> None:
    # As Fluid: what is compared with the threshold is the result.
    inside = (out > -threshold) & (out < threshold)
    xp.multiply(dout, -xp.expm1(-out) * inside, out=dx)


def _hard_shrink(xp: ArrayModule, x, out, threshold: float) -> None:
    xp.multiply(x, xp.absolute(x) > threshold, out=out)


def _hard_shrink_grad(xp: ArrayModule, x, dout, dx, threshold: float) -> None:
    xp.multiply(dout, xp.absolute(x) > threshold, out=dx)


def _softshrink(xp: ArrayModule, x, out, **attrs: float) -> None:
    xp.multiply(xp.sign(x), xp.maximum(xp.absolute(x) - attrs["lambda"], 0), out=out)


def _softshrink_grad(xp: ArrayModule, x, dout, dx, **attrs: float) -> None:
    xp.multiply(dout, xp.absolute(x) > attrs["lambda"], out=dx)


def _thresholded_relu(xp: ArrayModule, x, out, threshold: float) -> None:
    xp.multiply(x, x > threshold, out=out)


def _thresholded_relu_grad(xp: ArrayModule, x, dout, dx, threshold: float) -> None:
    xp.multiply(dout, x > threshold, out=dx)


unary("brelu", _brelu, "X", _brelu_grad, t_min=0.0, t_max=24.0)
unary("soft_relu", _soft_relu, "Out", _soft_relu_grad, threshold=40.0)
unary("hard_shrink", _hard_shrink, "X", _hard_shrink_grad, threshold=0.5)
_LAMBDA: Attrs = {"lambda": 0.5}  # a word of Python's
unary("softshrink", _softshrink, "X", _softshrink_grad, **_LAMBDA)
unary("thresholded_relu", _thresholded_relu, "X", _thresholded_relu_grad, threshold=1.0)


# -- smooth or hard variants of relu ---------------------------------------------------------------
def _hard_swish(xp: ArrayModule, x, out, threshold: float, scale: float, offset: float) -> None:
    """out = x min(max(x + offset, 0), threshold) / scale."""
    xp.multiply(x, xp.clip(x + offset, 0, threshold) / scale, out=out)


def _hard_swish_grad(
    xp: ArrayModule, x, dout, dx, threshold: float, scale: float, offset: float
) -> None:
    middle = (x + offset > 0) & (x + offset < threshold)
    # As Fluid: one above the middle, whatever threshold / scale is.
    slope = xp.where(middle, (2 * x + offset) / scale, (x + offset >= threshold).astype(x.dtype))
    xp.multiply(dout, slope, out=dx)


def _log_of_one_and_exp(xp: ArrayModule, x, threshold: float) -> DeviceArray:
    """Softplus as mish has it: x above the threshold, exp(x) below its negative."""
    inside = xp.log1p(xp.exp(xp.clip(x, -threshold, threshold)))
    return xp.where(x > threshold, x, xp.where(x < -threshold, xp.exp(xp.minimum(x, 0)), inside))


def _mish(xp: ArrayModule, x, out, threshold: float) -> None:
    """out = x tanh(log(1 + exp(x))) (Misra, 2019)."""
    xp.multiply(x, xp.tanh(_log_of_one_and_exp(xp, x, threshold)), out=out)


def _mish_grad(xp: ArrayModule, x, dout, dx, threshold: float) -> None:
    soft = _log_of_one_and_exp(xp, x, threshold)
    tanh = xp.tanh(soft)
    xp.multiply(dout, tanh + x * (1 - tanh * tanh) * -xp.expm1(-soft), out=dx)


def _selu(xp: ArrayModule, x, out, scale: float, alpha: float) -> None:
    """out = scale x where x > 0, else scale alpha (exp(x) - 1) (Klambauer et al., 2017)."""
    xp.multiply(scale, xp.where(x > 0, x, alpha * xp.expm1(xp.minimum(x, 0))), out=out)


def _selu_grad(xp: ArrayModule, out, dout, dx, scale: float, alpha: float) -> None:
    xp.multiply(dout, xp.where(out > 0, scale, out + scale * alpha), out=dx)


def _stanh(xp: ArrayModule, x, out, scale_a: float, scale_b: float) -> None:
    """out = scale_b tanh(scale_a x)."""
    xp.multiply(scale_b, xp.tanh(scale_a * x), out=out)


def _stanh_grad(xp: ArrayModule, x, dout, dx, scale_a: float, scale_b: float) -> None:
    tanh = xp.tanh(scale_a * x)
    xp.multiply(dout, scale_a * scale_b * (1 - tanh * tanh), out=dx)


def _tanh_shrink(xp: ArrayModule, x, out) -> None:
    xp.subtract(x, xp.tanh(x), out=out)


def _tanh_shrink_grad(xp: ArrayModule, x, dout, dx) -> None:
    xp.multiply(dout, xp.tanh(x) ** 2, out=dx)


SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
unary("hard_swish", _hard_swish, "X", _hard_swish_grad, threshold=6.0, scale=6.0, offset=3.0)
unary("mish", _mish, "X", _mish_grad, threshold=20.0)
unary("selu", _selu, "Out", _selu_grad, scale=SELU_SCALE, alpha=SELU_ALPHA)
unary("stanh", _stanh, "X", _stanh_grad, scale_a=0.67, scale_b=1.7159)
unary("tanh_shrink", _tanh_shrink, "X", _tanh_shrink_grad)


# -- prelu: a slope for all elements, for each channel, or for each element of a sample ------------
def slopes_of(x, alpha, mode: str) -> DeviceArray:
    """View the slopes of prelu as they belong to the elements of x."""
    if mode == "all":
        return alpha.reshape((1,) * x.ndim)
    if mode == "channel":
        return alpha.reshape((1, -1) + (1,) * (x.ndim - 2))
    return alpha.reshape((1, *x.shape[1:]))


def _prelu_infer(x: Meta, alpha: Meta, mode: str) -> Meta:
    expected = {"all": 1, "channel": x.shape[1] if len(x.shape) > 1 else 1}.get(mode)
    if mode not in ("all", "channel", "element"):
        raise GraphError(f"mode must be all, channel or element, got {mode!r}")
    if expected is None:
        expected = Meta(x.shape[1:], x.dtype).size
    if expected >= 0 and alpha.size != expected:
        raise GraphError(f"mode {mode!r} needs {expected} slopes, got {alpha.size}")
    return same(x)


def _prelu(xp: ArrayModule, x, alpha, out, mode: str) -> None:
    out[...] = xp.where(x > 0, x, x * slopes_of(x, alpha, mode))


def _prelu_grad(xp: ArrayModule, x, alpha, dout, dx, dalpha, mode: str) -> None:
    slopes = slopes_of(x, alpha, mode)
    if dx is not None:
        dx[...] = xp.where(x > 0, dout, dout * slopes)
    if dalpha is not None:
        axes = tuple(i for i, extent in enumerate(slopes.shape) if extent == 1)
        part = xp.where(x > 0, 0, dout * x)
        dalpha[...] = part.sum(axes or 0, keepdims=True).reshape(dalpha.shape)


define_with_grad(
    "prelu",
    "X, Alpha -> Out",
    "X, Alpha, Out@GRAD -> X@GRAD?, Alpha@GRAD?",
    rows=by_row("X"),
    attrs={"mode": "all"},
    infer=_prelu_infer,
    kernel=_prelu,
    grad_kernel=_prelu_grad,
)


# -- maxout: the largest of each group of channels -------------------------------------------------
def _grouped(shape: Sequence[int], groups: int, axis: int) -> tuple[int, ...]:
    return (*shape[:axis], shape[axis] // groups, groups, *shape[axis + 1 :])


def _maxout_infer(x: Meta, groups: int, axis: int) -> Meta:
    axis = resolve_axis(axis, len(x.shape))
    if groups < 2 or x.shape[axis] % groups:
        raise GraphError(f"{x.shape[axis]} channels cannot be divided into groups of {groups}")
    return Meta((*x.shape[:axis], x.shape[axis] // groups, *x.shape[axis + 1 :]), x.dtype)


def _maxout(xp: ArrayModule, x, out, groups: int, axis: int) -> None:
    axis %= x.ndim
    xp.amax(x.reshape(_grouped(x.shape, groups, axis)), axis=axis + 1, out=out)


def _maxout_grad(xp: ArrayModule, x, out, dout, dx, groups: int, axis: int) -> None:
    """The gradient goes to the first of the largest."""
    axis %= x.ndim
    grouped = x.reshape(_grouped(x.shape, groups, axis))
    first = xp.expand_dims(grouped.argmax(axis + 1), axis + 1)
    places = xp.arange(groups).reshape((groups,) + (1,) * (x.ndim - axis - 1))
    dx.reshape(grouped.shape)[...] = (places == first) * xp.expand_dims(dout, axis + 1)


define_with_grad(
    "maxout",
    "X -> Out",
    "X, Out, Out@GRAD -> X@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs={"groups": 2, "axis": 1},
    infer=_maxout_infer,
    kernel=_maxout,
    grad_kernel=_maxout_grad,
)
