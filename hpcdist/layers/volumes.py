"""Volumes and sampled images: what torch computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.variable import Variable
from hpcdist.layers import windows
from hpcdist.layers.helper import LayerHelper
from hpcdist.layers.windows import Numbers

__all__ = [
    "adaptive_pool3d",
    "affine_grid",
    "conv3d",
    "conv3d_transpose",
    "deformable_conv",
    "grid_sampler",
    "pool3d",
]

Triple = Numbers


def conv3d(
    input: Variable,
    num_filters: int,
    filter_size: Triple,
    stride: Triple = 1,
    padding: Any = 0,
    dilation: Triple = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Correlate volumes with ``num_filters`` filters and add a bias to each result channel."""
    helper = LayerHelper("conv3d", name)
    channels, _ = windows.channels_and_extents("conv3d", input, data_format, 3)
    many = groups or 1
    windows.refuse_groups("conv3d", channels, num_filters, many)
    size = windows.numbers("conv3d", "filter_size", filter_size, 3)
    shape = [num_filters, channels // many, *size]
    weight = windows.weights(
        helper, param_attr, shape, input.dtype, windows.he_normal(size, channels)
    )
    around, algorithm = windows.paddings("conv3d", padding, data_format, 3)
    attrs = {
        "strides": windows.numbers("conv3d", "stride", stride, 3),
        "paddings": windows.shortened(around),
        "dilations": windows.numbers("conv3d", "dilation", dilation, 3),
        "groups": many,
        "padding_algorithm": algorithm,
        "data_format": data_format,
    }
    return windows.convolved(helper, input, weight, attrs, bias_attr, act)


def conv3d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Triple | None = None,
    filter_size: Triple | None = None,
    padding: Any = 0,
    stride: Triple = 1,
    dilation: Triple = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Apply the gradient of a convolution: volumes grow by ``stride``."""
    kind = "conv3d_transpose"
    helper = LayerHelper(kind, name)
    channels, extents = windows.channels_and_extents(kind, input, data_format, 3)
    many = groups or 1
    windows.refuse_groups(kind, channels, num_filters, many)
    steps, gaps = (
        windows.numbers(kind, "stride", stride, 3),
        windows.numbers(kind, "dilation", dilation, 3),
    )
    around, algorithm = windows.paddings(kind, padding, data_format, 3)
    wish = [] if output_size is None else windows.numbers(kind, "output_size", output_size, 3)
    if filter_size is not None:
        size = windows.numbers(kind, "filter_size", filter_size, 3)
    elif not wish:
        raise GraphError("conv3d_transpose needs a filter_size or an output_size")
    else:
        size = windows.filter_size_for(wish, extents, steps, around, gaps)
    weight = windows.weights(
        helper, param_attr, [channels, num_filters // many, *size], input.dtype
    )
    attrs = {
        "output_size": wish,
        "strides": steps,
        "paddings": windows.shortened(around),
        "padding_algorithm": algorithm,
        "dilations": gaps,
        "groups": many,
        "data_format": data_format,
    }
    return windows.convolved(helper, input, weight, attrs, bias_attr, act)


def pool3d(
    input: Variable,
    pool_size: Triple = -1,
    pool_type: str = "max",
    pool_stride: Triple = 1,
    pool_padding: Any = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCDHW",
) -> Variable:
    """Return the maximum or mean of windows of each channel of volumes."""
    windows.one_of("pool3d", "pool_type", pool_type, ("max", "avg"))
    if not global_pooling and pool_size == -1:
        raise GraphError("pool3d: pool_size must be given unless global_pooling=True")
    windows.channels_and_extents("pool3d", input, data_format, 3)
    around, algorithm = windows.paddings("pool3d", pool_padding, data_format, 3)
    attrs = {
        "pooling_type": pool_type,
        "ksize": windows.numbers("pool3d", "pool_size", pool_size, 3),
        "global_pooling": global_pooling,
        "strides": windows.numbers("pool3d", "pool_stride", pool_stride, 3),
        "paddings": windows.shortened(around),
        "padding_algorithm": algorithm,
        "ceil_mode": ceil_mode,
        "exclusive": exclusive,
        "data_format": data_format,
    }
    return LayerHelper("pool3d", name).apply("pool3d", {"X": input}, attrs, dtype=input.dtype)


def adaptive_pool3d(
    input: Variable,
    pool_size: Triple,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
) -> Any:
    """Divide each channel into ``pool_size`` windows of like size; return maxima or means."""
    if pool_type not in ("max", "avg") or (pool_type == "avg" and require_index):
        raise GraphError("adaptive_pool3d: pool_type is max or avg; require_index needs max")
    attrs = {
        "ksize": windows.numbers("adaptive_pool3d", "pool_size", pool_size, 3),
        "adaptive": True,
    }
    if pool_type == "avg":
        attrs["pooling_type"] = pool_type
        return LayerHelper("pool3d", name).apply("pool3d", {"X": input}, attrs, dtype=input.dtype)
    helper = LayerHelper("max_pool3d_with_index", name)
    out, index = helper.new_var(input.dtype), helper.new_var("int32", stop_gradient=True)
    helper.append_op(helper.layer_type, {"X": input}, {"Out": out, "Mask": index}, attrs)
    return (out, index) if require_index else out


# -- grids -----------------------------------------------------------------------------------------
def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """Read images at places [N, H, W, 2] (x, y) between pixels; -1 and 1 are the corners."""
    inputs, helper = {"X": x, "Grid": grid}, LayerHelper("grid_sampler", name)
    return helper.apply("grid_sampler", inputs, slot="Output", dtype=x.dtype)


def affine_grid(theta: Variable, out_shape: Sequence[int], name: str | None = None) -> Variable:
    """Return places for `grid_sampler`, from 2 x 3 matrices and a shape NCHW."""
    if isinstance(out_shape, Variable):
        raise GraphError("layers.affine_grid: out_shape must be known before the step")
    helper, attrs = LayerHelper("affine_grid", name), {"output_shape": [int(d) for d in out_shape]}
    return helper.apply("affine_grid", {"Theta": theta}, attrs, slot="Output", dtype=theta.dtype)


def deformable_conv(
    input: Variable,
    offset: Variable,
    mask: Any,
    num_filters: int,
    filter_size: Triple,
    stride: Triple = 1,
    padding: Triple = 0,
    dilation: Triple = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    modulated: bool = True,
    name: str | None = None,
) -> Variable:
    """Convolve images, each tap moved by ``offset`` (y, x) and, if modulated, times ``mask``."""
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
