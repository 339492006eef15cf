"""Convolutions with weights that are given."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.kinds import Count, Counts
from hpcdist.fluid.layers import windows
from hpcdist.fluid.layers.helper import LayerHelper, named
from hpcdist.graph.variable import Variable

_MODULE = "paddle.nn.functional"


def _convolution(
    type: str,
    x: Variable,
    weight: Variable,
    bias: Variable | None,
    data_format: str,
    name: str | None,
    *,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    key: str | None = None,
    **attrs: Any,
) -> Variable:
    axes = len(x.shape) - 2
    around, algorithm = windows.paddings(type, padding, data_format, axes)
    facts = {
        "strides": windows.numbers(type, "stride", stride, axes),
        "paddings": windows.shortened(around),
        "dilations": windows.numbers(type, "dilation", dilation, axes),
        "groups": groups,
        "padding_algorithm": algorithm,
        "data_format": data_format,
        **attrs,
    }
    helper = LayerHelper(key or type, name)
    inputs = {"Input": x, "Filter": weight}
    out = helper.apply(type, inputs, facts, slot="Output", dtype=x.dtype)
    if bias is None:
        return out
    axis = 1 if data_format.startswith("NC") else len(x.shape) - 1
    return helper.apply("elementwise_add", {"X": out, "Y": bias}, {"axis": axis}, dtype=x.dtype)


def _conv(kind: str, layout: str, doc: str):
    def conv(
        x: Variable,
        weight: Variable,
        bias: Variable | None = None,
        stride: Counts = 1,
        padding: Any = 0,
        dilation: Counts = 1,
        groups: Count = 1,
        data_format: str = layout,
        name: str | None = None,
    ) -> Variable:
        facts = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return _convolution(kind, x, weight, bias, data_format, name, **facts)

    return named(kind, conv, doc)


conv2d = _conv(
    "conv2d",
    "NCHW",
    "Correlate images with the filters ``weight`` [out, in / groups, height, width].",
)
conv3d = _conv("conv3d", "NCDHW", "Correlate volumes with the filters ``weight``.")


def conv1d(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: Counts = 1,
    padding: Any = 0,
    dilation: Counts = 1,
    groups: Count = 1,
    data_format: str = "NCL",
    name: str | None = None,
) -> Variable:
    """Correlate rows with the filters ``weight`` [out, in / groups, length]."""
    if data_format not in ("NCL", "NLC"):
        raise GraphError(f"{_MODULE}.conv1d: data_format: NCL or NLC, got {data_format!r}")
    first = data_format == "NCL"
    wide, filters = layers.unsqueeze(x, [3 if first else 2]), layers.unsqueeze(weight, [3])
    facts: dict[str, Any] = {
        "stride": [_one("stride", stride), 1],
        "padding": padding if isinstance(padding, str) else [*_pair(padding), 0, 0],
        "dilation": [_one("dilation", dilation), 1],
        "groups": groups,
    }
    layout = "NCHW" if first else "NHWC"
    out = _convolution("conv2d", wide, filters, bias, layout, name, key="conv1d", **facts)
    return layers.squeeze(out, [3 if first else 2])


def _transposed(
    where: str, x: Variable, weight: Variable, bias: Any, facts: dict[str, Any], name: str | None
) -> Variable:
    """Append a transposed convolution; ``facts``: the arguments of the functions below."""
    axes = len(x.shape) - 2
    more = windows.numbers(where, "output_padding", facts.pop("output_padding"), axes)
    wish, layout = facts.pop("output_size"), facts.pop("data_format")
    wish = [] if wish is None else windows.numbers(where, "output_size", wish, axes)
    if any(more):
        if wish:
            raise GraphError(f"{_MODULE}.{where}: output_padding or output_size, not both")
        wish = _extended(where, x, weight, more, layout, **facts)
    return _convolution(where, x, weight, bias, layout, name, output_size=wish, **facts)


def _extended(
    where: str, x: Variable, weight: Variable, more: list[int], layout: str, **facts: Any
) -> list[int]:
    """Return the extents of a transposed convolution, each greater by a number of ``more``."""
    axes = len(more)
    steps = windows.numbers(where, "stride", facts["stride"], axes)
    spread = windows.numbers(where, "dilation", facts["dilation"], axes)
    around, algorithm = windows.paddings(where, facts["padding"], layout, axes)
    if algorithm != "EXPLICIT":
        raise GraphError(f"{_MODULE}.{where}: output_padding needs a padding in numbers")
    extents = x.shape[2:] if layout.startswith("NC") else x.shape[1:-1]
    if -1 in extents:
        raise GraphError(
            f"{_MODULE}.{where}: output_padding needs known extents, got {tuple(x.shape)}: give "
            "output_size"
        )
    taps, cut = weight.shape[2:], [a + b for a, b in zip(around[::2], around[1::2])]
    parts = zip(extents, steps, cut, spread, taps, more)
    return [(n - 1) * step - c + d * (k - 1) + 1 + m for n, step, c, d, k, m in parts]


def conv2d_transpose(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: Counts = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Counts = 1,
    groups: Count = 1,
    output_size: Any = None,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Apply the gradient of a convolution with ``weight`` [in, out / groups, height, width]."""
    facts = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    facts |= {"output_padding": output_padding, "output_size": output_size}
    facts["data_format"] = data_format
    return _transposed("conv2d_transpose", x, weight, bias, facts, name)


def conv3d_transpose(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: Counts = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Count = 1,
    dilation: Counts = 1,
    output_size: Any = None,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Variable:
    """Apply the gradient of a convolution of volumes with ``weight`` [in, out / groups, ...]."""
    facts = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    facts |= {"output_padding": output_padding, "output_size": output_size}
    facts["data_format"] = data_format
    return _transposed("conv3d_transpose", x, weight, bias, facts, name)


def conv1d_transpose(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    stride: Counts = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Count = 1,
    dilation: Counts = 1,
    output_size: Any = None,
    data_format: str = "NCL",
    name: str | None = None,
) -> Variable:
    """Apply the gradient of a convolution of rows with ``weight`` [in, out / groups, length]."""
    if data_format not in ("NCL", "NLC"):
        raise GraphError(
            f"{_MODULE}.conv1d_transpose: data_format: NCL or NLC, got {data_format!r}"
        )
    first = data_format == "NCL"
    wide, filters = layers.unsqueeze(x, [3 if first else 2]), layers.unsqueeze(weight, [3])
    facts: dict[str, Any] = {
        "stride": [_one("stride", stride), 1],
        "padding": padding if isinstance(padding, str) else [*_pair(padding), 0, 0],
        "dilation": [_one("dilation", dilation), 1],
        "groups": groups,
        "output_padding": [_one("output_padding", output_padding), 0],
        "output_size": None if output_size is None else [_one("output_size", output_size), 1],
        "data_format": "NCHW" if first else "NHWC",
    }
    out = _transposed("conv2d_transpose", wide, filters, bias, facts, name)
    return layers.squeeze(out, [3 if first else 2])


def _one(where: str, value: Any) -> int:
    return int(value[0]) if isinstance(value, (list, tuple)) else int(value)


def _pair(value: Any) -> list[int]:
    both = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(both[0]), int(both[-1])]


__all__ = declare.offered(_MODULE, globals())
