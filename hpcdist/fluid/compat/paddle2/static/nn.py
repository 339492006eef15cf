"""``paddle.static.nn``: layers with parameters, and those of sequences and control flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2.sparse_table import sparse_embedding  # noqa: F401
from hpcdist.fluid.compat.public_names import public
from hpcdist.fluid.layers.embedding import embedding_v2 as embedding  # noqa: F401
from hpcdist.graph.variable import Variable

_OF_FLUID = [
    "batch_norm", "bilinear_tensor_product", "case", "cond", "continuous_value_model", "conv2d",
    "conv2d_transpose", "conv3d", "conv3d_transpose", "create_parameter", "data_norm",
    "group_norm", "instance_norm", "layer_norm", "nce", "py_func", "row_conv", "sequence_concat",
    "sequence_conv", "sequence_enumerate", "sequence_expand", "sequence_expand_as",
    "sequence_first_step", "sequence_last_step", "sequence_pad", "sequence_pool",
    "sequence_reshape", "sequence_reverse", "sequence_scatter", "sequence_slice",
    "sequence_softmax", "sequence_unpad", "spectral_norm", "switch_case", "while_loop",
]  # fmt: skip
globals().update({name: getattr(layers, name) for name in _OF_FLUID})


def prelu(
    x: Variable,
    mode: str,
    param_attr: Any = None,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Return x where positive, learned slopes times x elsewhere: Fluid's, of channels in front."""
    if data_format not in ("NC", "NCL", "NCHW", "NCDHW") and mode == "channel":
        raise GraphError(
            f"paddle.static.nn.prelu: data_format: expected channels in front ('NCHW'), got "
            f"{data_format!r}: transpose x"
        )
    return layers.prelu(x, mode, param_attr, name)


def deform_conv2d(
    x: Variable,
    offset: Variable,
    mask: Variable | None,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    deformable_groups: int = 1,
    im2col_step: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Variable:
    """Return Fluid's ``deformable_conv``, modulated if there is a ``mask``."""
    windows = num_filters, filter_size, stride, padding, dilation, groups, deformable_groups
    more = im2col_step, weight_attr, bias_attr, mask is not None, name
    return layers.deformable_conv(x, offset, mask, *windows, *more)


def fc(
    x: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    weight_attr: Any = None,
    bias_attr: Any = None,
    activation: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return Fluid's ``fc``; num_flatten_dims -1: all dimensions but the last."""
    if num_flatten_dims == -1:
        first = x if isinstance(x, Variable) else x[0]
        num_flatten_dims = len(first.shape) - 1
    return layers.fc(x, size, num_flatten_dims, weight_attr, bias_attr, activation, name)


__all__ = public(globals(), [*_OF_FLUID, "embedding", "sparse_embedding"])
