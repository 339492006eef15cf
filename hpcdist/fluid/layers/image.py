"""Layers for images: convolutions, pools and normalizations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import Constant
from hpcdist.fluid.layers import windows
from hpcdist.fluid.layers.helper import LayerHelper, append_all, named
from hpcdist.fluid.layers.param_attr import ParamAttr, ParamLike
from hpcdist.fluid.layers.windows import Numbers, Padding
from hpcdist.graph.variable import Variable
from hpcdist.ops.convolution.windows import LAYOUTS

__all__ = ["adaptive_pool2d", "batch_norm", "conv2d", "conv2d_transpose", "lrn", "pool2d"]

Pair = Numbers  # one number for both axes, or rows and columns


def convolution(layer: str, axes: int, layout: str) -> Callable[..., Variable]:
    """Return the layer that convolves over ``axes`` axes."""

    def conv(
        input: Variable,
        num_filters: int,
        filter_size: Numbers,
        stride: Numbers = 1,
        padding: Padding = 0,
        dilation: Numbers = 1,
        groups: int | None = None,
        param_attr: ParamLike = None,
        bias_attr: ParamLike = None,
        use_cudnn: bool = True,
        act: str | None = None,
        name: str | None = None,
        data_format: str = layout,
    ) -> Variable:
        """Correlate images with ``num_filters`` filters and add a bias to each result channel.

        padding: a number, one for each axis, (top, bottom, left, right, ...), a pair for each
        dimension, "SAME" or "VALID". groups: filters see the channels of their group only.
        use_cudnn=False with as many groups as channels makes Fluid's ``depthwise_conv2d``.

        Examples:
            >>> images = fluid.data("images", [None, 3, 32, 32])
            >>> fluid.layers.conv2d(images, num_filters=8, filter_size=3, padding=1).shape
            (-1, 8, 32, 32)
        """
        channels, _ = windows.channels_and_extents(layer, input, data_format, axes)
        windows.refuse_groups(layer, channels, num_filters, 1 if groups is None else groups)
        fits = axes == 2 and channels == groups and num_filters % channels == 0
        helper = LayerHelper(layer if use_cudnn or not fits else f"depthwise_{layer}", name)
        size = windows.numbers(layer, "filter_size", filter_size, axes)
        around, algorithm = windows.paddings(layer, padding, data_format, axes)
        spread = windows.he_normal(size, channels)
        shape = [num_filters, channels // (groups or 1), *size]
        weight = windows.weights(helper, param_attr, shape, input.dtype, spread)
        attrs = {
            "strides": windows.numbers(layer, "stride", stride, axes),
            "paddings": windows.shortened(around),
            "dilations": windows.numbers(layer, "dilation", dilation, axes),
            "groups": groups or 1,
            "use_cudnn": use_cudnn,
            "padding_algorithm": algorithm,
            "data_format": data_format,
        }
        return windows.convolved(helper, input, weight, attrs, bias_attr, act)

    return named(layer, conv)


def transposed_convolution(layer: str, axes: int, layout: str) -> Callable[..., Variable]:
    """Return the layer that applies the gradient of a convolution over ``axes`` axes."""

    def conv(
        input: Variable,
        num_filters: int,
        output_size: Numbers | None = None,
        filter_size: Numbers | None = None,
        padding: Padding = 0,
        stride: Numbers = 1,
        dilation: Numbers = 1,
        groups: int | None = None,
        param_attr: ParamLike = None,
        bias_attr: ParamLike = None,
        use_cudnn: bool = True,
        act: str | None = None,
        name: str | None = None,
        data_format: str = layout,
    ) -> Variable:
        """Apply the gradient of a convolution: images grow by ``stride``.

        Of output_size and filter_size one may be left out; padding is cut from the result.

        Examples:
            >>> images = fluid.data("images", [None, 8, 16, 16])
            >>> fluid.layers.conv2d_transpose(images, 3, filter_size=2, stride=2).shape
            (-1, 3, 32, 32)
        """
        channels, extents = windows.channels_and_extents(layer, input, data_format, axes)
        many = groups or 1
        windows.refuse_groups(layer, channels, num_filters, many)
        depthwise = axes == 2 and channels == groups == num_filters and not use_cudnn
        kind = f"depthwise_{layer}" if depthwise else layer
        helper = LayerHelper(kind, name)
        steps = windows.numbers(kind, "stride", stride, axes)
        gaps = windows.numbers(kind, "dilation", dilation, axes)
        around, algorithm = windows.paddings(kind, padding, data_format, axes)
        wish = (
            [] if output_size is None else windows.numbers(kind, "output_size", output_size, axes)
        )
        if filter_size is not None:
            size = windows.numbers(kind, "filter_size", filter_size, axes)
        elif not wish:
            raise GraphError(f"{layer} needs a filter_size or an output_size")
        else:
            size = windows.filter_size_for(wish, extents, steps, around, gaps)
        shape = [channels, num_filters // many, *size]
        weight = windows.weights(helper, param_attr, shape, input.dtype)
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

    return named(layer, conv)


def pool(layer: str, axes: int, layout: str) -> Callable[..., Variable]:
    """Return the layer of a pool over ``axes`` axes, an operator of that name."""

    def layer_function(
        input: Variable,
        pool_size: Numbers = -1,
        pool_type: str = "max",
        pool_stride: Numbers = 1,
        pool_padding: Padding = 0,
        global_pooling: bool = False,
        use_cudnn: bool = True,
        ceil_mode: bool = False,
        name: str | None = None,
        exclusive: bool = True,
        data_format: str = layout,
    ) -> Variable:
        """Return the maximum or mean of windows of each channel.

        ceil_mode: a last window may reach over the edge. exclusive: a mean counts no padding.
        global_pooling: one window over the whole image. pool_padding: as in ``conv2d``.

        Examples:
            >>> images = fluid.data("images", [None, 8, 32, 32])
            >>> fluid.layers.pool2d(images, pool_size=2, pool_stride=2).shape
            (-1, 8, 16, 16)
        """
        windows.one_of(layer, "pool_type", pool_type, ("max", "avg"))
        if not global_pooling and pool_size == -1:
            raise GraphError(f"{layer}: pool_size must be given unless global_pooling=True")
        if axes == 3:
            windows.channels_and_extents(layer, input, data_format, axes)
        around, algorithm = windows.paddings(layer, pool_padding, data_format, axes)
        if algorithm == "VALID" and ceil_mode:
            raise GraphError(f'{layer}: ceil_mode must be False with pool_padding "VALID"')
        attrs = {
            "pooling_type": pool_type,
            "ksize": windows.numbers(layer, "pool_size", pool_size, axes),
            "global_pooling": global_pooling,
            "strides": windows.numbers(layer, "pool_stride", pool_stride, axes),
            "paddings": windows.shortened(around),
            "padding_algorithm": algorithm,
            "use_cudnn": use_cudnn,
            "ceil_mode": ceil_mode,
            "exclusive": exclusive,
            "data_format": data_format,
        }
        return LayerHelper(layer, name).apply(layer, {"X": input}, attrs, dtype=input.dtype)

    return named(layer, layer_function)


def adaptive_pool(layer: str, axes: int) -> Callable[..., Any]:
    """Return the layer that divides each channel into windows over ``axes`` axes."""

    def layer_function(
        input: Variable,
        pool_size: Numbers,
        pool_type: str = "max",
        require_index: bool = False,
        name: str | None = None,
    ) -> Any:
        """Divide each channel into ``pool_size`` windows of like size; return maxima or means.

        require_index: return also each maximum's place in its image, counted row by row.

        Examples:
            >>> images = fluid.data("images", [None, 8, 30, 20])
            >>> fluid.layers.adaptive_pool2d(images, pool_size=[3, 2], pool_type="avg").shape
            (-1, 8, 3, 2)
        """
        windows.one_of(layer, "pool_type", pool_type, ("max", "avg"))
        if pool_type == "avg" and require_index:
            raise GraphError(f"{layer}: a mean has no index; require_index needs pool_type max")
        size, kind = windows.numbers(layer, "pool_size", pool_size, axes), f"pool{axes}d"
        attrs = {"pooling_type": pool_type, "ksize": size, "adaptive": True}
        if pool_type == "avg":
            return LayerHelper(kind, name).apply(kind, {"X": input}, attrs, dtype=input.dtype)
        outputs, kind = {"Out": input.dtype, "Mask": "int32"}, f"max_{kind}_with_index"
        made = append_all(kind, {"X": input}, attrs, outputs, name, ("Mask",))
        return made if require_index else made[0]

    return named(layer, layer_function)


conv2d = convolution("conv2d", 2, "NCHW")
conv2d_transpose = transposed_convolution("conv2d_transpose", 2, "NCHW")
pool2d = pool("pool2d", 2, "NCHW")
adaptive_pool2d = adaptive_pool("adaptive_pool2d", 2)


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
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

    Examples:
        >>> images = fluid.data("images", [None, 8, 16, 16])
        >>> fluid.layers.batch_norm(images, act="relu").shape
        (-1, 8, 16, 16)
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
    for name_of_moment, start in ((moving_mean_name, 0.0), (moving_variance_name, 1.0)):
        attr = ParamAttr(name_of_moment, initializer=Constant(start), trainable=False)
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
    """Divide each pixel by (k + alpha * squares of the n channels around it) ** beta.

    input: [n, channels, rows, columns], or NHWC, float32 or float64; ``n`` is odd. The result has
    the shape of input.

    Examples:
        >>> images = fluid.data("images", [None, 3, 8, 8])
        >>> fluid.layers.lrn(images).shape
        (-1, 3, 8, 8)
    """
    helper = LayerHelper("lrn", name)
    mid, out = helper.new_var(input.dtype, stop_gradient=True), helper.new_var(input.dtype)
    attrs = {"n": n, "k": k, "alpha": alpha, "beta": beta, "data_format": data_format}
    helper.append_op("lrn", {"X": input}, {"Out": out, "MidOut": mid}, attrs)
    return out
