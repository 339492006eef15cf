"""Functions of images: pixels and channels in another order, other sizes, places on grids."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.declare import Sizes
from hpcdist.fluid.compat.paddle2.kinds import Count, Counts
from hpcdist.fluid.layers.extents import as_extents
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.variable import Variable

_MODULE = "paddle.nn.functional"


def _channels_first(where: str, data_format: str) -> None:
    if data_format != "NCHW":
        raise GraphError(
            f"{_MODULE}.{where}: data_format: expected 'NCHW', got {data_format!r}: transpose x"
        )


def pixel_shuffle(
    x: Variable, upscale_factor: Count, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Make r x r pixels of every r^2 channels."""
    _channels_first("pixel_shuffle", data_format)
    return layers.pixel_shuffle(x, upscale_factor)


def channel_shuffle(
    x: Variable, groups: int, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Take channels of all groups in turn."""
    _channels_first("channel_shuffle", data_format)
    return layers.shuffle_channel(x, groups, name)


def temporal_shift(
    x: Variable,
    seg_num: int,
    shift_ratio: float = 0.25,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Shift channels between the frames of videos."""
    _channels_first("temporal_shift", data_format)
    return layers.temporal_shift(x, seg_num, shift_ratio, name)


def pixel_unshuffle(
    x: Variable, downscale_factor: int, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Make r^2 channels of every r x r pixels."""
    _channels_first("pixel_unshuffle", data_format)
    n, (channels, height, width), r = 0, x.shape[1:], downscale_factor
    if height % r or width % r:
        raise GraphError(
            f"{_MODULE}.pixel_unshuffle: downscale_factor: {r} does not divide images of "
            f"{height} x {width}"
        )
    parts = layers.reshape(x, [n, channels, height // r, r, width // r, r])
    turned = layers.transpose(parts, [0, 1, 3, 5, 2, 4])
    return layers.reshape(turned, [n, channels * r * r, height // r, width // r])


def local_response_norm(
    x: Variable,
    size: Count,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Return x / (k + alpha times the mean of squares in ``size`` channels)^beta."""
    if data_format not in ("NCL", "NCHW", "NCDHW") or len(x.shape) < 3:
        raise GraphError(
            f"{_MODULE}.local_response_norm: expected channels first of at least 3 dimensions, got "
            f"{x.shape} and data_format {data_format!r}: transpose x"
        )
    squares = layers.reshape(x * x, [0, 1, x.shape[1], -1])
    around = [0, 0, 0, 0, size // 2, (size - 1) // 2, 0, 0]
    means = layers.pool2d(layers.pad(squares, around), [size, 1], "avg")
    divisors = layers.pow(layers.scale(means, alpha, k), beta)
    return layers.reshape(x / layers.reshape(divisors, [0, *x.shape[1:]]), [0, *x.shape[1:]])


def _pair(value: Any) -> list[int]:
    return [value] * 2 if isinstance(value, int) else list(value)


def fold(
    x: Variable,
    output_sizes: Sizes,
    kernel_sizes: Counts,
    strides: Counts = 1,
    paddings: Any = 0,
    dilations: Counts = 1,
    name: str | None = None,
) -> Variable:
    """Add the columns of windows, [n, channels * window, windows], up to images: undo `unfold`."""
    size, kernel, step, between = map(_pair, (output_sizes, kernel_sizes, strides, dilations))
    around = _pair(paddings) * (
        1 if isinstance(paddings, (list, tuple)) and len(paddings) > 2 else 2
    )
    whole = [size[k] + around[k] + around[k + 2] for k in (0, 1)]
    steps = [(whole[k] - between[k] * (kernel[k] - 1) - 1) // step[k] + 1 for k in (0, 1)]
    window = kernel[0] * kernel[1]
    if len(x.shape) != 3 or x.shape[1] % window or x.shape[2] != steps[0] * steps[1]:
        raise GraphError(
            f"{_MODULE}.fold: x: expected [n, channels * {window}, {steps[0] * steps[1]}] for "
            f"images of {size}, got {x.shape}"
        )
    channels = x.shape[1] // window
    ones = np.tile(np.eye(window, dtype=x.dtype), (channels, 1)).reshape(-1, 1, *kernel)
    columns = layers.reshape(x, [-1, x.shape[1], *steps])
    attrs = {"strides": step, "dilations": between, "paddings": [0, 0], "groups": channels}
    inputs = {"Input": columns, "Filter": layers.assign(ones)}
    images = LayerHelper("fold", name).apply(
        "conv2d_transpose", inputs, attrs, slot="Output", dtype=x.dtype
    )
    behind = [whole[k] - images.shape[k + 2] for k in (0, 1)]  # rows that no window reaches
    images = layers.pad(images, [0, 0, 0, 0, 0, behind[0], 0, behind[1]])
    ends = [around[k] + size[k] for k in (0, 1)]
    return layers.slice(images, [2, 3], around[:2], ends)


# -- other sizes -----------------------------------------------------------------------------------
_FORMATS = {
    "nearest": "NCHW",
    "bilinear": "NCHW",
    "bicubic": "NCHW",
    "linear": "NCW",
    "trilinear": "NCDHW",
}


def interpolate(
    x: Variable,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Resize rows, images or volumes to ``size``, else by ``scale_factor`` (one, or one for each).

    mode: nearest, bilinear, bicubic, linear of rows, trilinear of volumes.
    """
    where = f"{_MODULE}.interpolate"
    if mode.lower() not in _FORMATS:
        raise GraphError(
            f"{where}: mode: expected one of {[*_FORMATS]}, got {mode!r}: 'area' is "
            "adaptive_avg_pool2d"
        )
    mode = mode.lower()
    if (size is None) == (scale_factor is None):
        raise GraphError(f"{where}: give one of size and scale_factor, got {size}, {scale_factor}")
    wanted = _FORMATS[mode]
    if data_format != wanted or len(x.shape) != len(wanted):
        raise GraphError(
            f"{where}: mode {mode!r} resizes {wanted}, got x of shape {x.shape} and data_format "
            f"{data_format!r}: give data_format={wanted!r}, transpose x"
        )
    if align_corners and mode == "nearest":
        raise GraphError(f"{where}: align_corners: False for mode 'nearest', got True")
    if scale_factor is not None:
        size = _scaled(where, x, scale_factor)
    elif not isinstance(size, Variable):
        size = list(size) if isinstance(size, (list, tuple)) else [size] * (len(x.shape) - 2)
    how: dict[str, Any] = {"align_corners": align_corners, "align_mode": align_mode}
    if mode == "linear":
        if isinstance(size, Variable):
            raise GraphError(f"{where}: size: numbers for mode 'linear', got a Variable")
        rows = layers.unsqueeze(x, [2])
        return layers.squeeze(layers.image_resize(rows, [1, *size], name=name, **how), [2])
    return layers.image_resize(x, size, None, name, mode.upper(), data_format=data_format, **how)


def _scaled(where: str, x: Variable, scale: Any) -> list[int]:
    """Return extents that are whole multiples: of others 2.6.2 places pixels by the factor."""
    extents = x.shape[2:]
    if isinstance(scale, Variable):
        raise GraphError(f"{where}: scale_factor: numbers, got a Variable: give size")
    factors = list(scale) if isinstance(scale, (list, tuple)) else [scale] * len(extents)
    if len(factors) != len(extents):
        raise GraphError(f"{where}: scale_factor: {len(extents)} numbers, got {scale!r}")
    sizes = [extent * factor for extent, factor in zip(extents, factors)]
    if min(extents) < 0 or any(size != int(size) or size < 1 for size in sizes):
        raise GraphError(
            f"{where}: scale_factor: {scale!r} times {extents} are not whole numbers: give size"
        )
    return [int(size) for size in sizes]


def upsample(
    x: Variable,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Append `interpolate`; arguments and errors are those of `interpolate`."""
    return interpolate(x, size, scale_factor, mode, align_corners, align_mode, data_format, name)


# -- places on grids -------------------------------------------------------------------------------
def affine_grid(
    theta: Variable, out_shape: Any, align_corners: bool = True, name: str | None = None
) -> Variable:
    """Return places for `grid_sample`, from 2 x 3 matrices and a shape NCHW."""
    attrs = {"output_shape": as_extents(out_shape), "align_corners": align_corners}
    helper = LayerHelper("affine_grid", name)
    return helper.apply("affine_grid", {"Theta": theta}, attrs, slot="Output", dtype=theta.dtype)


def grid_sample(
    x: Variable,
    grid: Variable,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = True,
    name: str | None = None,
) -> Variable:
    """Read images [N, C, H, W] at ``grid`` [N, H', W', 2]: (across, down), each from -1 to 1."""
    for what, given, known in (
        ("mode", mode, ("bilinear", "nearest")),
        ("padding_mode", padding_mode, ("zeros", "border", "reflection")),
    ):
        if given not in known:
            raise GraphError(f"{_MODULE}.grid_sample: {what}: one of {known}, got {given!r}")
    attrs = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    inputs, helper = {"X": x, "Grid": grid}, LayerHelper("grid_sampler", name)
    return helper.apply("grid_sampler", inputs, attrs, slot="Output", dtype=x.dtype)


__all__ = declare.offered(_MODULE, globals())
