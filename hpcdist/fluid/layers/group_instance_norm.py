"""Normalizations by group, by instance, by spectral norm, and by running statistics."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import Constant, Normal
from hpcdist.fluid.layers.activation import elu, leaky_relu
from hpcdist.fluid.layers.helper import LayerHelper, present
from hpcdist.fluid.layers.image import batch_norm
from hpcdist.fluid.layers.param_attr import ParamAttr, ParamLike
from hpcdist.graph.variable import Variable

__all__ = [
    "affine_channel",
    "data_norm",
    "group_norm",
    "inplace_abn",
    "instance_norm",
    "spectral_norm",
]


def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-5,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    act: str | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Normalize the channels of each group of an image together.

    As in Fluid, they are scaled and shifted only if there are a ``param_attr`` and a ``bias_attr``.

    input: [n, channels, rows, columns], or NHWC; groups must divide the channels. Scale and shift
    are [channels]. The result has the shape of input.

    Examples:
        >>> images = fluid.data("images", [None, 8, 16, 16])
        >>> fluid.layers.group_norm(images, groups=4).shape
        (-1, 8, 16, 16)
    """
    if data_layout not in ("NCHW", "NHWC"):
        raise GraphError(f"layers.group_norm: data_layout must be NCHW or NHWC, got {data_layout}")
    helper = LayerHelper("group_norm", name)
    shape = [input.shape[1 if data_layout == "NCHW" else -1]]
    scale = helper.create_parameter(
        param_attr or False, shape, input.dtype, default_initializer=Constant(1.0)
    )
    bias = helper.create_parameter(bias_attr or False, shape, input.dtype, is_bias=True)
    inputs = present(X=input, Scale=scale, Bias=bias)
    outputs = dict.fromkeys(("Y", *(moments := ("Mean", "Variance"))), input.dtype)
    attrs = {"epsilon": epsilon, "groups": groups, "data_layout": data_layout}
    out, *_ = helper.apply_all("group_norm", inputs, outputs, attrs, constant=moments)
    return helper.activate(out, act)


def instance_norm(
    input: Variable,
    epsilon: float = 1e-5,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    name: str | None = None,
) -> Variable:
    """Normalize each channel of each image by itself, then scale and shift it.

    input: [n, channels, rows, columns]. Scale and shift are [channels]. The result has the shape of
    input.

    Examples:
        >>> images = fluid.data("images", [None, 8, 16, 16])
        >>> fluid.layers.instance_norm(images).shape
        (-1, 8, 16, 16)
    """
    if param_attr is False or bias_attr is False:
        raise GraphError("instance_norm needs scale and bias: their attr must not be False")
    helper = LayerHelper("instance_norm", name)
    shape, dtype = [input.shape[1]], input.dtype
    scale = helper.create_parameter(param_attr, shape, dtype, default_initializer=Constant(1.0))
    bias = helper.create_parameter(bias_attr, shape, dtype, is_bias=True)
    saved = {slot: helper.new_var(dtype, True) for slot in ("SavedMean", "SavedVariance")}
    out = helper.new_var(dtype)
    inputs, attrs = {"X": input, "Scale": scale, "Bias": bias}, {"epsilon": epsilon}
    helper.append_op("instance_norm", inputs, {"Y": out, **saved}, attrs)
    return out


def affine_channel(
    x: Variable,
    scale: Variable | None = None,
    bias: Variable | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: str | None = None,
) -> Variable:
    """Scale and shift each channel.

    x: [n, channels, rows, columns], or NHWC; scale and bias: [channels]. The result has the shape
    of x.

    Examples:
        >>> x = fluid.data("x", [None, 3, 8, 8])
        >>> scale, bias = (fluid.layers.create_parameter([3], "float32") for _ in range(2))
        >>> fluid.layers.affine_channel(x, scale, bias).shape
        (-1, 3, 8, 8)
    """
    if scale is None or bias is None:
        raise GraphError("layers.affine_channel: scale and bias must be given")
    helper = LayerHelper("affine_channel", name)
    inputs = {"X": x, "Scale": scale, "Bias": bias}
    out = helper.apply("affine_channel", inputs, {"data_layout": data_layout}, dtype=x.dtype)
    return helper.activate(out, act)


def inplace_abn(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    act_alpha: float = 1.0,
) -> Variable:
    """Append batch_norm and an activation (None, identity, leaky_relu or elu).

    Memory is shared where that is safe, as everywhere; nothing is recomputed.
    """
    if act not in (None, "identity", "leaky_relu", "elu"):
        raise GraphError(f"inplace_abn: act must be identity, leaky_relu or elu, got {act!r}")
    out = batch_norm(
        input,
        is_test=is_test,
        momentum=momentum,
        epsilon=epsilon,
        param_attr=param_attr,
        bias_attr=bias_attr,
        data_layout=data_layout,
        name=name,
        moving_mean_name=moving_mean_name,
        moving_variance_name=moving_variance_name,
        do_model_average_for_mean_and_var=do_model_average_for_mean_and_var,
        use_global_stats=use_global_stats,
    )
    curves = {"leaky_relu": leaky_relu, "elu": elu}
    return curves[act](out, act_alpha) if act in curves else out


def spectral_norm(
    weight: Variable,
    dim: int = 0,
    power_iters: int = 1,
    eps: float = 1e-12,
    name: str | None = None,
) -> Variable:
    """Divide weights by their largest singular value, found by power iteration.

    ``dim`` becomes the rows of the matrix, all other dimensions its columns.

    Examples:
        >>> weight = fluid.layers.create_parameter([4, 6], "float32")
        >>> fluid.layers.spectral_norm(weight, power_iters=2).shape
        (4, 6)
    """
    helper = LayerHelper("spectral_norm", name)
    rows = weight.shape[dim]
    inputs = {"Weight": weight}
    for slot, size in (("U", rows), ("V", math.prod(weight.shape) // rows)):
        vector = helper.create_parameter(
            ParamAttr(), [size], weight.dtype, default_initializer=Normal(0.0, 1.0)
        )
        assert vector is not None
        vector.stop_gradient = True
        inputs[slot] = vector
    attrs = {"dim": dim, "power_iters": power_iters, "eps": eps}
    return helper.apply("spectral_norm", inputs, attrs, dtype=weight.dtype)


def data_norm(
    input: Variable,
    act: str | None = None,
    epsilon: float = 1e-5,
    param_attr: dict[str, float] | None = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
) -> Variable:
    """Normalize each column by the count, sum and squares that its parameters hold.

    param_attr: a dict of their first values (batch_size 1e4, batch_sum 0, batch_square 1e4,
    scale_w 1, bias 0). What a batch adds to them are their gradients.

    input: [rows, columns]; the three parameters are [columns]. The result has the shape of input.

    Examples:
        >>> x = fluid.data("x", [None, 8])
        >>> fluid.layers.data_norm(x).shape
        (-1, 8)
    """
    helper = LayerHelper("data_norm", name)
    first = param_attr if isinstance(param_attr, dict) else {}
    slots = {
        "BatchSize": ("batch_size", first.get("batch_size", 1e4)),
        "BatchSum": ("batch_sum", first.get("batch_sum", 0.0)),
        "BatchSquareSum": ("batch_square_sum", first.get("batch_square", 1e4)),
    }
    if enable_scale_and_shift:
        scale_slot = {"scale_w": ("scale_w", first.get("scale_w", 1.0))}
        slots = {**scale_slot, "bias": ("bias", first.get("bias", 0.0)), **slots}
    inputs = {"X": input}
    for slot, (suffix, value) in slots.items():
        attr = ParamAttr(f"{name or 'dn'}.{suffix}", initializer=Constant(float(value)))
        parameter = helper.create_parameter(attr, [input.shape[1]], input.dtype)
        assert parameter is not None
        inputs[slot] = parameter
    attrs: dict[str, Any] = {
        "epsilon": epsilon,
        "sync_stats": sync_stats,
        "summary_decay_rate": summary_decay_rate,
    }
    if slot_dim > 0:
        attrs["slot_dim"] = slot_dim
    if enable_scale_and_shift:
        attrs["enable_scale_and_shift"] = True
    outputs = dict.fromkeys(("Y", *(moments := ("Means", "Scales"))), input.dtype)
    out, *_ = helper.apply_all("data_norm", inputs, outputs, attrs, constant=moments)
    return helper.activate(out, act)
