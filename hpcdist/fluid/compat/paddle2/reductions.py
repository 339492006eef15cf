"""Reductions of Paddle 2: over all dimensions by default, over ``axis`` if that is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.declare import KINDS
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.variable import Variable

# Name: the operator, and what its results are called after.
_REDUCTIONS = {
    "sum": ("reduce_sum", "sum"),
    "mean": ("reduce_mean", "mean"),
    "max": ("reduce_max", "max"),
    "min": ("reduce_min", "min"),
    "amax": ("reduce_max", "amax"),
    "amin": ("reduce_min", "amin"),
    "prod": ("reduce_prod", "reduce_prod"),
    "all": ("reduce_all", "all"),
    "any": ("reduce_any", "any"),
}
_CASTS = ("sum", "prod")  # which take a dtype


def reduced(type: str, key: str, x: Variable, axis: Any, keepdim: bool, name: Any) -> Variable:
    """Append a reduction of ``x`` over ``axis`` (None or an empty list: over all dimensions)."""
    if key == "mean":
        declare.floats("paddle.mean: x", x)
    dims = [] if axis is None else KINDS["ints"](f"paddle.{key}: axis", axis)
    everything = not dims or len(dims) >= len(x.shape)
    attrs = {"dim": dims if x.shape else [], "keep_dim": keepdim, "reduce_all": everything}
    out = LayerHelper(key, name).apply(type, {"X": x}, attrs, dtype=x.dtype)
    return out if (keepdim and x.shape) or not everything else scalar(out)


def _reduction(of: str) -> Callable[..., Variable]:
    type, key = _REDUCTIONS[of]

    def reduce(
        x: Variable, axis: Any = None, keepdim: bool = False, name: str | None = None
    ) -> Variable:
        """Reduce over ``axis``: an integer, a list of them, or None for all dimensions."""
        return reduced(type, key, x, axis, keepdim, name)

    def cast_and_reduce(
        x: Variable,
        axis: Any = None,
        dtype: Any = None,
        keepdim: bool = False,
        name: str | None = None,
    ) -> Variable:
        """Reduce over ``axis``, computed in ``dtype`` if that is given; booleans as int64."""
        wanted = "int64" if dtype is None and x.dtype in ("bool", "int32") else dtype
        if wanted is not None and KINDS["dtype"](f"paddle.{of}: dtype", wanted) != x.dtype:
            x = x.astype(wanted)
        return reduce(x, axis, keepdim, name)

    function: Callable[..., Variable] = cast_and_reduce if of in _CASTS else reduce
    if of == "prod":

        def function(
            x: Variable,
            axis: Any = None,
            keepdim: bool = False,
            dtype: Any = None,
            name: str | None = None,
        ) -> Variable:
            """Return the product over ``axis``, computed in ``dtype`` if that is given."""
            return cast_and_reduce(x, axis, dtype, keepdim, name)

    function.__name__ = function.__qualname__ = of
    return declare.composed("paddle")(function)


__all__ = list(_REDUCTIONS)
globals().update({name: _reduction(name) for name in _REDUCTIONS})
_OF_LOSSES = {**{how: globals()[how] for how in ("mean", "sum")}, "none": lambda losses: losses}


def reduced_losses(where: str, losses: Variable, reduction: str) -> Variable:
    """Return losses as ``reduction`` says: 'mean', 'sum' or 'none'."""
    if reduction not in _OF_LOSSES:
        raise GraphError(
            f"paddle.nn.functional.{where}: reduction: expected 'mean', 'sum' or 'none', got "
            f"{reduction!r}"
        )
    return _OF_LOSSES[reduction](losses)
