"""Functions of Paddle 2 that give values another shape, or another order."""

from __future__ import annotations

import builtins
import math
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import creation, declare
from hpcdist.fluid.compat.paddle2.declare import Extents, Ints, axis_of
from hpcdist.fluid.layers.helper import LayerHelper, append
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.variable import Variable


def split(
    x: Variable, num_or_sections: Any, axis: Any = 0, name: str | None = None
) -> list[Variable]:
    """Cut along ``axis`` into equal parts, or parts of given extents (one may be -1)."""
    if not isinstance(axis, Variable):
        axis_of("paddle.split", declare.KINDS["int"]("paddle.split: axis", axis), len(x.shape))
    return layers.split(x, num_or_sections, axis, name)


def chunk(x: Variable, chunks: int, axis: Any = 0, name: str | None = None) -> list[Variable]:
    """Cut along ``axis`` into equal parts."""
    return split(x, chunks, axis, name)


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """Return the parts along ``axis``, without it."""
    return layers.unstack(x, axis, num)


def unbind(input: Variable, axis: int = 0) -> list[Variable]:
    """Return the parts along ``axis``, without it."""
    return layers.unstack(input, axis)


def squeeze(x: Variable, axis: Ints | None = None, name: str | None = None) -> Variable:
    """Take dimensions of extent 1 away: those of ``axis``, or all. Others of ``axis`` stay."""
    where = "paddle.squeeze: axis"
    places = [axis_of(where, one, len(x.shape)) for one in axis or ()]
    axes = [place for place in places if x.shape[place] in (1, -1)]
    helper = LayerHelper("squeeze", name)
    if places and not axes:
        return helper.apply("assign", {"X": x}, dtype=x.dtype)
    outputs = {"Out": x.dtype, "XShape": x.dtype}
    return helper.apply_all("squeeze2", {"X": x}, outputs, {"axes": axes})[0]


def flatten(
    x: Variable, start_axis: int = 0, stop_axis: int = -1, name: str | None = None
) -> Variable:
    """Make one dimension of those from start_axis to stop_axis."""
    rank = max(len(x.shape), 1)
    first = axis_of("paddle.flatten: start_axis", start_axis, rank)
    last = axis_of("paddle.flatten: stop_axis", stop_axis, rank)
    if last < first:
        raise GraphError(f"paddle.flatten: stop_axis {stop_axis} is before start_axis {start_axis}")
    merged = x.shape[first : last + 1]
    extent = -1 if any(d < 0 for d in merged) else math.prod(merged)
    kept = builtins.sum(d < 0 for d in (*x.shape[:first], *x.shape[last + 1 :]))
    before = [0] * first if kept else list(x.shape[:first])
    behind = x.shape[last + 1 :]
    if any(d < 0 for d in behind) and extent == -1:
        raise GraphError(f"paddle.flatten: {x.shape} leaves two extents unknown: use reshape")
    shape = [*before, extent, *behind]
    outputs = dict.fromkeys(("Out", "XShape"), x.dtype)
    helper, attrs = LayerHelper("flatten", name), {"shape": shape}
    return helper.apply_all("reshape2", {"X": x}, outputs, attrs, constant=("XShape",))[0]


def tile(x: Variable, repeat_times: Extents, name: str | None = None) -> Variable:
    """Repeat ``x`` along each dimension; missing ones are put in front."""
    times = repeat_times if isinstance(repeat_times, list) else [repeat_times]
    if isinstance(repeat_times, Variable):
        return layers.expand(x, repeat_times, name)
    missing = len(times) - len(x.shape)
    if missing > 0:
        x = layers.unsqueeze(x, list(range(missing)))
    whole = [1] * max(-missing, 0) + times
    attrs = {"expand_times": whole}
    return LayerHelper("tile", name).apply("expand", {"X": x}, attrs, dtype=x.dtype)


def expand(x: Variable, shape: Extents, name: str | None = None) -> Variable:
    """Repeat dimensions of extent 1 so that the result has ``shape``; -1 keeps an extent."""
    wanted = shape if isinstance(shape, list) else None
    if wanted is None or any(isinstance(d, Variable) for d in wanted):
        if not is_float(x.dtype):
            zeros = creation.zeros(shape, x.dtype)
            return append("elementwise_add", {"X": x, "Y": zeros}, name, axis=-1)
        return x + creation.zeros(shape, x.dtype)
    missing = len(wanted) - len(x.shape)
    if missing < 0:
        raise GraphError(f"paddle.expand: {x.shape} cannot have shape {wanted}")
    if missing:
        x = layers.unsqueeze(x, list(range(missing)))
    times = []
    for have, want in zip(x.shape, wanted):
        if want not in (-1, have) and have not in (-1, 1):
            raise GraphError(f"paddle.expand: {x.shape} cannot have shape {wanted}")
        times.append(want if have == 1 and want != -1 else 1)
    if any(have == -1 and want not in (-1, 1) for have, want in zip(x.shape, wanted)):
        full = [want if want != -1 else 1 for want in wanted]
        return x + creation.zeros(full, x.dtype)
    return LayerHelper("expand", name).apply(
        "expand", {"X": x}, {"expand_times": times}, dtype=x.dtype
    )


broadcast_to = expand


def moveaxis(x: Variable, source: Ints, destination: Ints, name: str | None = None) -> Variable:
    """Put dimensions in other places."""
    rank = len(x.shape)
    to = {axis_of("paddle.moveaxis", d, rank): s for s, d in zip(source, destination)}
    moved = {axis_of("paddle.moveaxis", s, rank) for s in to.values()}
    others = iter(d for d in range(rank) if d not in moved)
    return layers.transpose(x, [to[d] % rank if d in to else next(others) for d in range(rank)])


def roll(x: Variable, shifts: Ints, axis: Ints | None = None, name: str | None = None) -> Variable:
    """Shift elements along ``axis`` (None: along all, as one row); what leaves enters again."""
    return layers.roll(x, shifts, axis)


def meshgrid(*args: Any, **kwargs: Any) -> list[Variable]:
    """Return grids whose dimensions are the vectors given."""
    given = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    return layers.meshgrid(list(declare.operands("paddle.meshgrid", given)))


def diag(x: Variable, offset: int = 0, padding_value: float = 0, name: Any = None) -> Variable:
    """Return a matrix with the elements of ``x`` on its diagonal."""
    if len(x.shape) != 1 or offset or padding_value:
        raise GraphError(
            f"paddle.diag: here of a vector, with offset and padding_value 0, got {x.shape}, "
            f"{offset}, {padding_value}: use paddle.diag_embed, or mask by paddle.eye"
        )
    return layers.diag(x)


__all__ = declare.offered("paddle", globals(), unchecked=["meshgrid"])
