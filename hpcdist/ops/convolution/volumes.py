"""Volumes and sampled images, by torch: convolutions, pools, grids, deformed convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Given, Meta
from hpcdist.graph.rows import by_row
from hpcdist.ops.algebra.second_derivatives import bilinear
from hpcdist.ops.by_torch import adds_in_order, define_by_torch
from hpcdist.ops.common import open_shape
from hpcdist.ops.types import Array

Pairs = list[tuple[int, int]]


def _first(x, data_format: str) -> Array:
    """View values with their channels in dimension 1."""
    return x.movedim(-1, 1) if data_format.endswith("C") else x


def _last(x, data_format: str) -> Array:
    return x.movedim(1, -1) if data_format.endswith("C") else x


def _around(
    extents: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    padding_algorithm: str,
) -> Pairs:
    """Return the padding before and after each axis."""
    if padding_algorithm == "VALID":
        return [(0, 0)] * len(extents)
    if padding_algorithm == "SAME":
        lacking = [max((-(-e // s) - 1) * s + t - e, 0) for e, t, s in zip(extents, taps, strides)]
        return [(lack // 2, lack - lack // 2) for lack in lacking]
    if len(paddings) == len(extents):
        return [(p, p) for p in paddings]
    return list(zip(paddings[::2], paddings[1::2]))


def _padded(torch, x, pairs: Pairs, value: float = 0.0) -> Array:
    flat = [number for pair in reversed(pairs) for number in pair]
    return torch.nn.functional.pad(x, flat, value=value) if any(flat) else x


# -- convolutions of volumes -----------------------------------------------------------------------
_CONV = {
    "strides": (1, 1, 1),
    "paddings": (0, 0, 0),
    "dilations": (1, 1, 1),
    "groups": 1,
    "padding_algorithm": "EXPLICIT",
    "data_format": "NCDHW",
}


def _laid(
    x,
    w,
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    padding_algorithm: str,
    data_format: str,
) -> tuple[Array, list[int], Pairs]:
    """Return x, channels first, the dilations, and the padding before and after each axis."""
    x = _first(x, data_format)
    dilations = [1] * 3 if padding_algorithm == "SAME" else list(dilations)
    return x, dilations, _around(x.shape[2:], w.shape[2:], strides, paddings, padding_algorithm)


def _conv3d(torch, x, w, strides: Sequence[int], groups: int, data_format: str, **windows) -> Array:
    x, dilations, pairs = _laid(x, w, strides, data_format=data_format, **windows)
    x = _padded(torch, x, pairs)
    y = torch.nn.functional.conv3d(x, w, None, list(strides), 0, dilations, groups)
    return _last(y, data_format)


def _conv3d_transpose(
    torch,
    x,
    w,
    strides: Sequence[int],
    groups: int,
    data_format: str,
    output_size: Sequence[int],
    **windows,
) -> Array:
    x, dilations, pairs = _laid(x, w, strides, data_format=data_format, **windows)
    least = [
        (e - 1) * s - sum(pair) + d * (t - 1) + 1
        for e, s, pair, d, t in zip(x.shape[2:], strides, pairs, dilations, w.shape[2:])
    ]
    wish = list(output_size) or least
    if any(not a <= b < a + s for a, b, s in zip(least, wish, strides)):
        raise GraphError(f"output_size must be {least} or up to a stride more, got {wish}")
    y = torch.nn.functional.conv_transpose3d(
        x, w, None, list(strides), 0, [b - a for a, b in zip(least, wish)], groups, dilations
    )
    # What is padding is cut off, and what the wish is longer is kept.
    for axis, ((before, _), size) in enumerate(zip(pairs, wish), 2):
        y = y.narrow(axis, before, size)
    return _last(y, data_format)


_CONVOLUTIONS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("conv3d", _conv3d, {}),
    ("conv3d_transpose", _conv3d_transpose, {"output_size": ()}),
)
for _type, _function, _more in _CONVOLUTIONS:
    define_by_torch(
        _type,
        "Input, Filter -> Output",
        _function,
        rows=by_row("Input"),
        attrs={**_CONV, **_more},
        wrt=("Input", "Filter"),
        second=bilinear(_type, "Input", "Filter", "Output"),
    )


# -- pools of volumes ------------------------------------------------------------------------------
def _pool3d(
    torch,
    x,
    pooling_type: str,
    ksize: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    padding_algorithm: str,
    global_pooling: bool,
    adaptive: bool,
    ceil_mode: bool,
    exclusive: bool,
    data_format: str,
) -> Array:
    f = torch.nn.functional
    x = _first(x, data_format)
    if global_pooling or adaptive:
        size = list(ksize if not global_pooling else x.shape[2:] if adaptive else (1, 1, 1))
        pool = f.adaptive_max_pool3d if pooling_type == "max" else f.adaptive_avg_pool3d
        return _last(pool(x, size), data_format)
    pairs = _around(x.shape[2:], ksize, strides, paddings, padding_algorithm)
    if ceil_mode:  # a last window may reach over the edge
        windows = [
            (e + sum(pair) - k + s - 1) // s + 1
            for e, pair, k, s in zip(x.shape[2:], pairs, ksize, strides)
        ]
        for n, (before, _), s, e in zip(windows, pairs, strides, x.shape[2:]):
            if (n - 1) * s - before >= e and (exclusive or pooling_type == "max"):
                raise GraphError(
                    f"the last of {n} windows has no element of an extent of {e}: use less padding "
                    "or ceil_mode=False"
                )
        pairs = [
            (a, max(b, (n - 1) * s + k - e - a))
            for (a, b), n, s, k, e in zip(pairs, windows, strides, ksize, x.shape[2:])
        ]
    ksize, strides = list(ksize), list(strides)
    if pooling_type == "max":
        y = f.max_pool3d(_padded(torch, x, pairs, -math.inf), ksize, strides)
        return _last(y, data_format)
    y = f.avg_pool3d(_padded(torch, x, pairs), ksize, strides)
    if exclusive:  # of the elements within the volume
        inside = _padded(torch, torch.ones_like(x[:1, :1]), pairs)
        y = y / f.avg_pool3d(inside, ksize, strides)
    return _last(y, data_format)


define_by_torch(
    "pool3d",
    "X -> Out",
    _pool3d,
    rows=by_row(),
    attrs={
        "pooling_type": "max",
        "ksize": (1, 1, 1),
        "strides": (1, 1, 1),
        "paddings": (0, 0, 0),
        "padding_algorithm": "EXPLICIT",
        "global_pooling": False,
        "adaptive": False,
        "ceil_mode": False,
        "exclusive": True,
        "data_format": "NCDHW",
    },
    wrt=("X",),
    unordered=lambda pooling_type, global_pooling, adaptive, **_: (
        not global_pooling if pooling_type == "avg" else global_pooling or adaptive
    ),
)


def _max_pool3d_with_index(
    torch,
    x,
    ksize: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    global_pooling: bool,
    adaptive: bool,
) -> tuple[Array, Array]:
    f = torch.nn.functional
    if global_pooling or adaptive:
        size = list(ksize if not global_pooling else x.shape[2:] if adaptive else (1, 1, 1))
        y, index = f.adaptive_max_pool3d(x, size, return_indices=True)
    else:
        y, index = f.max_pool3d(x, ksize, strides, paddings, return_indices=True)
    return y, index.to(torch.int32)


define_by_torch(
    "max_pool3d_with_index",
    "X -> Out, Mask",
    _max_pool3d_with_index,
    rows=by_row(),
    attrs={
        "ksize": (1, 1, 1),
        "strides": (1, 1, 1),
        "paddings": (0, 0, 0),
        "global_pooling": False,
        "adaptive": False,
    },
    wrt=("X",),
    unordered=lambda global_pooling, adaptive, **_: global_pooling or adaptive,
)


def _max_unpool3d(
    torch, x, indices, ksize: Sequence[int], strides: Sequence[int], paddings: Sequence[int]
) -> Array:
    return torch.nn.functional.max_unpool3d(x, indices.long(), ksize, strides, paddings)


define_by_torch(
    "unpool3d",
    "X, Indices -> Out",
    _max_unpool3d,
    rows=by_row(),
    attrs={"ksize": (1, 1, 1), "strides": (1, 1, 1), "paddings": (0, 0, 0)},
    wrt=("X",),
)


# -- grids: where in an image each result is taken from --------------------------------------------
def grid_sampler(torch, x, grid, align_corners: bool, mode: str, padding_mode: str) -> Array:
    """Return x[N, C, H, W] read at grid[N, H', W', 2], each (across, down) from -1 to 1.

    -1 and 1 are the centers of pixels in corners, with ``align_corners`` False their outer ends.
    """
    if adds_in_order(torch):  # which the slopes of torch's own function do not
        if (mode, padding_mode) != ("bilinear", "zeros"):
            raise GraphError(
                f"grid_sampler: mode {mode!r} and padding_mode {padding_mode!r} add in no certain "
                "order on a GPU: train on CPUs, or with mode 'bilinear' and padding_mode 'zeros'"
            )
        height, width = x.shape[2:]
        across, down = ((grid.flatten(1, 2) + 1) / 2).unbind(2)
        places = down * (height - 1), across * (width - 1)
        if not align_corners:
            places = down * height - 0.5, across * width - 0.5
        return sampled(torch, x, *places).unflatten(2, grid.shape[1:3])
    sample = torch.nn.functional.grid_sample
    return sample(x, grid, mode, padding_mode, align_corners=align_corners)


def _affine_grid(torch, theta, output_shape: Sequence[int], align_corners: bool) -> Array:
    size = [len(theta), *list(output_shape)[1:]]
    return torch.nn.functional.affine_grid(theta, size, align_corners=align_corners)


def _affine_grid_infer(theta: Meta, output_shape: Sequence[int | None], **_) -> Meta:
    if len(output_shape) != 4:
        raise GraphError(f"affine_grid: expected an output shape NCHW, got {list(output_shape)}")
    return Meta((theta.shape[0], *open_shape(output_shape[2:]), 2), theta.dtype)


define_by_torch(
    "grid_sampler",
    "X, Grid -> Output",
    grid_sampler,
    rows=by_row(),
    attrs={"align_corners": True, "mode": "bilinear", "padding_mode": "zeros"},
    wrt=("X", "Grid"),
)
define_by_torch(
    "affine_grid",
    "Theta, OutputShape? -> Output",
    _affine_grid,
    rows=by_row(),
    attrs={"output_shape": (), "align_corners": True},
    given={"output_shape": Given("OutputShape")},
    infer=_affine_grid_infer,
    wrt=("Theta",),
)


# -- deformable convolution (Dai et al., 2017; with a mask Zhu et al., 2019) -----------------------
def sampled(torch, x, y, across) -> Array:
    """Read images [B, C, H, W] at places [B, P] between pixels; 0 outside."""
    b, c, height, width = x.shape
    flat = x.reshape(b, c, -1)
    top, left = torch.floor(y), torch.floor(across)
    total = None
    for down in (0, 1):
        for right in (0, 1):
            row, column = top + down, left + right
            # Without abs, whose slope is 0 where a place lies on a pixel, as all do at first.
            far_y = row - y if down else y - row
            far_x = column - across if right else across - column
            weight = (1 - far_y) * (1 - far_x)
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            place = torch.where(inside, row * width + column, 0)  # a place may be NaN, too
            index = place.long().unsqueeze(1).expand(-1, c, -1)
            part = flat.gather(2, index) * (weight * inside).unsqueeze(1)
            total = part if total is None else total + part
    return total


def _deformable(
    torch,
    x,
    offset,
    mask,
    w,
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    deformable_groups: int,
    im2col_step: int,
) -> Array:
    n, c = x.shape[:2]
    filters, _, rows, columns = w.shape
    height, width = offset.shape[2:]
    taps, parts = rows * columns, deformable_groups
    facts = {"dtype": x.dtype, "device": x.device}
    grids = []
    for i, (size, count) in enumerate(((height, rows), (width, columns))):
        begin = torch.arange(size, **facts) * strides[i] - paddings[i]
        tap = torch.arange(count, **facts) * dilations[i]
        grids.append((begin, tap))
    base_y = grids[0][1].repeat_interleave(columns).reshape(-1, 1, 1) + grids[0][0].reshape(
        1, -1, 1
    )
    base_x = grids[1][1].repeat(rows).reshape(-1, 1, 1) + grids[1][0].reshape(1, 1, -1)
    moved = offset.reshape(n, parts, taps, 2, height, width)
    y, across = moved[:, :, :, 0] + base_y, moved[:, :, :, 1] + base_x
    # A place a pixel outside counts as far outside, as in Fluid: nothing flows back to it. With
    # padding 1 and offsets of 0 those of the edge lie there.
    y, across = (torch.where(place <= -1, -2, place) for place in (y, across))
    flat = (n * parts, taps * height * width)
    read = sampled(
        torch, x.reshape(n * parts, c // parts, *x.shape[2:]), y.reshape(flat), across.reshape(flat)
    )
    read = read.reshape(n, parts, c // parts, taps, height * width)
    if mask is not None:
        read = read * mask.reshape(n, parts, 1, taps, height * width)
    read = read.reshape(n, groups, c // groups * taps, height * width)
    weights = w.reshape(groups, filters // groups, -1)
    products = torch.einsum("gok,ngkp->ngop", weights, read)
    return products.reshape(n, filters, height, width)


def _deformable_v1(torch, x, offset, w, **facts) -> Array:
    return _deformable(torch, x, offset, None, w, **facts)


_DEFORMABLE = {
    "strides": (1, 1),
    "paddings": (0, 0),
    "dilations": (1, 1),
    "groups": 1,
    "deformable_groups": 1,
    "im2col_step": 64,
}


define_by_torch(
    "deformable_conv",
    "Input, Offset, Mask, Filter -> Output",
    _deformable,
    rows=by_row("Input", "Offset", "Mask"),
    attrs=_DEFORMABLE,
    wrt=("Input", "Offset", "Mask", "Filter"),
)
define_by_torch(
    "deformable_conv_v1",
    "Input, Offset, Filter -> Output",
    _deformable_v1,
    rows=by_row("Input", "Offset", "Mask"),
    attrs=_DEFORMABLE,
    wrt=("Input", "Offset", "Filter"),
)
