"""Common compositions of layers: Fluid's ``nets``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.layers.image import Padding, Pair
from hpcdist.graph.variable import Variable

__all__ = [
    "glu",
    "img_conv_group",
    "scaled_dot_product_attention",
    "sequence_conv_pool",
    "simple_img_conv_pool",
]


def simple_img_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: Pair,
    pool_size: Pair,
    pool_stride: Pair,
    pool_padding: Padding = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Pair = 1,
    conv_padding: Padding = 0,
    conv_dilation: Pair = 1,
    conv_groups: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    use_cudnn: bool = True,
) -> Variable:
    """Return a pool of a convolution.

    Examples:
        >>> images = fluid.data("images", [None, 1, 28, 28])
        >>> fluid.nets.simple_img_conv_pool(images, 8, 5, pool_size=2, pool_stride=2).shape
        (-1, 8, 12, 12)
    """
    convolved = layers.conv2d(
        input,
        num_filters,
        filter_size,
        stride=conv_stride,
        padding=conv_padding,
        dilation=conv_dilation,
        groups=conv_groups,
        param_attr=param_attr,
        bias_attr=bias_attr,
        act=act,
        use_cudnn=use_cudnn,
    )
    return layers.pool2d(
        convolved,
        pool_size,
        pool_type,
        pool_stride,
        pool_padding,
        global_pooling,
        use_cudnn=use_cudnn,
    )


def img_conv_group(
    input: Variable,
    conv_num_filter: Sequence[int],
    pool_size: Pair,
    conv_padding: Any = 1,
    conv_filter_size: Any = 3,
    conv_act: str | None = None,
    param_attr: Any = None,
    conv_with_batchnorm: Any = False,
    conv_batchnorm_drop_rate: Any = 0.0,
    pool_stride: Pair = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Variable:
    """Return a pool of several convolutions in a row, each maybe with batch_norm and dropout.

    What is said of convolutions is one value for all, or a list with one for each.
    """
    if not isinstance(conv_num_filter, (list, tuple)):
        raise GraphError(
            f"img_conv_group: conv_num_filter must be a list, one number of filters for each "
            f"convolution, got {conv_num_filter!r}"
        )
    per_convolution = zip(
        conv_num_filter,
        _for_each("conv_filter_size", conv_filter_size, conv_num_filter),
        _for_each("conv_padding", conv_padding, conv_num_filter),
        _for_each("param_attr", param_attr, conv_num_filter),
        _for_each("conv_with_batchnorm", conv_with_batchnorm, conv_num_filter),
        _for_each("conv_batchnorm_drop_rate", conv_batchnorm_drop_rate, conv_num_filter),
        strict=True,
    )
    out = input
    for filters, size, padding, attr, normalized, drop_rate in per_convolution:
        act = None if normalized else conv_act
        out = layers.conv2d(
            out, filters, size, padding=padding, param_attr=attr, act=act, use_cudnn=use_cudnn
        )
        if normalized:
            out = layers.batch_norm(out, act=conv_act)
            if abs(drop_rate) > 1e-5:
                out = layers.dropout(out, dropout_prob=drop_rate)
    return layers.pool2d(out, pool_size, pool_type, pool_stride, use_cudnn=use_cudnn)


def _for_each(argument: str, value: Any, filters: Sequence[int]) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * len(filters)
    if len(value) != len(filters):
        raise GraphError(
            f"img_conv_group: {argument} has {len(value)} values for {len(filters)} convolutions"
        )
    return value


def sequence_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: int,
    param_attr: Any = None,
    act: str | None = "sigmoid",
    pool_type: str = "max",
    bias_attr: Any = None,
) -> Variable:
    """Return a pool over each sequence of a convolution of its rows."""
    convolved = layers.sequence_conv(
        input, num_filters, filter_size, param_attr=param_attr, bias_attr=bias_attr, act=act
    )
    return layers.sequence_pool(convolved, pool_type)


def glu(input: Variable, dim: int = -1) -> Variable:
    """Return one half of the input times the sigmoid of the other (gated linear unit).

    Examples:
        >>> fluid.nets.glu(fluid.data("x", [None, 8])).shape
        (-1, 4)
    """
    values, gates = layers.split(input, num_or_sections=2, dim=dim)
    return layers.elementwise_mul(values, layers.sigmoid(gates))


def scaled_dot_product_attention(
    queries: Variable,
    keys: Variable,
    values: Variable,
    num_heads: int = 1,
    dropout_rate: float = 0.0,
) -> Variable:
    """Return softmax(queries keys^T / sqrt(width)) values, for [batch, length, width] each.

    Several heads attend to equal parts of the width, after a linear layer for each of the three.
    """
    _check_attention(queries, keys, values, num_heads)
    q, k, v = queries, keys, values
    if num_heads > 1:
        q, k, v = (layers.fc(x, size=x.shape[-1], num_flatten_dims=2) for x in (q, k, v))
    q, k, v = (_split_heads(x, num_heads) for x in (q, k, v))
    q = layers.scale(q, scale=(keys.shape[-1] // num_heads) ** -0.5)
    product = layers.matmul(q, k, transpose_y=True)
    flat = layers.reshape(product, shape=[-1, product.shape[-1]], act="softmax")
    weights = layers.reshape(flat, shape=product.shape)
    if dropout_rate:
        weights = layers.dropout(weights, dropout_prob=dropout_rate)
    context = layers.matmul(weights, v)
    if num_heads == 1:
        return context
    context = layers.transpose(context, perm=[0, 2, 1, 3])
    return layers.reshape(context, [*context.shape[:2], context.shape[2] * context.shape[3]])


def _split_heads(x: Variable, num_heads: int) -> Variable:
    if num_heads == 1:
        return x
    parts = layers.reshape(x, [*x.shape[:-1], num_heads, x.shape[-1] // num_heads])
    return layers.transpose(parts, perm=[0, 2, 1, 3])


def _check_attention(queries: Variable, keys: Variable, values: Variable, num_heads: int) -> None:
    shapes = [x.shape for x in (queries, keys, values)]
    shapes_text = f"scaled_dot_product_attention of queries, keys, values of shapes {shapes}"
    if any(len(shape) != 3 for shape in shapes):
        raise GraphError(f"{shapes_text}: expected [batch, length, width] for each")
    if len({x.dtype for x in (queries, keys, values)}) > 1:
        raise GraphError(f"{shapes_text}: expected one dtype")
    if shapes[0][-1] != shapes[1][-1]:
        raise GraphError(f"{shapes_text}: queries and keys must be of one width")
    if shapes[1][-2] != shapes[2][-2]:
        raise GraphError(f"{shapes_text}: there must be as many values as keys")
    if num_heads < 1 or any(shape[-1] % num_heads for shape in shapes):
        raise GraphError(f"{shapes_text}: the widths cannot be divided among {num_heads} heads")
