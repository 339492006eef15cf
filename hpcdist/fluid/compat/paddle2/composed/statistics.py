"""Functions of Paddle 2 that count, order and compare values."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import declare, reductions
from hpcdist.fluid.compat.paddle2.composed.arithmetic import cast, norm
from hpcdist.fluid.compat.paddle2.composed.questions import isnan
from hpcdist.fluid.compat.paddle2.composed.selection import where
from hpcdist.fluid.compat.paddle2.declare import Ints, axis_of
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers.helper import append
from hpcdist.graph.variable import Variable


def _quantile(of: str, x: Variable, q: Any, axis: Any, keepdim: bool, skip: bool) -> Variable:
    """Return quantiles in float64, between the two values next to them; ``skip``: without NaN."""
    many = list(q) if isinstance(q, (list, tuple)) else [q]
    chances = [declare.KINDS["float"](f"paddle.{of}: q", one) for one in many]
    if not chances or not all(0 <= chance <= 1 for chance in chances):
        raise GraphError(f"paddle.{of}: q: expected numbers within 0..1, got {q!r}")
    rank = len(x.shape)
    dims = list(range(rank)) if axis is None else axis
    over = sorted({axis_of(f"paddle.{of}: axis", one, rank) for one in dims})
    kept = [d for d in range(rank) if d not in over]
    counted = math.prod(x.shape[d] for d in over) if all(x.shape[d] > 0 for d in over) else -1
    rows = layers.reshape(layers.transpose(x, kept + over), [-1, counted] if kept else [1, -1])
    unknown = isnan(rows)
    counts = cast(reductions.sum(cast(unknown, "int64"), -1, None, True), "float64")  # type: ignore[attr-defined]
    last = cast(layers.slice(layers.shape(rows), [0], [1], [2]), "float64") - 1.0
    ordered = layers.argsort(rows, -1)[0]  # NaN is behind all others
    shape = [1 if d in over else x.shape[d] for d in (range(rank) if keepdim else kept)]
    found = []
    for chance in chances:
        place = (last - counts) * chance
        if not skip:
            place = where(counts > 0.0, layers.zeros_like(counts) + last, place)
        place = layers.elementwise_max(place, layers.zeros_like(place))
        below, above = layers.floor(place), layers.ceil(place)
        ends = (layers.index_sample(ordered, cast(p, "int64")) for p in (below, above))
        low, high = (cast(end, "float64") for end in ends)
        between = low + (high - low) * (place - below)
        found.append(layers.reshape(between, shape) if shape else scalar(between))
    return layers.stack(found, 0) if isinstance(q, (list, tuple)) and len(found) > 1 else found[0]


def quantile(x: Variable, q: Any, axis: Ints | None = None, keepdim: bool = False) -> Variable:
    """Return the quantiles ``q`` (one number or several) over ``axis`` in float64; NaN if one is.

    Several are in a dimension of their own, the first.
    """
    return _quantile("quantile", x, q, axis, keepdim, False)


def nanquantile(x: Variable, q: Any, axis: Ints | None = None, keepdim: bool = False) -> Variable:
    """Return the quantiles ``q`` of what is not NaN."""
    return _quantile("nanquantile", x, q, axis, keepdim, True)


def nanmedian(
    x: Variable, axis: Ints | None = None, keepdim: bool = False, name: str | None = None
) -> Variable:
    """Return the middle value over ``axis`` of what is not NaN, of two the mean."""
    return cast(_quantile("nanmedian", x, 0.5, axis, keepdim, True), x.dtype)


def histogram(
    input: Variable, bins: int = 100, min: float = 0, max: float = 0, name: str | None = None
) -> Variable:
    """Return how many elements are in each of ``bins`` parts of [min, max]; 0, 0: of the data."""
    if bins < 1 or min > max:
        raise GraphError(
            f"paddle.histogram: expected bins from 1 on and min <= max, got {bins}, {min}, {max}"
        )
    flat = cast(layers.reshape(input, [-1, 1]), "float32")
    if min == max == 0:
        low, high = reductions.min(flat), reductions.max(flat)  # type: ignore[attr-defined]
        alike = cast(low == high, "float32")
        low, high = low - alike, high + alike
        inside = cast(flat == flat, "int64")  # type: ignore[arg-type]
    else:
        low, high = (min - 1.0, max + 1.0) if min == max else (float(min), float(max))
        inside = cast(flat >= low, "int64") * cast(flat <= high, "int64")
    place = cast((flat - low) * float(bins) / (high - low), "int64")
    last = layers.zeros_like(place) + (bins - 1)
    place = layers.elementwise_max(layers.elementwise_min(place, last), layers.zeros_like(place))
    marks = cast(append("one_hot_v2", {"X": layers.squeeze(place, [1])}, depth=bins), "int64")
    return reductions.sum(marks * inside, 0)  # type: ignore[attr-defined]


def cdist(
    x: Variable,
    y: Variable,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
    name: str | None = None,
) -> Variable:
    """Return the p-norms of differences of rows: [..., n, d] and [..., m, d] give [..., n, m]."""
    if len(x.shape) < 2 or len(y.shape) < 2 or x.shape[-1] != y.shape[-1]:
        raise GraphError(
            f"paddle.cdist: expected rows of one width, [..., n, d] and [..., m, d], got {x.shape} "
            f"and {y.shape}"
        )
    ways = [f"{use}use_mm_for_euclid_dist" for use in ("", "donot_")]
    if compute_mode not in (*ways, f"{ways[0]}_if_necessary"):
        raise GraphError(
            f"paddle.cdist: compute_mode: expected one of {ways}, got {compute_mode!r}"
        )
    left, right = layers.unsqueeze(x, [-2]), layers.unsqueeze(y, [-3])
    apart = append("elementwise_sub", {"X": left, "Y": right}, axis=-1)
    return norm(apart, p, -1)


def vander(
    x: Variable, n: int | None = None, increasing: bool = False, name: str | None = None
) -> Variable:
    """Return the powers of the elements of [k] as columns, the greatest first: [k, n]."""
    if len(x.shape) != 1 or (n is None and x.shape[0] < 0) or (n is not None and n < 0):
        raise GraphError(
            f"paddle.vander: expected a value of one dimension and n from 0 on, got {x.shape}, {n}"
        )
    count = x.shape[0] if n is None else n
    powers = [layers.ones_like(x)] if count else []
    while len(powers) < count:
        powers.append(powers[-1] * x)
    return layers.stack(powers if increasing else powers[::-1], 1)


def heaviside(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return 0 below 0, 1 above it, ``y`` at 0."""
    above, there = (append(t, {"X": x, "Y": layers.zeros_like(x)}) for t in _SIDES)
    at = append("elementwise_mul", {"X": cast(there, y.dtype), "Y": y}, axis=-1)
    return append("elementwise_add", {"X": cast(above, y.dtype), "Y": at}, name, axis=-1)


_SIDES = ("greater_than", "equal")


def ldexp(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return x 2^y in floats."""
    kind = x.dtype if x.dtype == "float64" else "float32"
    powers = layers.exp(cast(y, kind) * 0.6931471805599453)
    return append("elementwise_mul", {"X": cast(x, kind), "Y": powers}, name, axis=-1)


__all__ = declare.offered("paddle", globals())
