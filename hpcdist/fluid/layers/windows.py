"""Arguments shared by layers that slide windows over images (two axes) or volumes (three)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import Normal
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.graph.dtypes import DTypeLike
from hpcdist.graph.variable import Variable
from hpcdist.ops.convolution.windows import image_shape

Numbers = int | Sequence[int]  # one for all axes, or one for each
Padding = int | str | Sequence[Any]

_COUNTS = {2: "two", 3: "three", 4: "four", 6: "six"}
_VOLUMES = ("NCDHW", "NDHWC")


def one_of(layer: str, argument: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a value that is not among ``choices``."""
    if value not in choices:
        raise GraphError(f"{layer}: {argument} must be one of {', '.join(choices)}, got {value!r}")


def numbers(layer: str, argument: str, value: Numbers, axes: int) -> list[int]:
    """Return an integer for each axis."""
    numbers_given = [value] * axes if isinstance(value, int) else list(value)
    if len(numbers_given) != axes or not all(isinstance(v, int) for v in numbers_given):
        raise GraphError(
            f"{layer}: {argument} must be one integer or {_COUNTS[axes]}, got {value!r}"
        )
    return numbers_given


def paddings(layer: str, padding: Padding, data_format: str, axes: int) -> tuple[list[int], str]:
    """Return padding before and after each axis, and Fluid's name of how it was given."""
    if isinstance(padding, str):
        algorithm = padding.upper()
        one_of(layer, "padding", algorithm, ("SAME", "VALID"))
        return [0] * (2 * axes), algorithm
    pairs: list[Any] = [padding] * axes if isinstance(padding, int) else list(padding)
    if len(pairs) == axes + 2 and all(isinstance(pair, (list, tuple)) for pair in pairs):
        first = 2 if data_format[1] == "C" else 1
        if any(any(pair) for pair in pairs[:first] + pairs[first + axes :]):
            raise GraphError(f"{layer}: batch and channels cannot be padded, got {padding!r}")
        pairs = [number for pair in pairs[first : first + axes] for number in pair]
    elif len(pairs) == axes:
        pairs = [number for number in pairs for _ in range(2)]
    if len(pairs) != 2 * axes or not all(isinstance(number, int) for number in pairs):
        raise GraphError(
            f"{layer}: padding must be one integer, {_COUNTS[axes]}, {_COUNTS[2 * axes]}, a pair "
            f"for each dimension, SAME or VALID, got {padding!r}"
        )
    return pairs, "EXPLICIT"


def shortened(paddings: list[int]) -> list[int]:
    """Return one number for each axis if both of its sides are padded alike, as Fluid does."""
    return paddings[::2] if paddings[::2] == paddings[1::2] else paddings


def channels_and_extents(
    layer: str, x: Variable, data_format: str, axes: int = 2
) -> tuple[int, Sequence[int]]:
    """Return the number of channels, which must be known, and the extents of the axes."""
    if axes == 2:
        _, channels, *extents = image_shape(x.shape, data_format, f"the input of {layer}")
    else:
        one_of(layer, "data_format", data_format, _VOLUMES)
        if len(x.shape) != axes + 2:
            raise GraphError(f"{layer}: expected {axes + 2} dimensions, got shape {x.shape}")
        first = 2 if data_format[1] == "C" else 1
        channels, extents = x.shape[1 if first == 2 else -1], [*x.shape[first : first + axes]]
    if channels < 0:
        raise GraphError(
            f"{layer}: the number of channels of {x.name!r} must be known, its shape is {x.shape}"
        )
    return channels, extents


def weights(
    helper: LayerHelper, attr: Any, shape: Sequence[int], dtype: DTypeLike, initializer: Any = None
) -> Variable:
    """Create a parameter that the layer cannot be without."""
    parameter = helper.create_parameter(attr, shape, dtype, default_initializer=initializer)
    if parameter is None:
        raise GraphError(f"{helper.layer_type} needs weights: param_attr must not be False")
    return parameter


def he_normal(size: Sequence[int], channels: int) -> Normal:
    """Return He's initializer (2015), but counting the channels of all groups, as Fluid does."""
    return Normal(0.0, (2.0 / (math.prod(size) * channels)) ** 0.5)


def convolved(
    helper: LayerHelper, x: Variable, weight: Any, attrs: Any, bias_attr: ParamLike, act: str | None
) -> Variable:
    """Append a convolution, a bias for each channel, and the activation."""
    inputs, kind = {"Input": x, "Filter": weight}, helper.layer_type
    out = helper.apply(kind, inputs, attrs, slot="Output", dtype=x.dtype)
    return with_bias(helper, out, bias_attr, act, 1 if attrs["data_format"][1] == "C" else -1)


def with_bias(
    helper: LayerHelper, out: Variable, bias_attr: ParamLike, act: Any, axis: int
) -> Variable:
    """Add a bias for each channel, which are dimension ``axis``, and append the activation."""
    axis %= len(out.shape)
    bias = helper.create_parameter(bias_attr, [out.shape[axis]], out.dtype, is_bias=True)
    if bias is not None:
        operands = {"X": out, "Y": bias}
        out = helper.apply("elementwise_add", operands, {"axis": axis}, dtype=out.dtype)
    return helper.activate(out, act)


def filter_size_for(
    wish: Sequence[int],
    extents: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """Return the size of filters that make images of ``wish`` from images of ``extents``."""
    both = [before + after for before, after in zip(paddings[::2], paddings[1::2])]
    axes = zip(wish, extents, strides, both, dilations)
    return [(w - (e - 1) * s + p - 1) // d + 1 for w, e, s, p, d in axes]


def refuse_groups(layer: str, channels: int, num_filters: int, groups: int) -> None:
    """Refuse groups that channels and filters cannot be divided into."""
    if groups < 1 or channels % groups or num_filters % groups:
        raise GraphError(
            f"{layer}: {channels} channels and {num_filters} filters cannot be divided into "
            f"{groups} groups"
        )
