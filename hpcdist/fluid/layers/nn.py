"""Layers with weights, and what goes with them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import Constant
from hpcdist.fluid.layers.helper import LayerHelper, append, append_all
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.graph.variable import Variable

__all__ = ["cos_sim", "dropout", "fc", "l2_normalize", "layer_norm", "softmax"]


def fc(
    input: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return act(sum of input_i @ weight_i + bias): input.shape[:num_flatten_dims] + [size].

    The dimensions of an input from ``num_flatten_dims`` on count as one. param_attr may be a list,
    one for each input. bias_attr False: no bias.

    Examples:
        >>> x = fluid.data("x", [None, 13])
        >>> fluid.layers.fc(x, size=4, act="relu").shape
        (-1, 4)
    """
    helper = LayerHelper("fc", name)
    inputs: list[Any] = list(input) if isinstance(input, (list, tuple)) else [input]
    attrs = (
        list(param_attr) if isinstance(param_attr, (list, tuple)) else [param_attr] * len(inputs)
    )
    if len(attrs) != len(inputs) or not inputs:
        raise GraphError(
            f"fc {helper.name!r}: {len(attrs)} parameter attributes for {len(inputs)} inputs"
        )
    dtype = inputs[0].dtype
    products = []
    for x, attr in zip(inputs, attrs):
        if num_flatten_dims == -1:
            num_flatten_dims = len(x.shape) - 1
        if not 0 < num_flatten_dims < len(x.shape):
            raise GraphError(
                f"fc {helper.name!r}: num_flatten_dims {num_flatten_dims} must be within "
                f"1..{len(x.shape) - 1} for input {x.name!r} of shape {x.shape}"
            )
        columns = x.shape[num_flatten_dims:]
        rows = -1 if -1 in columns else math.prod(columns)
        weight = helper.create_parameter(attr, [rows, size], dtype)
        if weight is None:
            raise GraphError(f"fc {helper.name!r} needs weights: param_attr must not be False")
        operands = {"X": x, "Y": weight}
        facts = {"x_num_col_dims": num_flatten_dims, "y_num_col_dims": 1}
        products.append(helper.apply("mul", operands, facts, dtype=dtype))
    total = products[0]
    if len(products) > 1:
        total = helper.apply("sum", {"X": products}, dtype=dtype)
    return helper.activate(helper.add_bias(total, bias_attr, num_flatten_dims), act)


def softmax(
    input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1
) -> Variable:
    """Return exp(input) / sum(exp(input)) over ``axis``; ``use_cudnn`` changes nothing.

    input: float32 or float64 of any shape, which is that of the result.

    Examples:
        >>> x = fluid.layers.assign(np.array([[0.0, 0.0]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.softmax(x)])
        [array([[0.5, 0.5]], dtype=float32)]
    """
    return append("softmax", {"X": input}, name, axis=axis)


def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Set elements to 0 with probability ``dropout_prob``, otherwise in every step.

    downgrade_in_infer: testing multiplies by 1 - dropout_prob; upscale_in_train: training divides
    what it keeps by that. With a ``seed``, else with the Program's if it has one, the mask is
    Fluid's for that seed, the same in every step. Without, every step draws another one, which
    follows from the job's seed (HPCDIST_SEED), the name of the result and the number of the step.

    Examples:
        >>> x = fluid.data("x", [None, 64])
        >>> fluid.layers.dropout(x, dropout_prob=0.5).shape
        (-1, 64)
    """
    helper = LayerHelper("dropout", name)
    out = helper.new_var(x.dtype)
    mask = helper.new_var("uint8", stop_gradient=True)
    attrs = {
        "dropout_prob": dropout_prob,
        "is_test": is_test,
        "seed": seed or helper.main_program.random_seed,
        "fix_seed": seed is not None or helper.main_program.random_seed != 0,
        "stream": zlib.crc32(out.name.encode()),
        "dropout_implementation": dropout_implementation,
    }
    helper.append_op("dropout", {"X": x}, {"Out": out, "Mask": mask}, attrs)
    return out


def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Normalize the dimensions from ``begin_norm_axis`` on to mean 0 and variance 1, per row.

    scale, shift: then multiply by a learnt vector (initially 1), add one (initially 0).

    Scale and shift are float32 [product of the normalized extents]. The result has the shape and
    type of input.

    Examples:
        >>> x = fluid.data("x", [None, 64])
        >>> fluid.layers.layer_norm(x).shape
        (-1, 64)
    """
    helper = LayerHelper("layer_norm", name)
    columns = input.shape[begin_norm_axis:]
    width = -1 if -1 in columns else math.prod(columns)
    inputs: dict[str, Any] = {"X": input}
    if scale:
        one = Constant(1.0)
        weight = helper.create_parameter(param_attr, [width], input.dtype, default_initializer=one)
        inputs["Scale"] = _needed(weight, helper, "scale", "param_attr")
    if shift:
        bias = helper.create_parameter(bias_attr, [width], input.dtype, is_bias=True)
        inputs["Bias"] = _needed(bias, helper, "shift", "bias_attr")
    mean = helper.new_var(input.dtype, stop_gradient=True)
    variance = helper.new_var(input.dtype, stop_gradient=True)
    out = helper.new_var(input.dtype)
    outputs = {"Y": out, "Mean": mean, "Variance": variance}
    attrs = {"epsilon": epsilon, "begin_norm_axis": begin_norm_axis}
    helper.append_op("layer_norm", inputs, outputs, attrs)
    return helper.activate(out, act)


def _needed(parameter: Variable | None, helper: LayerHelper, option: str, attr: str) -> Variable:
    if parameter is None:
        raise GraphError(f"layer_norm {helper.name!r}: {attr}=False, but {option}=True needs one")
    return parameter


def l2_normalize(
    x: Variable, axis: int | None, epsilon: float = 1e-12, name: str | None = None
) -> Variable:
    """Return x / sqrt(sum(x^2 over axis) + epsilon).

    x: float32 or float64 of any shape, which is that of the result.

    Examples:
        >>> x = fluid.layers.assign(np.array([[3.0, 4.0]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.l2_normalize(x, axis=1)])
        [array([[0.6, 0.8]], dtype=float32)]
    """
    helper = LayerHelper("l2_normalize", name)
    axis = 0 if len(x.shape) == 1 else 1 if axis is None else axis
    attrs, outputs = {"axis": axis, "epsilon": epsilon}, dict.fromkeys(("Out", "Norm"), x.dtype)
    return helper.apply_all("norm", {"X": x}, outputs, attrs)[0]


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """Return the cosine between rows of X [n, d] and Y [n, d] or [1, d], as [n, 1].

    Examples:
        >>> x = fluid.data("x", [None, 8])
        >>> y = fluid.data("y", [None, 8])
        >>> fluid.layers.cos_sim(x, y).shape
        (-1, 1)
    """
    outputs = dict.fromkeys(("Out", "XNorm", "YNorm"), X.dtype)
    return append_all("cos_sim", {"X": X, "Y": Y}, None, outputs, constant=())[0]
