"""Layers for images: convolutions, pools and normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.variable import Variable
from hpcdist.initializer import Constant, Normal
from hpcdist.layers.helper import LayerHelper
from hpcdist.layers.param_attr import ParamAttr
from hpcdist.ops.windows import LAYOUTS, image_shape

__all__ = ["adaptive_pool2d", "batch_norm", "conv2d", "conv2d_transpose", "lrn", "pool2d"]

Pair = int | Sequence[int]  # one number for both axes, or rows and columns
Padding = int | str | Sequence[Any]


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Pair,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Correlate images with ``num_filters`` filters and add a bias to each result channel.

    padding: a number, one for rows and one for columns, (top, bottom, left, right), a pair for each
    of the four dimensions, "SAME" or "VALID". groups: filters see the channels of their group only.
    use_cudnn=False with as many groups as channels makes Fluid's ``depthwise_conv2d``.
    """
    channels = _channels("conv2d", input, data_format)
    if groups is not None and (groups < 1 or channels % groups):
        raise GraphError(f"conv2d: {channels} channels cannot be divided into {groups} groups")
    depthwise = channels == groups and num_filters % channels == 0 and not use_cudnn
    helper = LayerHelper("depthwise_conv2d" if depthwise else "conv2d", name)
    size = _pair("conv2d", "filter_size", filter_size)
    paddings, algorithm = _paddings("conv2d", padding, data_format)
    # He's variance (2015), but counting all channels, also those of other groups: as Fluid does.
    spread = Normal(0.0, (2.0 / (size[0] * size[1] * channels)) ** 0.5)
    shape = [num_filters, channels // (groups or 1), *size]
    weight = _parameter(helper, param_attr, shape, input.dtype, spread)
    attrs = {
        "strides": _pair("conv2d", "stride", stride),
        "paddings": _shortened(paddings),
        "dilations": _pair("conv2d", "dilation", dilation),
        "groups": groups or 1,
        "use_cudnn": use_cudnn,
        "padding_algorithm": algorithm,
        "data_format": data_format,
    }
    return _convolved(helper, input, weight, attrs, bias_attr, act)


def conv2d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Pair | None = None,
    filter_size: Pair | None = None,
    padding: Padding = 0,
    stride: Pair = 1,
    dilation: Pair = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Apply the gradient of a convolution: images grow by ``stride``.

    Of output_size and filter_size one may be left out; padding is cut from the result.
    """
    channels = _channels("conv2d_transpose", input, data_format)
    many = groups or 1
    if channels % many or num_filters % many:
        raise GraphError(
            f"conv2d_transpose: {channels} channels and {num_filters} filters cannot be divided "
            f"into {many} groups"
        )
    depthwise = channels == groups == num_filters and not use_cudnn
    kind = "depthwise_conv2d_transpose" if depthwise else "conv2d_transpose"
    helper = LayerHelper(kind, name)
    steps, gaps = _pair(kind, "stride", stride), _pair(kind, "dilation", dilation)
    paddings, algorithm = _paddings(kind, padding, data_format)
    wish = [] if output_size is None else _pair(kind, "output_size", output_size)
    if filter_size is not None:
        size = _pair(kind, "filter_size", filter_size)
    elif not wish:
        raise GraphError("conv2d_transpose needs a filter_size or an output_size")
    else:
        extents = image_shape(input.shape, data_format, "the input of conv2d_transpose")[2:]
        size = [
            (wish[i] - (extents[i] - 1) * steps[i] + paddings[2 * i] + paddings[2 * i + 1] - 1)
            // gaps[i]
            + 1
            for i in range(2)
        ]
    weight = _parameter(helper, param_attr, [channels, num_filters // many, *size], input.dtype)
    attrs = {
        "output_size": wish,
        "strides": steps,
        "paddings": _shortened(paddings),
        "padding_algorithm": algorithm,
        "dilations": gaps,
        "groups": many,
        "use_cudnn": use_cudnn,
        "data_format": data_format,
    }
    return _convolved(helper, input, weight, attrs, bias_attr, act)


def pool2d(
    input: Variable,
    pool_size: Pair = -1,
    pool_type: str = "max",
    pool_stride: Pair = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """Return the maximum or mean of windows of each channel.

    ceil_mode: a last window may reach over the edge. exclusive: a mean counts no padding.
    global_pooling: one window over the whole image. pool_padding: as in ``conv2d``.
    """
    _one_of("pool2d", "pool_type", pool_type, ("max", "avg"))
    if not global_pooling and pool_size == -1:
        raise GraphError("pool2d: pool_size must be given unless global_pooling=True")
    paddings, algorithm = _paddings("pool2d", pool_padding, data_format)
    if algorithm == "VALID" and ceil_mode:
        raise GraphError('pool2d: ceil_mode must be False with pool_padding "VALID"')
    attrs = {
        "pooling_type": pool_type,
        "ksize": _pair("pool2d", "pool_size", pool_size),
        "global_pooling": global_pooling,
        "strides": _pair("pool2d", "pool_stride", pool_stride),
        "paddings": _shortened(paddings),
        "padding_algorithm": algorithm,
        "use_cudnn": use_cudnn,
        "ceil_mode": ceil_mode,
        "exclusive": exclusive,
        "data_format": data_format,
    }
    return LayerHelper("pool2d", name).apply("pool2d", {"X": input}, attrs, dtype=input.dtype)


def adaptive_pool2d(
    input: Variable,
    pool_size: Pair,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
) -> Any:
    """Divide each channel into ``pool_size`` windows of like size; return their maxima or means.

    require_index: return also each maximum's place in its image, counted row by row.
    """
    _one_of("adaptive_pool2d", "pool_type", pool_type, ("max", "avg"))
    if pool_type == "avg" and require_index:
        raise GraphError("adaptive_pool2d: a mean has no index; require_index needs pool_type max")
    size = _pair("adaptive_pool2d", "pool_size", pool_size)
    attrs = {"pooling_type": pool_type, "ksize": size, "adaptive": True}
    if pool_type == "avg":
        return LayerHelper("pool2d", name).apply("pool2d", {"X": input}, attrs, dtype=input.dtype)
    helper = LayerHelper("max_pool2d_with_index", name)
    out, index = helper.new_var(input.dtype), helper.new_var("int32", stop_gradient=True)
    outputs = {"Out": out, "Mask": index}
    helper.append_op("max_pool2d_with_index", {"X": input}, outputs, attrs)
    return (out, index) if require_index else out


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Variable:
    """Normalize each channel over the batch to mean 0 and variance 1, then scale and shift it.

    Training moves a running mean and variance by 1 - momentum towards the batch's; a Program
    cloned with for_test=True uses those, as does use_global_stats=True. ``in_place`` changes
    nothing: memory is shared where that is safe.
    """
    _one_of("batch_norm", "data_layout", data_layout, LAYOUTS)
    helper = LayerHelper("batch_norm", name)
    if isinstance(momentum, Variable):
        raise GraphError("batch_norm: momentum must be a number, got a Variable")
    if param_attr is False or bias_attr is False:
        raise GraphError("batch_norm needs scale and bias: param_attr, bias_attr must not be False")
    shape, dtype = [input.shape[1 if data_layout == "NCHW" else -1]], input.dtype
    scale = _parameter(helper, param_attr, shape, dtype, Constant(1.0))
    bias = helper.create_parameter(bias_attr, shape, dtype, is_bias=True)
    running = []
    for given, start in ((moving_mean_name, 0.0), (moving_variance_name, 1.0)):
        attr = ParamAttr(given, initializer=Constant(start), trainable=False)
        attr.do_model_average = do_model_average_for_mean_and_var
        moment = _parameter(helper, attr, shape, dtype)
        moment.stop_gradient = True
        running.append(moment)
    saved = [helper.new_var(dtype, stop_gradient=True) for _ in range(2)]
    out = helper.new_var(dtype)
    inputs = {"X": input, "Scale": scale, "Bias": bias, "Mean": running[0], "Variance": running[1]}
    outputs = {
        "Y": out,
        "MeanOut": running[0],
        "VarianceOut": running[1],
        "SavedMean": saved[0],
        "SavedVariance": saved[1],
    }
    attrs = {
        "momentum": momentum,
        "epsilon": epsilon,
        "is_test": is_test,
        "data_layout": data_layout,
        "use_global_stats": use_global_stats,
    }
    helper.append_op("batch_norm", inputs, outputs, attrs)
    return helper.activate(out, act)


def lrn(
    input: Variable,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Divide each pixel by (k + alpha * squares of the n channels around it) ** beta."""
    helper = LayerHelper("lrn", name)
    mid, out = helper.new_var(input.dtype, stop_gradient=True), helper.new_var(input.dtype)
    attrs = {"n": n, "k": k, "alpha": alpha, "beta": beta, "data_format": data_format}
    helper.append_op("lrn", {"X": input}, {"Out": out, "MidOut": mid}, attrs)
    return out


def _convolved(
    helper: LayerHelper, x: Variable, weight: Any, attrs: Any, bias_attr: Any, act: str | None
) -> Variable:
    inputs, kind = {"Input": x, "Filter": weight}, helper.layer_type
    out = helper.apply(kind, inputs, attrs, slot="Output", dtype=x.dtype)
    axis = 1 if attrs["data_format"] == "NCHW" else 3
    bias = helper.create_parameter(bias_attr, [out.shape[axis]], x.dtype, is_bias=True)
    if bias is not None:
        operands = {"X": out, "Y": bias}
        out = helper.apply("elementwise_add", operands, {"axis": axis}, dtype=x.dtype)
    return helper.activate(out, act)


def _channels(layer: str, x: Variable, data_format: str) -> int:
    channels = image_shape(x.shape, data_format, f"the input of {layer}")[1]
    if channels < 0:
        raise GraphError(
            f"{layer}: the number of channels of {x.name!r} must be known, its shape is {x.shape}"
        )
    return channels


def _parameter(
    helper: LayerHelper, attr: Any, shape: Sequence[int], dtype: Any, initializer: Any = None
) -> Variable:
    parameter = helper.create_parameter(attr, shape, dtype, default_initializer=initializer)
    if parameter is None:
        raise GraphError(f"{helper.layer_type} needs weights: param_attr must not be False")
    return parameter


def _one_of(layer: str, what: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise GraphError(f"{layer}: {what} must be one of {', '.join(choices)}, got {value!r}")


def _pair(layer: str, what: str, value: Pair) -> list[int]:
    pair = [value, value] if isinstance(value, int) else list(value)
    if len(pair) != 2 or not all(isinstance(v, int) for v in pair):
        raise GraphError(f"{layer}: {what} must be one integer or two, got {value!r}")
    return pair


def _paddings(layer: str, padding: Padding, data_format: str) -> tuple[list[int], str]:
    """Return padding as (top, bottom, left, right), and Fluid's name of how it was given."""
    if isinstance(padding, str):
        algorithm = padding.upper()
        _one_of(layer, "padding", algorithm, ("SAME", "VALID"))
        return [0, 0, 0, 0], algorithm
    given: list[Any] = [padding, padding] if isinstance(padding, int) else list(padding)
    if len(given) == 4 and all(isinstance(pair, (list, tuple)) for pair in given):
        inner = slice(2, 4) if data_format == "NCHW" else slice(1, 3)
        outer = given[:2] if data_format == "NCHW" else [given[0], given[3]]
        if any(any(pair) for pair in outer):
            raise GraphError(f"{layer}: batch and channels cannot be padded, got {padding!r}")
        given = [number for pair in given[inner] for number in pair]
    elif len(given) == 2:
        given = [given[0], given[0], given[1], given[1]]
    if len(given) != 4 or not all(isinstance(number, int) for number in given):
        raise GraphError(
            f"{layer}: padding must be one integer, two, four, a pair for each dimension, SAME or "
            f"VALID, got {padding!r}"
        )
    return given, "EXPLICIT"


def _shortened(paddings: list[int]) -> list[int]:
    """Return one number for each axis if both of its sides are padded alike, as Fluid does."""
    top, bottom, left, right = paddings
    return [top, left] if (top, left) == (bottom, right) else paddings
