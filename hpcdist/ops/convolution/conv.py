"""Convolutions: conv2d, depthwise_conv2d, and conv2d_transpose, which is the gradient of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row
from hpcdist.ops.algebra.second_derivatives import bilinear
from hpcdist.ops.common import define_with_grad, in_sequence, of_gradients
from hpcdist.ops.convolution.correlate import correlate, correlate_back, correlate_weights
from hpcdist.ops.convolution.windows import (
    Axis,
    Correlation,
    channels_first,
    image_shape,
    in_layout,
    lay_windows,
)
from hpcdist.ops.types import ArrayModule, Call

_ATTRS = {
    "strides": (1, 1),
    "paddings": (0, 0),
    "dilations": (1, 1),
    "groups": 1,
    "padding_algorithm": "EXPLICIT",
    "data_format": "NCHW",
}
_GRAD = "Input, Filter, Output@GRAD -> Input@GRAD?, Filter@GRAD?"


def _windows(
    extents: Sequence[int],
    filters: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    padding_algorithm: str,
) -> tuple[Axis, Axis]:
    return lay_windows(extents, filters[2:], strides, dilations, paddings, padding_algorithm)


def _infer(x: Meta, w: Meta, groups: int, data_format: str, **windows) -> Meta:
    n, channels, *extents = image_shape(x.shape, data_format, "the input of a convolution")
    if len(w.shape) != 4:
        raise GraphError(f"filters must be [filters, channels, rows, columns], got {w.shape}")
    filters, per_group = w.shape[:2]
    if groups < 1 or (channels >= 0 and channels != per_group * groups):
        raise GraphError(
            f"{channels} channels of input {x.shape} ({data_format}) do not fit filters {w.shape} "
            f"in {groups} groups: expected {per_group * groups}"
        )
    if filters % groups:
        raise GraphError(f"{filters} filters cannot be divided into {groups} groups")
    rows, columns = _windows(extents, w.shape, **windows)
    return Meta(in_layout(n, filters, rows.windows, columns.windows, data_format), x.dtype)


def correlation(x, w, groups: int, **windows) -> Correlation:
    """Return the windows of a convolution of x, channels first, with filters w."""
    return Correlation(*_windows(x.shape[2:], w.shape, **windows), groups)


def _bind(xp: ArrayModule, x, w, y, data_format: str, **facts) -> Call:
    x, y = channels_first(x, data_format), channels_first(y, data_format)
    return correlate(xp, correlation(x, w, **facts), x, w, y)


def _grad_bind(xp: ArrayModule, x, w, dy, dx, dw, data_format: str, **facts) -> Call:
    x, dy, dx = (channels_first(array, data_format) for array in (x, dy, dx))
    c = correlation(x, w, **facts)
    steps = [] if dw is None else [correlate_weights(xp, c, x, dy, dw)]
    return in_sequence(*(steps + ([] if dx is None else [correlate_back(xp, c, w, dy, dx)])))


# Filters in a group: with fewer, patches take longer to lay out than to multiply.
_NARROW = 16


def _flops(x, w, y, groups: int, **_) -> int | None:
    if len(w) // groups < _NARROW:
        return None
    return 2 * int(y.size) * math.prod(w.shape[1:])


for _type in ("conv2d", "depthwise_conv2d"):
    define_with_grad(
        _type,
        "Input, Filter -> Output",
        _GRAD,
        rows=by_row("Input"),
        attrs=_ATTRS,
        infer=_infer,
        bind=_bind,
        flops=_flops,
        grad_bind=_grad_bind,
        grad_flops=of_gradients(_flops),
        grad_grad=bilinear(_type, "Input", "Filter", "Output"),
    )


# -- conv2d_transpose: of the convolution whose input is our output ------------------------------
_TRANSPOSE_ATTRS = {**_ATTRS, "output_size": ()}


def _transpose_infer(
    x: Meta,
    w: Meta,
    groups: int,
    data_format: str,
    output_size: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    padding_algorithm: str,
) -> Meta:
    n, channels, *extents = image_shape(x.shape, data_format, "the input of a convolution")
    if len(w.shape) != 4 or (channels >= 0 and channels != w.shape[0]) or channels % groups:
        raise GraphError(
            f"{channels} channels of input {x.shape} ({data_format}) do not fit filters {w.shape} "
            f"in {groups} groups: expected filters [channels, filters / groups, rows, columns]"
        )
    wished: list[int | None] = [*output_size] or [None, None]
    sizes = []
    for i, extent in enumerate(extents):
        if extent < 0:
            sizes.append(-1)
            continue
        before, after, dilation = _transpose_padding(
            i, extent, w.shape, strides, paddings, dilations, padding_algorithm
        )
        least = (extent - 1) * strides[i] - before - after + dilation * (w.shape[2 + i] - 1) + 1
        wish = wished[i]
        size = least if wish is None else wish
        if not least <= size < least + strides[i] or size < 1:
            raise GraphError(
                f"output_size of {('rows', 'columns')[i]} must be {least}.."
                f"{least + strides[i] - 1} and positive, got {size}"
            )
        sizes.append(size)
    return Meta(in_layout(n, w.shape[1] * groups, sizes[0], sizes[1], data_format), x.dtype)


def _transpose_padding(
    i: int,
    extent: int,
    filters: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    padding_algorithm: str,
) -> tuple[int, int, int]:
    """Return padding before and after, and the dilation, along axis i."""
    if padding_algorithm == "VALID":
        return 0, 0, dilations[i]
    if padding_algorithm == "SAME":
        fill = max((-(-extent // strides[i]) - 1) * strides[i] + filters[2 + i] - extent, 0)
        return fill // 2, fill - fill // 2, 1
    if len(paddings) == 4:
        return paddings[2 * i], paddings[2 * i + 1], dilations[i]
    return paddings[i], paddings[i], dilations[i]


def transposed(x, y, w, groups: int, output_size, strides: Sequence[int], **facts) -> Correlation:
    """Return the convolution that leads from an image like y to one like x."""
    axes = []
    for i in range(2):
        before, _, dilation = _transpose_padding(i, x.shape[2 + i], w.shape, strides, **facts)
        windows = x.shape[2 + i]
        axes.append(Axis(y.shape[2 + i], w.shape[2 + i], strides[i], dilation, before, windows))
    return Correlation(axes[0], axes[1], groups)


def _transpose_bind(xp: ArrayModule, x, w, y, data_format: str, **facts) -> Call:
    x, y = channels_first(x, data_format), channels_first(y, data_format)
    return correlate_back(xp, transposed(x, y, w, **facts), w, x, y)


def _transpose_grad_bind(xp: ArrayModule, x, w, dy, dx, dw, data_format: str, **facts) -> Call:
    x, dy, dx = (channels_first(array, data_format) for array in (x, dy, dx))
    c = transposed(x, dy, w, **facts)
    steps = [] if dw is None else [correlate_weights(xp, c, dy, x, dw)]
    return in_sequence(*(steps + ([] if dx is None else [correlate(xp, c, dy, w, dx)])))


def _transpose_flops(x, w, y, **attrs) -> int | None:
    return _flops(y, w, x, **attrs)


for _type in ("conv2d_transpose", "depthwise_conv2d_transpose"):
    define_with_grad(
        _type,
        "Input, Filter -> Output",
        _GRAD,
        rows=by_row("Input"),
        attrs=_TRANSPOSE_ATTRS,
        infer=_transpose_infer,
        bind=_transpose_bind,
        flops=_transpose_flops,
        grad_bind=_transpose_grad_bind,
        grad_flops=of_gradients(_transpose_flops),
        grad_grad=bilinear(_type, "Input", "Filter", "Output"),
    )
