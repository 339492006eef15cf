"""Linear maps, look-ups, dropout, normalizations, distances."""

from __future__ import annotations

import math
from typing import Any, Literal

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import composed, declare, reductions, tensor
from hpcdist.fluid.compat.paddle2.declare import Ints
from hpcdist.fluid.compat.paddle2.kinds import Counts, Probability, Unsigned
from hpcdist.fluid.layers import math_op
from hpcdist.fluid.layers.embedding import looked_up
from hpcdist.fluid.layers.helper import LayerHelper, append, present
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.variable import Variable
from hpcdist.ops.embedding.lookup import NO_PADDING

_MODULE = "paddle.nn.functional"
DECLARED = declare.functions(_MODULE, "common") | {"diag_embed": tensor.DECLARED["diag_embed"]}
globals().update(DECLARED)


def linear(
    x: Variable, weight: Variable, bias: Variable | None = None, name: str | None = None
) -> Variable:
    """Return x weight + bias: [..., in] with [in, out] gives [..., out]."""
    helper = LayerHelper("linear", name)
    out = helper.apply("matmul", {"X": x, "Y": weight}, dtype=x.dtype)
    if bias is None:
        return out
    return helper.apply("elementwise_add", {"X": out, "Y": bias}, {"axis": -1}, dtype=x.dtype)


def embedding(
    x: Variable,
    weight: Variable,
    padding_idx: int | None = None,
    sparse: bool = False,
    name: str | None = None,
) -> Variable:
    """Look up rows of ``weight``: ids [...] give [..., width]; ``padding_idx`` gives zeros."""
    rows = weight.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise GraphError(
            f"{_MODULE}.embedding: padding_idx {padding_idx} is outside a table of {rows} rows"
        )
    padding = NO_PADDING if padding_idx is None else padding_idx % rows
    helper = LayerHelper("embedding", name)
    return looked_up(helper, "lookup_table_v2", weight, x, sparse, False, padding)


def one_hot(x: Variable, num_classes: Any, name: str | None = None) -> Variable:
    """Return [..., num_classes] with 1 at each id of ``x`` [...]."""
    helper, attrs = LayerHelper("one_hot_v2", name), {"depth": num_classes}
    return helper.apply("one_hot_v2", {"X": x}, attrs, stop_gradient=True)


def dropout(
    x: Variable,
    p: Probability = 0.5,
    axis: Ints | None = None,
    training: bool = True,
    mode: Literal["upscale_in_train", "downscale_in_infer"] = "upscale_in_train",
    name: str | None = None,
) -> Variable:
    """Set elements to 0 with probability ``p``; by default the others become x / (1 - p).

    axis: dimensions along which elements are drawn; along the others they share their fate.
    """
    modes = {"downscale_in_infer": "downgrade_in_infer", "upscale_in_train": "upscale_in_train"}
    if not training:
        kept = 1.0 if mode == "upscale_in_train" else 1.0 - p
        return append("scale", {"X": x}, name, scale=kept)
    if axis is None:
        return layers.dropout(x, p, name=name, dropout_implementation=modes[mode])
    along = {declare.axis_of(f"{_MODULE}.dropout: axis", one, len(x.shape)) for one in axis}
    others = [d for d in range(len(x.shape)) if d not in along]
    drawn = layers.fill_constant_batch_size_like(x, list(x.shape), x.dtype, 1.0)
    if others:
        ends = [1] * len(others)
        drawn = layers.slice(drawn, axes=others, starts=[0] * len(others), ends=ends)
    mask = layers.dropout(drawn, p, dropout_implementation=modes[mode])
    mask.stop_gradient = True
    return layers.elementwise_mul(x, mask, name=name)


def dropout2d(
    x: Variable,
    p: Probability = 0.5,
    training: bool = True,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Set whole channels of images to 0 with probability ``p``, others become x / (1 - p)."""
    return _channels_dropped("dropout2d", x, p, training, data_format, ("NCHW", "NHWC"), name)


def dropout3d(
    x: Variable,
    p: Probability = 0.5,
    training: bool = True,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Variable:
    """Set whole channels of volumes to 0 with probability ``p``, others become x / (1 - p)."""
    return _channels_dropped("dropout3d", x, p, training, data_format, ("NCDHW", "NDHWC"), name)


def alpha_dropout(
    x: Variable, p: Probability = 0.5, training: bool = True, name: str | None = None
) -> Variable:
    """Set elements to the least that SELU gives with probability ``p``; mean and variance stay."""
    if not training:
        return x
    if p == 1.0:
        return append("scale", {"X": x}, name, scale=0.0)
    least = -1.6732632423543772 * 1.0507009873554805
    factor = ((1 - p) * (1 + p * least**2)) ** -0.5
    drawn = layers.uniform_random_batch_size_like(x, list(x.shape), x.dtype, min=0.0, max=1.0)
    kept = layers.cast(drawn >= p, x.dtype)
    return x * kept * factor + (1.0 - kept) * (least * factor) + (-factor * least * p)


def _channels_dropped(
    of: str, x: Variable, p: float, training: bool, layout: str, layouts: Any, name: Any
) -> Variable:
    if layout not in layouts or len(x.shape) != len(layout):
        raise GraphError(
            f"{_MODULE}.{of}: expected a value of {len(layouts[0])} dimensions and a data_format "
            f"of {list(layouts)}, got {list(x.shape)} and {layout!r}"
        )
    return dropout(x, p, [0, layout.index("C")], training, name=name)


def batch_norm(
    x: Variable,
    running_mean: Variable,
    running_var: Variable,
    weight: Variable | None = None,
    bias: Variable | None = None,
    training: bool = False,
    momentum: Probability = 0.9,
    epsilon: Unsigned = 1e-5,
    data_format: Literal["NC", "NCL", "NCHW", "NCDHW", "NLC", "NHWC", "NDHWC"] = "NCHW",
    use_global_stats: bool | None = None,
    name: str | None = None,
) -> Variable:
    """Normalize each channel: by the batch's mean and variance in training, else by the running
    ones, which training moves."""
    if weight is None or bias is None:
        raise GraphError(f"{_MODULE}.batch_norm: expected weight and bias")
    helper = LayerHelper("batch_norm", name)
    fixed = not training if use_global_stats is None else use_global_stats
    attrs = {
        "momentum": momentum,
        "epsilon": epsilon,
        "is_test": not training,
        "data_layout": "NCHW" if data_format in ("NC", "NCL", "NCHW", "NCDHW") else "NHWC",
        "use_global_stats": fixed,
    }
    parts = {"Scale": weight, "Bias": bias, "Mean": running_mean, "Variance": running_var}
    outputs = {
        "SavedMean": helper.new_var(x.dtype, stop_gradient=True),
        "SavedVariance": helper.new_var(x.dtype, stop_gradient=True),
        "MeanOut": running_mean,
        "VarianceOut": running_var,
    }
    out = outputs["Y"] = helper.new_var(x.dtype)
    helper.append_op("batch_norm", {"X": x, **parts}, outputs, attrs)
    return out


def layer_norm(
    x: Variable,
    normalized_shape: Ints,
    weight: Variable | None = None,
    bias: Variable | None = None,
    epsilon: Unsigned = 1e-5,
    name: str | None = None,
) -> Variable:
    """Normalize over the last dimensions, which have ``normalized_shape``."""
    shape = tuple(normalized_shape)
    if tuple(x.shape[-len(shape) :]) != shape:
        raise GraphError(
            f"{_MODULE}.layer_norm: normalized_shape {shape} does not end the shape {x.shape}"
        )
    helper = LayerHelper("layer_norm", name)
    attrs = {"epsilon": epsilon, "begin_norm_axis": len(x.shape) - len(shape)}
    inputs = present(X=x, Scale=weight, Bias=bias)
    outputs = dict.fromkeys(("Mean", "Variance", "Y"), x.dtype)
    return helper.apply_all("layer_norm", inputs, outputs, attrs, constant=("Mean", "Variance"))[2]


def instance_norm(
    x: Variable,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Variable | None = None,
    bias: Variable | None = None,
    use_input_stats: bool = True,
    momentum: Probability = 0.9,
    eps: Unsigned = 1e-5,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Normalize each channel of each sample by itself; as in 2.6.2 nothing else is averaged."""
    if not data_format.startswith("NC"):
        raise GraphError(f"{_MODULE}.instance_norm: {data_format!r}: only channels first")
    declare.floats(f"{_MODULE}.instance_norm: x", x)
    image = layers.reshape(x, [0, 0, -1, 1])  # other dimensions in one row
    channels, kind = [x.shape[1]], x.dtype
    scale = layers.fill_constant(channels, kind, 1.0) if weight is None else weight
    shift = layers.fill_constant(channels, kind, 0.0) if bias is None else bias
    inputs = {"X": image, "Scale": scale, "Bias": shift}
    outputs = dict.fromkeys(("Y", "SavedMean", "SavedVariance"), x.dtype)
    helper, attrs = LayerHelper("instance_norm", name), {"epsilon": eps}
    out = helper.apply_all("instance_norm", inputs, outputs, attrs, constant=list(outputs)[1:])
    return layers.reshape(out[0], [0, 0, *x.shape[2:]])


def normalize(
    x: Variable, p: float = 2, axis: int = 1, epsilon: Unsigned = 1e-12, name: str | None = None
) -> Variable:
    """Return x over its p-norm along ``axis``, which counts as ``epsilon`` at least."""
    size = composed.norm(x, p, axis, True)
    return x / layers.elementwise_max(size, math_op.filled(size, epsilon))


def cosine_similarity(x1: Variable, x2: Variable, axis: int = 1, eps: Unsigned = 1e-8) -> Variable:
    """Return x1 x2 / max(|x1| |x2|, eps), summed along ``axis``."""
    total = reductions.sum  # type: ignore[attr-defined]
    product = total(x1 * x2, axis)
    squares = total(x1 * x1, axis) * total(x2 * x2, axis)
    least = math_op.filled(squares, eps * eps)
    return product / layers.sqrt(layers.elementwise_max(squares, least))


def pairwise_distance(
    x: Variable,
    y: Variable,
    p: float = 2.0,
    epsilon: Unsigned = 1e-6,
    keepdim: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the p-norm of x - y + epsilon over the last dimension."""
    return composed.norm(x - y + epsilon, p, -1, keepdim)


def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: Unsigned = 0.1,
    name: str | None = None,
) -> Variable:
    """Return (1 - epsilon) label + epsilon prior; the prior is uniform unless it is given."""
    return layers.label_smooth(label, prior_dist, epsilon, name=name)


def sequence_mask(
    x: Variable, maxlen: Any = None, dtype: Any = "int64", name: str | None = None
) -> Variable:
    """Return [..., maxlen] with 1 before each length of ``x`` [...]."""
    return layers.sequence_mask(x, maxlen, canonical(dtype), name)


def pad(
    x: Variable,
    pad: Ints,
    mode: str = "constant",
    value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Put values around: pairs for all dimensions from the first, or of images from the last."""
    sides, rank = list(pad), len(x.shape)
    if mode == "constant" and len(sides) == 2 * rank:
        return append("pad", {"X": x}, name, paddings=sides, pad_value=value)
    places = [d for d in range(rank) if d not in (0, data_format.index("C"))]
    if len(sides) != 2 * len(places):
        raise GraphError(
            f"{_MODULE}.pad: expected {2 * len(places)} or {2 * rank} numbers for {x.shape}, got "
            f"{sides}"
        )
    if mode == "constant":
        around = [0] * (2 * rank)
        for at, place in enumerate(reversed(places)):
            around[2 * place : 2 * place + 2] = sides[2 * at : 2 * at + 2]
        return append("pad", {"X": x}, name, paddings=around, pad_value=value)
    modes = {"reflect": "reflect", "replicate": "edge"}
    if rank != 4 or mode not in modes:
        raise GraphError(
            f"{_MODULE}.pad: mode {mode!r} of {rank} dimensions: expected 'constant', or 'reflect' "
            "or 'replicate' of images"
        )
    left, right, top, bottom = sides
    return layers.pad2d(
        x, [top, bottom, left, right], modes[mode], value, data_format=data_format, name=name
    )


def zeropad2d(
    x: Variable, padding: Ints, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Put zeros around images: left, right, top, bottom."""
    return pad(x, padding, "constant", 0.0, data_format, name)


def bilinear(
    x1: Variable,
    x2: Variable,
    weight: Variable,
    bias: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return x1 weight[i] x2 for each i: [n, a] and [n, b] with [out, a, b] give [n, out]."""
    return append("bilinear_tensor_product", present(X=x1, Y=x2, Weight=weight, Bias=bias), name)


def unfold(
    x: Variable,
    kernel_sizes: Counts,
    strides: Counts = 1,
    paddings: Any = 0,
    dilations: Counts = 1,
    name: str | None = None,
) -> Variable:
    """Return the patches of images as columns."""
    return layers.unfold(x, kernel_sizes, strides, paddings, dilations, name)


def scaled_dot_product_attention(
    query: Variable,
    key: Variable,
    value: Variable,
    attn_mask: Variable | None = None,
    dropout_p: Probability = 0.0,
    is_causal: bool = False,
    training: bool = True,
    name: str | None = None,
) -> Variable:
    """Attend: softmax(q k^T / sqrt(d) + mask) v, all [batch, length, heads, d]."""
    q, k, v = (layers.transpose(one, [0, 2, 1, 3]) for one in (query, key, value))
    scores = composed.matmul(q * (1.0 / math.sqrt(query.shape[-1])), k, transpose_y=True)
    if is_causal:
        length = query.shape[1]
        hidden = layers.triu(layers.ones([length, length], query.dtype), 1)
        scores = scores + hidden * -1e9
    if attn_mask is not None:
        scores = scores + attn_mask
    shares = layers.softmax(scores, axis=-1)
    if dropout_p:
        shares = dropout(shares, dropout_p, training=training)
    return layers.transpose(composed.matmul(shares, v), [0, 2, 1, 3])


_ALIKE = {"cosine_similarity": ("x1", "x2"), "pairwise_distance": ("x", "y")}
__all__ = declare.offered(_MODULE, globals(), DECLARED, alike=_ALIKE)
