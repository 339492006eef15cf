"""Pools: of images [n, channels, height, width], rows as images of width 1, and volumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.declare import Sizes
from hpcdist.fluid.compat.paddle2.kinds import Counts
from hpcdist.fluid.layers.helper import LayerHelper, named
from hpcdist.graph.variable import Variable

_MODULE = "paddle.nn.functional"


def _pool(
    pool: Callable[..., Variable],
    x: Variable,
    kind: str,
    size: Sizes,
    stride: Counts,
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


def max_pool2d(
    x: Variable,
    kernel_size: Counts,
    stride: Counts = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Return the greatest elements of windows, which step by their size unless stride is given.

    ``return_mask``: also their places in the image, counted row by row.
    """
    if return_mask:
        return _with_mask(x, kernel_size, stride, padding, ceil_mode, data_format)
    rest = {"ceil_mode": ceil_mode, "name": name, "data_format": data_format}
    return _pool(layers.pool2d, x, "max", kernel_size, stride, padding, **rest)


def _padded(x: Variable, padding: Any, layout: str) -> Variable:
    """Return the image with its padding: what a window has beyond that does not count.

    Fluid's operator divides by the size of windows, also of those that end outside.
    """
    dims = len(x.shape) - 2
    given = [] if isinstance(padding, str) else padding if isinstance(padding, list) else [padding]
    if any(isinstance(one, list) for one in given):
        pairs = [tuple(one) for one in given]
    else:
        around = [int(one) for one in given] or [0]
        around = around * dims if len(around) == 1 else around
        split = len(around) == 2 * dims
        inner = list(zip(around[::2], around[1::2])) if split else [(one, one) for one in around]
        none = [(0, 0)]
        pairs = [*none, *inner, *none] if layout.endswith("C") else [*none, *none, *inner]
    return layers.pad(x, [one for pair in pairs for one in pair]) if any(map(any, pairs)) else x


def _avg_pool(kind: str, pool: Callable[..., Variable], layout: str, doc: str):
    def avg_pool(
        x: Variable,
        kernel_size: Counts,
        stride: Counts = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        exclusive: bool = True,
        divisor_override: float | None = None,
        data_format: str = layout,
        name: str | None = None,
    ) -> Variable:
        _no_divisor(kind, divisor_override)
        if ceil_mode and not exclusive and padding != "SAME":
            x, padding, exclusive = _padded(x, padding, data_format), 0, True
        rest = {"exclusive": exclusive, "ceil_mode": ceil_mode, "data_format": data_format}
        return _pool(pool, x, "avg", kernel_size, stride, padding, name=name, **rest)

    return named(kind, avg_pool, doc)


_MEANS = "Return the means of windows; exclusive: padding does not count."
avg_pool2d = _avg_pool("avg_pool2d", layers.pool2d, "NCHW", _MEANS)
avg_pool3d = _avg_pool("avg_pool3d", layers.pool3d, "NCDHW", _MEANS)


def max_pool3d(
    x: Variable,
    kernel_size: Counts,
    stride: Counts = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Variable:
    """Return the greatest elements of windows of volumes, and places if wished."""
    if return_mask:
        return _with_mask(x, kernel_size, stride, padding, ceil_mode, data_format, 3)
    rest = {"ceil_mode": ceil_mode, "name": name, "data_format": data_format}
    return _pool(layers.pool3d, x, "max", kernel_size, stride, padding, **rest)


def adaptive_avg_pool3d(
    x: Variable, output_size: Counts, data_format: str = "NCDHW", name: str | None = None
) -> Variable:
    """Return means over as many windows of volumes as ``output_size`` says."""
    if data_format != "NCDHW":
        raise GraphError(f"{_MODULE}.adaptive_avg_pool3d: only NCDHW: transpose x")
    return layers.adaptive_pool3d(x, output_size, "avg", name=name)


def adaptive_max_pool3d(
    x: Variable, output_size: Counts, return_mask: bool = False, name: str | None = None
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


def max_pool1d(
    x: Variable,
    kernel_size: Counts,
    stride: Counts = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Any:
    """Return the greatest elements of windows of [n, channels, length], and places if wished."""
    if return_mask:
        wide, down = layers.unsqueeze(x, [3]), _pair("max_pool1d", padding)[0]
        sizes = [_pair("max_pool1d", kernel_size)[0], 1]
        steps = None if stride is None else [_pair("max_pool1d", stride)[0], 1]
        found = _with_mask(wide, sizes, steps, [down, 0], ceil_mode, "NCHW")
        return tuple(layers.squeeze(one, [3]) for one in found)
    return _of_rows(max_pool2d, x, kernel_size, stride, padding, ceil_mode=ceil_mode)


def avg_pool1d(
    x: Variable,
    kernel_size: Counts,
    stride: Counts = None,
    padding: Any = 0,
    exclusive: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Variable:
    """Return the means of windows of [n, channels, length]."""
    rest = {"exclusive": exclusive, "ceil_mode": ceil_mode}
    return _of_rows(avg_pool2d, x, kernel_size, stride, padding, **rest)


def adaptive_avg_pool2d(
    x: Variable, output_size: Counts, data_format: str = "NCHW", name: str | None = None
) -> Variable:
    """Return means over as many windows as ``output_size`` says."""
    return layers.adaptive_pool2d(x, output_size, "avg", name=name)


def adaptive_max_pool2d(
    x: Variable, output_size: Counts, return_mask: bool = False, name: str | None = None
) -> Variable:
    """Return the greatest elements of as many windows as ``output_size`` says."""
    _no_mask("adaptive_max_pool2d", return_mask)
    return layers.adaptive_pool2d(x, output_size, "max", name=name)


def adaptive_avg_pool1d(x: Variable, output_size: int, name: str | None = None) -> Variable:
    """Return means over ``output_size`` windows of [n, channels, length]."""
    wide = layers.unsqueeze(x, [3])
    return layers.squeeze(layers.adaptive_pool2d(wide, [output_size, 1], "avg"), [3])


def adaptive_max_pool1d(
    x: Variable, output_size: int, return_mask: bool = False, name: str | None = None
) -> Variable:
    """Return the greatest elements of ``output_size`` windows of [n, channels, length]."""
    _no_mask("adaptive_max_pool1d", return_mask)
    wide = layers.unsqueeze(x, [3])
    return layers.squeeze(layers.adaptive_pool2d(wide, [output_size, 1], "max"), [3])


# -- places ----------------------------------------------------------------------------------------
def _pair(where: str, value: Any, count: int = 2) -> list[int]:
    given = declare.KINDS["ints"](f"{_MODULE}.{where}", value)
    return given * count if len(given) == 1 else given


def _with_mask(
    x: Variable,
    size: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    data_format: str,
    count: int = 2,
) -> Any:
    where = f"max_pool{count}d"
    if ceil_mode or not data_format.startswith("NC"):
        raise GraphError(
            f"{_MODULE}.{where}: return_mask is with ceil_mode=False and channels first only"
        )
    attrs = _windows(where, size, stride, padding, count)
    kinds, type = {"Out": x.dtype, "Mask": "int32"}, f"{where}_with_index"
    return tuple(LayerHelper(type).apply_all(type, {"X": x}, kinds, attrs))


def _windows(where: str, size: Any, stride: Any, padding: Any, count: int = 2) -> dict[str, Any]:
    """Return the attributes of windows; they step by their size unless ``stride`` is given."""
    return {
        "ksize": _pair(f"{where}: kernel_size", size, count),
        "strides": _pair(f"{where}: stride", size if stride is None else stride, count),
        "paddings": _pair(f"{where}: padding", padding, count),
    }


def _unpooled(
    type: str,
    x: Variable,
    indices: Variable,
    windows: dict[str, Any],
    data_format: str,
    output_size: Any,
    name: str | None,
) -> Variable:
    """Append what puts elements back into images or volumes."""
    count = len(windows["ksize"])
    if len(x.shape) != count + 2 or indices.shape != x.shape:
        raise GraphError(
            f"{_MODULE}.max_unpool{count}d: expected x of {count + 2} dimensions and indices of "
            f"its shape, got {x.shape} and {indices.shape}"
        )
    facts = zip(x.shape[2:], windows["strides"], windows["paddings"], windows["ksize"])
    own = [(extent - 1) * step - 2 * pad + size for extent, step, pad, size in facts]
    wish = own if output_size is None else list(output_size)[-count:]
    if wish != own or not data_format.startswith("NC"):
        raise GraphError(
            f"{_MODULE}.max_unpool{count}d: output_size is {own} here, with channels first, got "
            f"{wish} in {data_format!r}: pad the result"
        )
    inputs = {"X": x, "Indices": indices}
    return LayerHelper(type, name).apply(type, inputs, windows, dtype=x.dtype)


def max_unpool2d(
    x: Variable,
    indices: Variable,
    kernel_size: Counts,
    stride: Counts = None,
    padding: Any = 0,
    data_format: str = "NCHW",
    output_size: Any = None,
    name: str | None = None,
) -> Variable:
    """Put elements back to the places that `max_pool2d` has found them at; zeros elsewhere."""
    windows = _windows("max_unpool2d", kernel_size, stride, padding)
    return _unpooled("unpool", x, indices, windows, data_format, output_size, name)


def max_unpool3d(
    x: Variable,
    indices: Variable,
    kernel_size: Counts,
    stride: Counts = None,
    padding: Any = 0,
    data_format: str = "NCDHW",
    output_size: Any = None,
    name: str | None = None,
) -> Variable:
    """Put elements back to the places that `max_pool3d` has found them at; zeros elsewhere."""
    windows = _windows("max_unpool3d", kernel_size, stride, padding, 3)
    return _unpooled("unpool3d", x, indices, windows, data_format, output_size, name)


def max_unpool1d(
    x: Variable,
    indices: Variable,
    kernel_size: Counts,
    stride: Counts = None,
    padding: Any = 0,
    data_format: str = "NCL",
    output_size: Any = None,
    name: str | None = None,
) -> Variable:
    """The same, of [n, channels, length]."""
    wide, places = (layers.unsqueeze(one, [3]) for one in (x, indices))
    sizes = [_pair("max_unpool1d", kernel_size)[0], 1]
    steps = None if stride is None else [_pair("max_unpool1d", stride)[0], 1]
    wish = None if output_size is None else [list(output_size)[-1], 1]
    around = [_pair("max_unpool1d", padding)[0], 0]
    return layers.squeeze(max_unpool2d(wide, places, sizes, steps, around, "NCHW", wish), [3])


__all__ = declare.offered(_MODULE, globals())
