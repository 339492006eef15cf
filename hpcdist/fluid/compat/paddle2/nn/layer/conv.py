"""Convolutions, and transposed ones."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2.kinds import Count, Counts
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer, choose_layout, number_from
from hpcdist.fluid.compat.public_names import public
from hpcdist.fluid.initializer import Normal


def _extents(name: str, size: Any, axes: int) -> list[int]:
    """Return the extents of a window: one number stands for all."""
    found = list(size) if isinstance(size, (list, tuple)) else [size] * axes
    if len(found) != axes:
        raise GraphError(
            f"paddle.nn.{name}: kernel_size: expected one number or {axes}, got {size}"
        )
    return found


class _Convolution(Layer):
    """Filters [out, in / groups, ...], normal with deviation sqrt(2 / fan in), and a bias."""

    axes = 2
    layout = "NCHW"
    function = "conv2d"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Counts,
        stride: Counts = 1,
        padding: Any = 0,
        dilation: Counts = 1,
        groups: Count = 1,
        padding_mode: str = "zeros",
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        number_from(f"{name}: in_channels", in_channels)
        number_from(f"{name}: out_channels", out_channels)
        if in_channels % groups:
            raise GraphError(f"paddle.nn.{name}: {in_channels} channels are not of {groups} groups")
        if padding_mode != "zeros":
            raise GraphError(f"paddle.nn.{name}: padding_mode {padding_mode!r}: use F.pad before")
        choose_layout(name, data_format, self.layout)
        size = _extents(name, kernel_size, self.axes)
        fan_in = in_channels // groups * math.prod(size)
        initial = self._initial(fan_in, in_channels * math.prod(size))
        shape = [out_channels, in_channels // groups, *size]
        self.weight = self.create_parameter(shape, weight_attr, default_initializer=initial)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)
        self._facts = (stride, padding, dilation, groups, data_format or self.layout)

    def _initial(self, fan_in: int, of_all: int) -> Any:
        return Normal(0.0, math.sqrt(2.0 / of_all))

    def forward(self, x: Any) -> Any:
        """Append the convolution."""
        return getattr(functional, self.function)(x, self.weight, self.bias, *self._facts)


class Conv1D(_Convolution):
    """Correlate rows [n, channels, length] with filters."""

    axes, layout, function = 1, "NCL", "conv1d"


class Conv2D(_Convolution):
    """Correlate images [n, channels, height, width] with filters."""


class Conv3D(_Convolution):
    """Correlate volumes with filters."""

    axes, layout, function = 3, "NCDHW", "conv3d"


class Conv2DTranspose(Layer):
    """Apply the gradient of a convolution with filters [in, out / groups, height, width]."""

    axes = 2
    layout = "NCHW"
    function = "conv2d_transpose"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Counts,
        stride: Counts = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Counts = 1,
        groups: Count = 1,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        choose_layout(type(self).__name__, data_format, self.layout)
        size = _extents(type(self).__name__, kernel_size, self.axes)
        initial = self._initial(in_channels, size)
        shape = [in_channels, out_channels // groups, *size]
        self.weight = self.create_parameter(shape, weight_attr, default_initializer=initial)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)
        facts = {"stride": stride, "padding": padding, "output_padding": output_padding}
        facts |= {"dilation": dilation, "groups": groups}
        self._facts = {**facts, "data_format": data_format or self.layout}

    def _initial(self, channels: int, size: list[int]) -> Any:
        return None

    def forward(self, x: Any, output_size: Any = None) -> Any:
        """Append the transposed convolution."""
        called = getattr(functional, self.function)
        return called(x, self.weight, self.bias, output_size=output_size, **self._facts)


class Conv1DTranspose(Conv2DTranspose):
    """The same, of rows [n, channels, length]."""

    axes, layout, function = 1, "NCL", "conv1d_transpose"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Counts,
        stride: Counts = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: Count = 1,
        dilation: Counts = 1,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ) -> None:
        places = stride, padding, output_padding, dilation, groups
        attrs = weight_attr, bias_attr, data_format
        super().__init__(in_channels, out_channels, kernel_size, *places, *attrs)


class Conv3DTranspose(Conv2DTranspose):
    """The same, of volumes."""

    axes, layout, function = 3, "NCDHW", "conv3d_transpose"


__all__ = public(globals())
