"""Pools: of images [n, channels, height, width], rows as images of width 1, and volumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.declare import Sizes
from hpcdist.graph.variable import Variable

_MODULE = "paddle.nn.functional"
_function = declare.composed(_MODULE)


def _pool(
    pool: Callable[..., Variable],
    x: Variable,
    kind: str,
    size: Sizes,
    stride: Sizes,
    padding: Any,
    **rest: Any,
) -> Variable:
    """Append Fluid's pooling; windows step by their size unless ``stride`` is given."""
    return pool(x, size, kind, size if stride is None else stride, padding, **rest)


def _no_divisor(name: str, divisor: float | None) -> None:
    if divisor is not None:
        raise GraphError(f"{_MODULE}.{name}: divisor_override is not there: scale the result")


def _no_mask(where: str, return_mask: bool) -> None:
    if return_mask:
        raise GraphError(f"{_MODULE}.{where}: return_mask is not there: use paddle.argmax")


@_function
def max_pool2d(
    x: Variable,
    kernel_size: Sizes,
    stride: Sizes = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Return the greatest elements of windows, which step by their size unless stride is given."""
    _no_mask("max_pool2d", return_mask)
    rest = {"ceil_mode": ceil_mode, "name": name, "data_format": data_format}
    return _pool(layers.pool2d, x, "max", kernel_size, stride, padding, **rest)


@_function
def avg_pool2d(
    x: Variable,
    kernel_size: Sizes,
    stride: Sizes = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: float | None = None,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Return the means of windows; exclusive: padding does not count."""
    _no_divisor("avg_pool2d", divisor_override)
    rest = {
        "exclusive": exclusive,
        "ceil_mode": ceil_mode,
        "name": name,
        "data_format": data_format,
    }
    return _pool(layers.pool2d, x, "avg", kernel_size, stride, padding, **rest)


@_function
def max_pool3d(
    x: Variable,
    kernel_size: Sizes,
    stride: Sizes = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Variable:
    """Return the greatest elements of windows of volumes."""
    _no_mask("max_pool3d", return_mask)
    rest = {"ceil_mode": ceil_mode, "name": name, "data_format": data_format}
    return _pool(layers.pool3d, x, "max", kernel_size, stride, padding, **rest)


@_function
def avg_pool3d(
    x: Variable,
    kernel_size: Sizes,
    stride: Sizes = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: float | None = None,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Variable:
    """Return the means of windows of volumes; exclusive: padding does not count."""
    _no_divisor("avg_pool3d", divisor_override)
    rest = {
        "exclusive": exclusive,
        "ceil_mode": ceil_mode,
        "name": name,
        "data_format": data_format,
    }
    return _pool(layers.pool3d, x, "avg", kernel_size, stride, padding, **rest)


@_function
def adaptive_avg_pool3d(
    x: Variable, output_size: Sizes, data_format: str = "NCDHW", name: str | None = None
) -> Variable:
    """Return means over as many windows of volumes as ``output_size`` says."""
    if data_format != "NCDHW":
        raise GraphError(f"{_MODULE}.adaptive_avg_pool3d: only NCDHW: transpose x")
    return layers.adaptive_pool3d(x, output_size, "avg", name=name)


@_function
def adaptive_max_pool3d(
    x: Variable, output_size: Sizes, return_mask: bool = False, name: str | None = None
) -> Variable:
    """Return the greatest elements of as many windows of volumes as ``output_size`` says."""
    _no_mask("adaptive_max_pool3d", return_mask)
    return layers.adaptive_pool3d(x, output_size, "max", name=name)


def _of_rows(pool: Any, x: Variable, sizes: Any, steps: Any, padding: Any, **rest: Any) -> Variable:
    def pair(value: Any) -> list[int]:
        return [int(value[0] if isinstance(value, (list, tuple)) else value), 1]

    around = padding if isinstance(padding, str) else [pair(padding)[0], 0]
    step = None if steps is None else pair(steps)
    wide = layers.unsqueeze(x, [3])
    return layers.squeeze(pool(wide, pair(sizes), step, around, **rest), [3])


@_function
def max_pool1d(
    x: Variable,
    kernel_size: Sizes,
    stride: Sizes = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the greatest elements of windows of [n, channels, length]."""
    _no_mask("max_pool1d", return_mask)
    return _of_rows(max_pool2d, x, kernel_size, stride, padding, ceil_mode=ceil_mode)


@_function
def avg_pool1d(
    x: Variable,
    kernel_size: Sizes,
    stride: Sizes = None,
    padding: Any = 0,
    exclusive: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the means of windows of [n, channels, length]."""
    rest = {"exclusive": exclusive, "ceil_mode": ceil_mode}
    return _of_rows(avg_pool2d, x, kernel_size, stride, padding, **rest)


@_function
def adaptive_avg_pool2d(
    x: Variable, output_size: Sizes, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Return means over as many windows as ``output_size`` says."""
    return layers.adaptive_pool2d(x, output_size, "avg", name=name)


@_function
def adaptive_max_pool2d(
    x: Variable, output_size: Sizes, return_mask: bool = False, name: str | None = None
) -> Variable:
    """Return the greatest elements of as many windows as ``output_size`` says."""
    _no_mask("adaptive_max_pool2d", return_mask)
    return layers.adaptive_pool2d(x, output_size, "max", name=name)


@_function
def adaptive_avg_pool1d(x: Variable, output_size: int, name: str | None = None) -> Variable:
    """Return means over ``output_size`` windows of [n, channels, length]."""
    wide = layers.unsqueeze(x, [3])
    return layers.squeeze(layers.adaptive_pool2d(wide, [output_size, 1], "avg"), [3])


@_function
def adaptive_max_pool1d(
    x: Variable, output_size: int, return_mask: bool = False, name: str | None = None
) -> Variable:
    """Return the greatest elements of ``output_size`` windows of [n, channels, length]."""
    _no_mask("adaptive_max_pool1d", return_mask)
    wide = layers.unsqueeze(x, [3])
    return layers.squeeze(layers.adaptive_pool2d(wide, [output_size, 1], "max"), [3])


__all__ = declare.public(globals())
