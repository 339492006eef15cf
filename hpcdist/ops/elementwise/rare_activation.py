"""prelu and maxout, whose parts are channels; leaky relu with slopes that are drawn."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_element, by_row, off_rows
from hpcdist.ops.common import define_with_grad, resolve_axis, same
from hpcdist.ops.formulas import define_by_formulas
from hpcdist.ops.types import ArrayModule, DeviceArray


# -- prelu: a slope for all elements, for each channel, or for each element of a sample ------------
def slopes_of(x, alpha, mode: str) -> DeviceArray:
    """View the slopes of prelu as they belong to the elements of x."""
    if mode == "all":
        return alpha.reshape((1,) * x.ndim)
    if mode == "channel":
        return alpha.reshape((1, -1) + (1,) * (x.ndim - 2))
    return alpha.reshape((1, *x.shape[1:]))


def _prelu_infer(x: Meta, alpha: Meta, mode: str) -> Meta:
    expected = {"all": 1, "channel": x.shape[1] if len(x.shape) > 1 else 1}.get(mode)
    if mode not in ("all", "channel", "element"):
        raise GraphError(f"mode must be all, channel or element, got {mode!r}")
    if expected is None:
        expected = Meta(x.shape[1:], x.dtype).size
    if expected >= 0 and alpha.size != expected:
        raise GraphError(f"mode {mode!r} needs {expected} slopes, got {alpha.size}")
    return same(x)


def _prelu(xp: ArrayModule, x, alpha, out, mode: str) -> None:
    out[...] = xp.where(x > 0, x, x * slopes_of(x, alpha, mode))


def _prelu_grad(xp: ArrayModule, x, alpha, dout, dx, dalpha, mode: str) -> None:
    slopes = slopes_of(x, alpha, mode)
    if dx is not None:
        dx[...] = xp.where(x > 0, dout, dout * slopes)
    if dalpha is not None:
        axes = tuple(i for i, extent in enumerate(slopes.shape) if extent == 1)
        part = xp.where(x > 0, 0, dout * x)
        dalpha[...] = part.sum(axes or 0, keepdims=True).reshape(dalpha.shape)


define_with_grad(
    "prelu",
    "X, Alpha -> Out",
    "X, Alpha, Out@GRAD -> X@GRAD?, Alpha@GRAD?",
    rows=by_row("X"),
    attrs={"mode": "all"},
    infer=_prelu_infer,
    kernel=_prelu,
    grad_kernel=_prelu_grad,
)


# -- maxout: the largest of each group of channels -------------------------------------------------
def _grouped(shape: Sequence[int], groups: int, axis: int) -> tuple[int, ...]:
    return (*shape[:axis], shape[axis] // groups, groups, *shape[axis + 1 :])


def _maxout_infer(x: Meta, groups: int, axis: int) -> Meta:
    axis = resolve_axis(axis, len(x.shape))
    if groups < 2 or x.shape[axis] % groups:
        raise GraphError(f"{x.shape[axis]} channels cannot be divided into groups of {groups}")
    return Meta((*x.shape[:axis], x.shape[axis] // groups, *x.shape[axis + 1 :]), x.dtype)


def _maxout(xp: ArrayModule, x, out, groups: int, axis: int) -> None:
    axis %= x.ndim
    xp.amax(x.reshape(_grouped(x.shape, groups, axis)), axis=axis + 1, out=out)


def _maxout_grad(xp: ArrayModule, x, out, dout, dx, groups: int, axis: int) -> None:
    """The gradient goes to the first of the largest."""
    axis %= x.ndim
    grouped = x.reshape(_grouped(x.shape, groups, axis))
    first = xp.expand_dims(grouped.argmax(axis + 1), axis + 1)
    places = xp.arange(groups).reshape((groups,) + (1,) * (x.ndim - axis - 1))
    dx.reshape(grouped.shape)[...] = (places == first) * xp.expand_dims(dout, axis + 1)


define_with_grad(
    "maxout",
    "X -> Out",
    "X, Out, Out@GRAD -> X@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs={"groups": 2, "axis": 1},
    infer=_maxout_infer,
    kernel=_maxout,
    grad_kernel=_maxout_grad,
)


# -- drawn_leaky_relu: slopes from lower to upper by chance, in tests their mean -------------------
def _sloped(
    xp: ArrayModule, value, x, chance, lower: float, upper: float, is_test: bool
) -> DeviceArray:
    slope = (lower + upper) / 2 if is_test else lower + chance * (upper - lower)
    return xp.where(x >= 0, value, value * slope)


define_by_formulas(
    "drawn_leaky_relu",
    "X, Chance -> Out",
    "X, Chance, Out@GRAD -> X@GRAD",
    lambda xp, x, chance, **facts: _sloped(xp, x, x, chance, **facts),
    lambda xp, x, chance, dout, **facts: _sloped(xp, dout, x, chance, **facts),
    rows=by_element(),
    attrs={"lower": 0.125, "upper": 1.0 / 3, "is_test": False},
    infer=lambda x, chance, **_: same(x),
    grad_infer=lambda x, chance, dout, **_: same(x),
)
