"""Layers for images: convolutions, pools and normalizations."""

from __future__ import annotations

from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.variable import Variable
from hpcdist.initializer import Constant
from hpcdist.layers import windows
from hpcdist.layers.helper import LayerHelper
from hpcdist.layers.param_attr import ParamAttr
from hpcdist.layers.windows import Numbers, Padding
from hpcdist.ops.windows import LAYOUTS

__all__ = ["adaptive_pool2d", "batch_norm", "conv2d", "conv2d_transpose", "lrn", "pool2d"]

Pair = Numbers  # one number for both axes, or rows and columns


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
    channels, _ = windows.channels_and_extents("conv2d", input, data_format)
    windows.refuse_groups("conv2d", channels, num_filters, 1 if groups is None else groups)
    depthwise = channels == groups and num_filters % channels == 0 and not use_cudnn
    helper = LayerHelper("depthwise_conv2d" if depthwise else "conv2d", name)
    size = windows.numbers("conv2d", "filter_size", filter_size, 2)
    around, algorithm = windows.paddings("conv2d", padding, data_format, 2)
    spread = windows.he_normal(size, channels)
    shape = [num_filters, channels // (groups or 1), *size]
    weight = windows.weights(helper, param_attr, shape, input.dtype, spread)
    attrs = {
        "strides": windows.numbers("conv2d", "stride", stride, 2),
        "paddings": windows.shortened(around),
        "dilations": windows.numbers("conv2d", "dilation", dilation, 2),
        "groups": groups or 1,
        "use_cudnn": use_cudnn,
        "padding_algorithm": algorithm,
        "data_format": data_format,
    }
    return windows.convolved(helper, input, weight, attrs, bias_attr, act)


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
    channels, extents = windows.channels_and_extents("conv2d_transpose", input, data_format)
    many = groups or 1
    windows.refuse_groups("conv2d_transpose", channels, num_filters, many)
    depthwise = channels == groups == num_filters and not use_cudnn
    kind = "depthwise_conv2d_transpose" if depthwise else "conv2d_transpose"
    helper = LayerHelper(kind, name)
    steps, gaps = (
        windows.numbers(kind, "stride", stride, 2),
        windows.numbers(kind, "dilation", dilation, 2),
    )
    around, algorithm = windows.paddings(kind, padding, data_format, 2)
    wish = [] if output_size is None else windows.numbers(kind, "output_size", output_size, 2)
    if filter_size is not None:
        size = windows.numbers(kind, "filter_size", filter_size, 2)
    elif not wish:
        raise GraphError("conv2d_transpose needs a filter_size or an output_size")
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
        "use_cudnn": use_cudnn,
        "data_format": data_format,
    }
    return windows.convolved(helper, input, weight, attrs, bias_attr, act)


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
    windows.one_of("pool2d", "pool_type", pool_type, ("max", "avg"))
    if not global_pooling and pool_size == -1:
        raise GraphError("pool2d: pool_size must be given unless global_pooling=True")
    around, algorithm = windows.paddings("pool2d", pool_padding, data_format, 2)
    if algorithm == "VALID" and ceil_mode:
        raise GraphError('pool2d: ceil_mode must be False with pool_padding "VALID"')
    attrs = {
        "pooling_type": pool_type,
        "ksize": windows.numbers("pool2d", "pool_size", pool_size, 2),
        "global_pooling": global_pooling,
        "strides": windows.numbers("pool2d", "pool_stride", pool_stride, 2),
        "paddings": windows.shortened(around),
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
    windows.one_of("adaptive_pool2d", "pool_type", pool_type, ("max", "avg"))
    if pool_type == "avg" and require_index:
        raise GraphError("adaptive_pool2d: a mean has no index; require_index needs pool_type max")
    size = windows.numbers("adaptive_pool2d", "pool_size", pool_size, 2)
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
    windows.one_of("batch_norm", "data_layout", data_layout, LAYOUTS)
    helper = LayerHelper("batch_norm", name)
    if isinstance(momentum, Variable):
        raise GraphError("batch_norm: momentum must be a number, got a Variable")
    if param_attr is False or bias_attr is False:
        raise GraphError("batch_norm needs scale and bias: param_attr, bias_attr must not be False")
    shape, dtype = [input.shape[1 if data_layout == "NCHW" else -1]], input.dtype
    scale = windows.weights(helper, param_attr, shape, dtype, Constant(1.0))
    bias = helper.create_parameter(bias_attr, shape, dtype, is_bias=True)
    running = []
    for given, start in ((moving_mean_name, 0.0), (moving_variance_name, 1.0)):
        attr = ParamAttr(given, initializer=Constant(start), trainable=False)
        attr.do_model_average = do_model_average_for_mean_and_var
        moment = windows.weights(helper, attr, shape, dtype)
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
