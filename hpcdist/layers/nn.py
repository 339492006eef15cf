"""Layers with weights, and what goes with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.variable import Variable
from hpcdist.layers.helper import LayerHelper


def fc(
    input: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return act(sum of input_i @ weight_i + bias): input.shape[:num_flatten_dims] + [size].

    The dimensions of an input from ``num_flatten_dims`` on count as one. param_attr may be a list,
    one for each input. bias_attr False: no bias.
    """
    helper = LayerHelper("fc", name)
    inputs = list(input) if isinstance(input, (list, tuple)) else [input]
    for x in inputs:
        if not isinstance(x, Variable):
            raise GraphError(f"fc {helper.name!r}: expected a Variable as input, got {x!r}")
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
    """Return exp(input) / sum(exp(input)) over ``axis``; ``use_cudnn`` changes nothing."""
    helper = LayerHelper("softmax", name)
    return helper.apply("softmax", {"X": input}, {"axis": axis}, dtype=input.dtype)
