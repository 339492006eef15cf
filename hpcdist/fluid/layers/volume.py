"""Volumes and sampled images, computed by torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.fluid.layers import windows
from hpcdist.fluid.layers.extents import as_extents
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.image import adaptive_pool, convolution, pool, transposed_convolution
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.fluid.layers.windows import Numbers
from hpcdist.graph.variable import Variable

__all__ = [
    "adaptive_pool3d",
    "affine_grid",
    "conv3d",
    "conv3d_transpose",
    "deformable_conv",
    "grid_sampler",
    "pool3d",
]

conv3d = convolution("conv3d", 3, "NCDHW")
conv3d_transpose = transposed_convolution("conv3d_transpose", 3, "NCDHW")
pool3d = pool("pool3d", 3, "NCDHW")
adaptive_pool3d = adaptive_pool("adaptive_pool3d", 3)


# -- grids -----------------------------------------------------------------------------------------
def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """Read images at places [N, H, W, 2] (x, y) between pixels; -1 and 1 are the corners."""
    inputs, helper = {"X": x, "Grid": grid}, LayerHelper("grid_sampler", name)
    return helper.apply("grid_sampler", inputs, slot="Output", dtype=x.dtype)


def affine_grid(
    theta: Variable, out_shape: Variable | Sequence[int], name: str | None = None
) -> Variable:
    """Return places for `grid_sampler`, from 2 x 3 matrices and a shape NCHW.

    Examples:
        >>> theta = fluid.data("theta", [1, 2, 3])
        >>> fluid.layers.affine_grid(theta, out_shape=[1, 3, 8, 8]).shape
        (1, 8, 8, 2)
    """
    helper, attrs = LayerHelper("affine_grid", name), {"output_shape": as_extents(out_shape)}
    return helper.apply("affine_grid", {"Theta": theta}, attrs, slot="Output", dtype=theta.dtype)


def deformable_conv(
    input: Variable,
    offset: Variable,
    mask: Any,
    num_filters: int,
    filter_size: Numbers,
    stride: Numbers = 1,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    modulated: bool = True,
    name: str | None = None,
) -> Variable:
    """Convolve images, each tap moved by ``offset`` (y, x) and, if modulated, times ``mask``.

    input: [n, channels, rows, columns]; offset: [n, 2 * deformable_groups * taps, rows', columns'],
    mask: half as many channels. Returns [n, num_filters, rows', columns'].
    """
    helper = LayerHelper("deformable_conv", name)
    channels, many = input.shape[1], groups or 1
    size = windows.numbers("deformable_conv", "filter_size", filter_size, 2)
    shape = [num_filters, channels // many, *size]
    weight = windows.weights(
        helper, param_attr, shape, input.dtype, windows.he_normal(size, channels)
    )
    attrs = {
        "strides": windows.numbers("deformable_conv", "stride", stride, 2),
        "paddings": windows.numbers("deformable_conv", "padding", padding, 2),
        "dilations": windows.numbers("deformable_conv", "dilation", dilation, 2),
        "groups": many,
        "deformable_groups": deformable_groups or 1,
        "im2col_step": im2col_step or 64,
    }
    inputs: dict[str, Any] = {"Input": input, "Offset": offset, "Filter": weight}
    if modulated:
        inputs["Mask"] = mask
    kind = "deformable_conv" if modulated else "deformable_conv_v1"
    out = helper.apply(kind, inputs, attrs, slot="Output", dtype=input.dtype)
    return windows.with_bias(helper, out, bias_attr, None, 1)
