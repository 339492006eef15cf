"""Normalizations of images, by group or instance, of matrices by their norm, of rows by history."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import GraphError
from hpcdist.graph.names import EMPTY, grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.graph.rows import Applied, MixesRows, OfRows, by_row, each_row
from hpcdist.ops.common import Wanted, define_with_grad, fits, same
from hpcdist.ops.formulas import define_by_formulas
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import Array, ArrayModule, DeviceArray, Metas


def _normed_rows(op: Applied) -> dict[str, OfRows]:
    return {"Y": each_row(op, "X")}


def _moments(
    xp: ArrayModule, rows, epsilon: float
) -> tuple[DeviceArray, DeviceArray, DeviceArray, DeviceArray]:
    """Return mean, variance, 1 / deviation and normalized values of the last dimension."""
    mean = rows.mean(-1, keepdims=True)
    variance = ((rows - mean) ** 2).mean(-1, keepdims=True)
    inverse = 1 / xp.sqrt(variance + epsilon)
    return mean, variance, inverse, (rows - mean) * inverse


def _back(slope, normed, inverse) -> DeviceArray:
    """Return the gradient before a normalization, from that after it."""
    means = slope.mean(-1, keepdims=True), (slope * normed).mean(-1, keepdims=True)
    return inverse * (slope - means[0] - normed * means[1])


# -- group_norm (Wu, He, 2018) ---------------------------------------------------------------------
def _first(x, data_layout: str) -> DeviceArray:
    """View images with their channels in dimension 1."""
    return (
        x
        if data_layout == "NCHW" or x is None
        else x.transpose(0, x.ndim - 1, *range(1, x.ndim - 1))
    )


def _group_infer(
    x: Meta, scale: Meta | None, bias: Meta | None, epsilon: float, groups: int, data_layout: str
) -> Metas:
    channels = x.shape[1 if data_layout == "NCHW" else -1]
    if groups < 1 or channels % groups:
        raise GraphError(f"{channels} channels cannot be divided into {groups} groups")
    for slot, each in (("Scale", scale), ("Bias", bias)):
        if each is not None and not fits(each.shape, (channels,)):
            raise GraphError(f"expected {slot} of {channels} channels, got shape {each.shape}")
    per_group = Meta((x.shape[0], groups), x.dtype)
    return same(x), per_group, per_group


def _group_norm(
    xp, x, scale, bias, y, mean, variance, epsilon: float, groups: int, data_layout: str
) -> None:
    """y = scale (x - mean) / sqrt(variance + epsilon) + bias, mean and variance of each group."""
    first = _first(x, data_layout)
    means, variances, _, normed = _moments(xp, first.reshape(first.shape[0], groups, -1), epsilon)
    if mean is not None:
        mean[...] = means[..., 0]
    if variance is not None:
        variance[...] = variances[..., 0]
    y_first, each = normed.reshape(first.shape), (1, -1) + (1,) * (first.ndim - 2)
    if scale is not None:
        y_first = y_first * scale.reshape(each)
    if bias is not None:
        y_first = y_first + bias.reshape(each)
    _first(y, data_layout)[...] = y_first


def _group_norm_grad(
    xp, x, scale, bias, dy, dx, dscale, dbias, epsilon: float, groups: int, data_layout: str
) -> None:
    first, slope = _first(x, data_layout), _first(dy, data_layout)
    grouped = (first.shape[0], groups, -1)
    _, _, inverse, normed = _moments(xp, first.reshape(grouped), epsilon)
    other_axes = (0, *range(2, first.ndim))
    if dbias is not None:
        dbias[...] = slope.sum(other_axes)
    if dscale is not None:
        dscale[...] = (slope * normed.reshape(first.shape)).sum(other_axes)
    if dx is not None:
        if scale is not None:
            slope = slope * scale.reshape((1, -1) + (1,) * (first.ndim - 2))
        dx_first = _back(slope.reshape(grouped), normed, inverse)
        _first(dx, data_layout)[...] = dx_first.reshape(first.shape)


define_with_grad(
    "group_norm",
    "X, Scale?, Bias? -> Y, Mean, Variance",
    "X, Scale?, Bias?, Y@GRAD -> X@GRAD?, Scale@GRAD?, Bias@GRAD?",
    rows=_normed_rows,
    attrs={"epsilon": 1e-5, "groups": 1, "data_layout": "NCHW"},
    infer=_group_infer,
    kernel=_group_norm,
    grad_kernel=_group_norm_grad,
)


# -- instance_norm (Ulyanov et al., 2016): each channel of each image by itself --------------------
def _instance_infer(x: Meta, scale: Meta, bias: Meta, epsilon: float) -> Metas:
    if len(x.shape) < 3:
        raise GraphError(f"an instance norm needs images, got shape {x.shape}")
    each = Meta((Meta(x.shape[:2], x.dtype).size,), x.dtype)
    return same(x), each, each


def _instance_norm(xp: ArrayModule, x, scale, bias, y, mean, variance, epsilon: float) -> None:
    """As group_norm, each channel a group; ``SavedVariance`` is 1 / deviation, as Fluid has it."""
    means, _, inverse, normed = _moments(xp, x.reshape(*x.shape[:2], -1), epsilon)
    if mean is not None:
        mean[...] = means.reshape(-1)
    if variance is not None:
        variance[...] = inverse.reshape(-1)
    y[...] = (normed * scale.reshape(1, -1, 1) + bias.reshape(1, -1, 1)).reshape(x.shape)


def _instance_norm_grad(xp: ArrayModule, x, scale, dy, dx, dscale, dbias, epsilon: float) -> None:
    flat = (*x.shape[:2], -1)
    _, _, inverse, normed = _moments(xp, x.reshape(flat), epsilon)
    slope = dy.reshape(flat)
    if dbias is not None:
        dbias[...] = slope.sum((0, 2))
    if dscale is not None:
        dscale[...] = (slope * normed).sum((0, 2))
    if dx is not None:
        dx[...] = _back(slope * scale.reshape(1, -1, 1), normed, inverse).reshape(x.shape)


def _instance_norm_grad_grad(
    xp: ArrayModule, x, scale, dy, ddx, ddscale, ddbias, dx, dscale, ddy, epsilon: float
) -> None:
    """What gradients of dX, dScale and dBias lead to; one that is not there is None."""
    # n: x normalized, r: 1 / deviation, P(v) = v - mean(v) - n mean(v n), so that
    # dX = s r P(dY), dScale = sum(dY n), dBias = sum(dY). With their gradients g, h and k:
    # of dY: s r P(g) + h n + k; of s: sum(g r P(dY));
    # of x: h r P(dY) - s r (n mean(g r P(dY)) + mean(dY n) r P(g) + mean(g n) r P(dY))
    _, _, inverse, normed = _moments(xp, x.reshape(*x.shape[:2], -1), epsilon)
    slope, each = dy.reshape(normed.shape), (1, -1, 1)
    g = xp.zeros_like(normed) if ddx is None else ddx.reshape(normed.shape)
    h, k = (0 if gradient is None else gradient.reshape(each) for gradient in (ddscale, ddbias))
    s = scale.reshape(each)
    back_of_slope, back_of_g = _back(slope, normed, inverse), _back(g, normed, inverse)
    if ddy is not None:
        ddy[...] = (s * back_of_g + h * normed + k).reshape(x.shape)
    if dscale is not None:
        dscale[...] = (g * back_of_slope).sum((0, 2))
    if dx is not None:
        pairs = ((g, back_of_slope), (slope, normed), (g, normed))
        means = [(a * b).mean(-1, keepdims=True) for a, b in pairs]
        curved = normed * means[0] + back_of_g * means[1] + back_of_slope * means[2]
        dx[...] = (h * back_of_slope - s * inverse * curved).reshape(x.shape)


def _instance_second(op: Operator, wanted: Wanted) -> list[GradOp]:
    """The operator for the gradient of instance_norm's gradient."""
    inputs = dict(op.inputs)
    for slot in ("X", "Scale", "Bias"):
        names = [name for name in op.output(f"{slot}@GRAD") if name != EMPTY]
        inputs |= {f"DD{slot}": [grad_name(name)] for name in names}
    derived = {"DX": op.input("X"), "DScale": op.input("Scale"), "DDY": op.input("Y@GRAD")}
    outputs = {slot: [grad_name(name)] for slot, (name,) in derived.items() if wanted(name)}
    return [GradOp("instance_norm_grad_grad", inputs, outputs, dict(op.attrs))]


define_with_grad(
    "instance_norm",
    "X, Scale, Bias -> Y, SavedMean, SavedVariance",
    "X, Scale, Y@GRAD -> X@GRAD?, Scale@GRAD?, Bias@GRAD?",
    rows=_normed_rows,
    attrs={"epsilon": 1e-5},
    infer=shaped("X: n c ...; Scale: c; Bias: c", _instance_infer),
    kernel=_instance_norm,
    grad_kernel=_instance_norm_grad,
    grad_grad=_instance_second,
    grad_infer=lambda x, scale, dy, epsilon: (same(x), same(scale), same(scale)),
)
define(
    "instance_norm_grad_grad",
    "X, Scale, Y@GRAD, DDX?, DDScale?, DDBias? -> DX?, DScale?, DDY?",
    attrs={"epsilon": 1e-5},
    infer=lambda x, scale, dy, *_, epsilon: (same(x), same(scale), same(x)),
    kernel=_instance_norm_grad_grad,
)


# -- affine_channel: a batch_norm that is no longer trained ----------------------------------------
def _per_channel(value, x, data_layout: str) -> Array:
    rank = x.ndim
    return value.reshape(
        (1, -1) + (1,) * (rank - 2) if data_layout == "NCHW" else (1,) * (rank - 1) + (-1,)
    )


def _affine_channel(xp: ArrayModule, x, scale, bias, data_layout: str) -> Array:
    scale, bias = (_per_channel(v, x, data_layout) for v in (scale, bias))
    return x * scale + bias


def _affine_channel_grad(
    xp: ArrayModule, x, scale, dout, data_layout: str, wanted: Sequence[bool]
) -> tuple[Array, Array, Array]:
    channel = 1 if data_layout == "NCHW" else x.ndim - 1
    other_axes = tuple(i for i in range(x.ndim) if i != channel)
    of_x, of_scale, of_bias = wanted
    return (
        dout * _per_channel(scale, x, data_layout) if of_x else None,
        (dout * x).sum(other_axes) if of_scale else None,
        dout.sum(other_axes) if of_bias else None,
    )


def _affine_infer(x: Meta, scale: Meta, bias: Meta, data_layout: str) -> Meta:
    channels = x.shape[1 if data_layout == "NCHW" else -1]
    if not fits([channels], scale.shape):
        raise GraphError(
            f"affine_channel: {channels} channels need so many scales, got {scale.shape}"
        )
    return same(x)


define_by_formulas(
    "affine_channel",
    "X, Scale, Bias -> Out",
    "X, Scale, Out@GRAD -> X@GRAD?, Scale@GRAD?, Bias@GRAD?",
    _affine_channel,
    _affine_channel_grad,
    grad_wanted=True,
    rows=by_row("X"),
    attrs={"data_layout": "NCHW"},
    infer=shaped("X: ...; Scale: channels; Bias: channels", _affine_infer),
    grad_infer=lambda x, scale, dout, data_layout: (same(x), same(scale), same(scale)),
)


# -- spectral_norm: weights divided by their largest singular value --------------------------------
def _matrix(xp: ArrayModule, weight, dim: int) -> Array:
    return xp.moveaxis(weight, dim, 0).reshape(weight.shape[dim], -1)


def _singular(
    xp: ArrayModule, weight, u, v, dim: int, power_iters: int, eps: float
) -> tuple[Array, Array, Array, Array]:
    """Return the matrix, left and right vector and the value, by power iteration from u and v."""
    matrix = _matrix(xp, weight, dim)
    for _ in range(power_iters):
        v = matrix.T @ u
        v = v / (xp.sqrt((v * v).sum()) + eps)
        u = matrix @ v
        u = u / (xp.sqrt((u * u).sum()) + eps)
    return matrix, u, v, u @ matrix @ v


def _spectral_norm(xp: ArrayModule, weight, u, v, **facts) -> Array:
    return weight / _singular(xp, weight, u, v, **facts)[3]


def _spectral_norm_grad(xp: ArrayModule, weight, u, v, dout, dim: int, **facts) -> Array:
    """The vectors count as constants."""
    matrix, u, v, value = _singular(xp, weight, u, v, dim, **facts)
    slope = _matrix(xp, dout, dim)
    gradient = slope / value - (slope * matrix).sum() / value**2 * xp.outer(u, v)
    return xp.moveaxis(gradient.reshape(xp.moveaxis(weight, dim, 0).shape), 0, dim)


define_by_formulas(
    "spectral_norm",
    "Weight, U, V -> Out",
    "Weight, U, V, Out@GRAD -> Weight@GRAD",
    _spectral_norm,
    _spectral_norm_grad,
    rows=by_row(apart=lambda op: False),
    attrs={"dim": 0, "power_iters": 1, "eps": 1e-12},
    ranges={"power_iters": "at least 0", "eps": "at least 0"},
    infer=lambda weight, u, v, **_: same(weight),
)


# -- data_norm: by what was counted so far of every column -----------------------------------------
NOTHING = 1e-7  # a slot whose first element is nearer to 0 was not shown


def _data_norm_infer(
    scale_w: Meta | None,
    bias: Meta | None,
    x: Meta,
    size: Meta,
    total: Meta,
    squares: Meta,
    slot_dim: int,
    **_,
) -> Metas:
    if len(x.shape) != 2 or (slot_dim > 0 and x.shape[1] % slot_dim):
        raise GraphError(f"rows of {x.shape} do not consist of slots of {slot_dim}")
    return same(x), same(size), same(size)


def _shown(xp: ArrayModule, x, slot_dim: int) -> Array:
    """Return True for the elements of slots that were shown, all of them without ``slot_dim``."""
    if slot_dim <= 0:
        return xp.zeros_like(x) == 0
    slots = x.reshape(len(x), -1, slot_dim)
    shown = (xp.abs(slots[:, :, :1]) >= NOTHING) & (xp.zeros_like(slots) == 0)
    return shown.reshape(x.shape)


def _data_norm(
    xp: ArrayModule,
    scale_w,
    bias,
    x,
    size,
    total,
    squares,
    slot_dim: int,
    enable_scale_and_shift: bool,
    **_,
) -> tuple[Array, Array, Array]:
    """y = (x - total / size) sqrt(size / squares)."""
    mean, scale = total / size, xp.sqrt(size / squares)
    normed = (x - mean) * scale
    if enable_scale_and_shift:
        normed = normed * scale_w + bias
    return xp.where(_shown(xp, x, slot_dim), normed, 0), mean, scale


def _data_norm_grad(
    xp: ArrayModule,
    scale_w,
    bias,
    x,
    means,
    scales,
    dy,
    epsilon: float,
    slot_dim: int,
    enable_scale_and_shift: bool,
    **_,
) -> tuple[Array, ...]:
    """Counts, sums and squares of the batch go back as if they were gradients, as Fluid has it."""
    shown = _shown(xp, x, slot_dim)
    slope, dscale, dbias = dy * shown, None, None
    if enable_scale_and_shift:
        dscale, dbias = (slope * ((x - means) * scales)).sum(0), slope.sum(0)
        slope = slope * scale_w
    count = xp.where(shown, 1.0, xp.zeros_like(x)).sum(0)
    summed, squared = (x * shown).sum(0), (xp.square(x - means) * shown).sum(0)
    if slot_dim > 0:
        some = xp.clip(count, 1, None)
        summed, squared = summed / some, squared / some + (count >= 1) * epsilon
        count = xp.clip(count, None, 1)
    else:
        squared = squared + count * epsilon
    return dscale, dbias, slope * scales, count, summed, squared


def _counts_rows(op: Applied) -> OfRows:
    raise MixesRows("its gradients count the rows of a batch, whatever the loss weighs")


define_by_formulas(
    "data_norm",
    "scale_w?, bias?, X, BatchSize, BatchSum, BatchSquareSum -> Y, Means, Scales",
    "scale_w?, bias?, X, Means, Scales, Y@GRAD -> scale_w@GRAD?, bias@GRAD?, X@GRAD?, "
    "BatchSize@GRAD?, BatchSum@GRAD?, BatchSquareSum@GRAD?",
    _data_norm,
    _data_norm_grad,
    rows=_counts_rows,
    attrs={
        "epsilon": 1e-4,
        "slot_dim": -1,
        "summary_decay_rate": 0.9999999,
        "enable_scale_and_shift": False,
        "sync_stats": False,
        "data_layout": "NCHW",
    },
    infer=shaped(
        "scale_w: c; bias: c; X: ... c; BatchSize: c; BatchSum: c; BatchSquareSum: c",
        _data_norm_infer,
    ),
    grad_infer=lambda w, b, x, means, scales, dy, **_: (
        w,
        b,
        same(x),
        same(means),
        same(means),
        same(means),
    ),
)
