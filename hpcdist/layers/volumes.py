"""Volumes and sampled images: what torch computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.variable import Variable
from hpcdist.initializer import Normal
from hpcdist.layers.helper import LayerHelper

__all__ = [
    "adaptive_pool3d",
    "affine_grid",
    "conv3d",
    "conv3d_transpose",
    "deformable_conv",
    "grid_sampler",
    "pool3d",
]

Triple = int | Sequence[int]
_FORMATS = ("NCDHW", "NDHWC")


def _numbers(layer: str, what: str, value: Triple, count: int) -> list[int]:
    numbers = [value] * count if isinstance(value, int) else list(value)
    if len(numbers) != count:
        raise GraphError(f"{layer}: {what} must be one integer or {count}, got {value!r}")
    return numbers


def _paddings(layer: str, padding: Any, data_format: str) -> tuple[list[int], str]:
    """Return padding as 3 or 6 numbers, and Fluid's name of how it was given."""
    if isinstance(padding, str):
        algorithm = padding.upper()
        if algorithm not in ("SAME", "VALID"):
            raise GraphError(f"{layer}: padding must be SAME, VALID or numbers, got {padding!r}")
        return [0, 0, 0], algorithm
    given: list[Any] = [padding] * 3 if isinstance(padding, int) else list(padding)
    if len(given) == 5:  # a pair for each dimension
        inner = given[2:] if data_format == "NCDHW" else given[1:4]
        given = [number for pair in inner for number in pair]
    if len(given) not in (3, 6):
        raise GraphError(f"{layer}: padding must be 1, 3 or 6 numbers or 5 pairs, got {padding!r}")
    if len(given) == 6 and given[::2] == given[1::2]:
        given = given[::2]
    return given, "EXPLICIT"


def _channels(layer: str, x: Variable, data_format: str, rank: int = 5) -> int:
    if data_format not in _FORMATS:
        raise GraphError(f"{layer}: data_format must be NCDHW or NDHWC, got {data_format!r}")
    if len(x.shape) != rank:
        raise GraphError(f"{layer}: expected {rank} dimensions, got shape {x.shape}")
    return x.shape[1 if data_format == "NCDHW" else -1]


def _with_bias(helper: LayerHelper, out: Variable, bias_attr: Any, act: Any, axis: int) -> Variable:
    bias = helper.create_parameter(bias_attr, [out.shape[axis]], out.dtype, is_bias=True)
    if bias is not None:
        operands = {"X": out, "Y": bias}
        out = helper.apply("elementwise_add", operands, {"axis": axis}, dtype=out.dtype)
    return helper.activate(out, act)


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
    channels, many = _channels("conv3d", input, data_format), groups or 1
    if channels % many or num_filters % many:
        raise GraphError(f"conv3d: {channels} channels cannot be divided into {many} groups")
    size = _numbers("conv3d", "filter_size", filter_size, 3)
    spread = Normal(0.0, (2.0 / (math.prod(size) * channels)) ** 0.5)
    shape = [num_filters, channels // many, *size]
    weight = helper.create_parameter(param_attr, shape, input.dtype, default_initializer=spread)
    paddings, algorithm = _paddings("conv3d", padding, data_format)
    attrs = {
        "strides": _numbers("conv3d", "stride", stride, 3),
        "paddings": paddings,
        "dilations": _numbers("conv3d", "dilation", dilation, 3),
        "groups": many,
        "padding_algorithm": algorithm,
        "data_format": data_format,
    }
    inputs = {"Input": input, "Filter": weight}
    out = helper.apply("conv3d", inputs, attrs, slot="Output", dtype=input.dtype)
    return _with_bias(helper, out, bias_attr, act, 1 if data_format == "NCDHW" else 4)


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
    channels, many = _channels(kind, input, data_format), groups or 1
    steps, gaps = _numbers(kind, "stride", stride, 3), _numbers(kind, "dilation", dilation, 3)
    paddings, algorithm = _paddings(kind, padding, data_format)
    wish = [] if output_size is None else _numbers(kind, "output_size", output_size, 3)
    if filter_size is not None:
        size = _numbers(kind, "filter_size", filter_size, 3)
    elif not wish:
        raise GraphError("conv3d_transpose needs a filter_size or an output_size")
    else:
        extents = input.shape[2:] if data_format == "NCDHW" else input.shape[1:4]
        both = (
            [2 * p for p in paddings]
            if len(paddings) == 3
            else [a + b for a, b in zip(paddings[::2], paddings[1::2])]
        )
        size = [
            (wish[i] - (extents[i] - 1) * steps[i] + both[i] - 1) // gaps[i] + 1 for i in range(3)
        ]
    weight = helper.create_parameter(
        param_attr, [channels, num_filters // many, *size], input.dtype
    )
    attrs = {
        "output_size": wish,
        "strides": steps,
        "paddings": paddings,
        "padding_algorithm": algorithm,
        "dilations": gaps,
        "groups": many,
        "data_format": data_format,
    }
    inputs = {"Input": input, "Filter": weight}
    out = helper.apply(kind, inputs, attrs, slot="Output", dtype=input.dtype)
    return _with_bias(helper, out, bias_attr, act, 1 if data_format == "NCDHW" else 4)


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
    if pool_type not in ("max", "avg"):
        raise GraphError(f"pool3d: pool_type must be max or avg, got {pool_type!r}")
    if not global_pooling and pool_size == -1:
        raise GraphError("pool3d: pool_size must be given unless global_pooling=True")
    _channels("pool3d", input, data_format)
    paddings, algorithm = _paddings("pool3d", pool_padding, data_format)
    attrs = {
        "pooling_type": pool_type,
        "ksize": _numbers("pool3d", "pool_size", pool_size, 3),
        "global_pooling": global_pooling,
        "strides": _numbers("pool3d", "pool_stride", pool_stride, 3),
        "paddings": paddings,
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
    attrs = {"ksize": _numbers("adaptive_pool3d", "pool_size", pool_size, 3), "adaptive": True}
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
    size = _numbers("deformable_conv", "filter_size", filter_size, 2)
    spread = Normal(0.0, (2.0 / (math.prod(size) * channels)) ** 0.5)
    shape = [num_filters, channels // many, *size]
    weight = helper.create_parameter(param_attr, shape, input.dtype, default_initializer=spread)
    attrs = {
        "strides": _numbers("deformable_conv", "stride", stride, 2),
        "paddings": _numbers("deformable_conv", "padding", padding, 2),
        "dilations": _numbers("deformable_conv", "dilation", dilation, 2),
        "groups": many,
        "deformable_groups": deformable_groups or 1,
        "im2col_step": im2col_step or 64,
    }
    inputs: dict[str, Any] = {"Input": input, "Offset": offset, "Filter": weight}
    if modulated:
        inputs["Mask"] = mask
    kind = "deformable_conv" if modulated else "deformable_conv_v1"
    out = helper.apply(kind, inputs, attrs, slot="Output", dtype=input.dtype)
    return _with_bias(helper, out, bias_attr, None, 1)
