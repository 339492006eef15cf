"""Functions of Paddle 2 along an axis, at places, and of positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import creation, declare
from hpcdist.fluid.compat.paddle2.composed.arithmetic import cast
from hpcdist.fluid.compat.paddle2.composed.selection import take_along_axis, where
from hpcdist.fluid.compat.paddle2.composed.shapes import expand
from hpcdist.fluid.compat.paddle2.declare import Ints, Variables, axis_of
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers.helper import LayerHelper, append
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.variable import Variable


# -- along an axis ---------------------------------------------------------------------------------
def cumprod(
    x: Variable, dim: int | None = None, dtype: Any = None, name: str | None = None
) -> Variable:
    """Return products of the elements so far along ``dim``; None: of all, as one row."""
    x = x if dtype is None or canonical(dtype) == x.dtype else cast(x, dtype)
    flat = layers.reshape(x, [-1]) if dim is None else x
    along = axis_of("paddle.cumprod", dim or 0, len(flat.shape))
    return append("cumprod", {"X": flat}, name, dim=along)


def logcumsumexp(
    x: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None
) -> Variable:
    """Return log(sum(exp)) of the elements so far along ``axis``; None: of all, as one row."""
    x = x if dtype is None or canonical(dtype) == x.dtype else cast(x, dtype)
    flat = layers.reshape(x, [-1]) if axis is None else x
    along = axis_of("paddle.logcumsumexp", axis or 0, len(flat.shape))
    return append("logcumsumexp", {"X": flat}, name, axis=along)


def _extreme(type: str) -> Any:
    def function(
        x: Variable, axis: int | None = None, dtype: Any = "int64", name: str | None = None
    ) -> tuple[Variable, Variable]:
        """Return the greatest (least) of the elements so far, and their places."""
        flat = layers.reshape(x, [-1]) if axis is None else x
        along = axis_of(f"paddle.{type}", axis or 0, len(flat.shape))
        helper, kinds = LayerHelper(type, name), {"out": x.dtype, "indices": "int64"}
        out, places = helper.apply_all(type, {"x": flat}, kinds, {"axis": along})
        return out, places if canonical(dtype) == "int64" else cast(places, dtype)

    function.__name__ = function.__qualname__ = type
    return function


cummax, cummin = _extreme("cummax"), _extreme("cummin")


def kthvalue(
    x: Variable, k: int, axis: int | None = None, keepdim: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """Return the k-th smallest elements along ``axis`` (the last), counted from 1, and places."""
    along = axis_of("paddle.kthvalue", -1 if axis is None else axis, len(x.shape))
    kinds, attrs = {"Out": x.dtype, "Indices": "int64"}, {"k": k, "axis": along, "keepdim": keepdim}
    out, places = LayerHelper("kthvalue", name).apply_all("kthvalue", {"X": x}, kinds, attrs)
    return out, places


def mode(
    x: Variable, axis: int = -1, keepdim: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """Return the commonest element along ``axis``, and its last place; of equals the least.

    Each element is compared with every other one along the axis.
    """
    along = axis_of("paddle.mode", axis, len(x.shape))
    ordered, order = layers.argsort(x, along)
    ends = {"X": layers.unsqueeze(ordered, [along]), "Y": layers.unsqueeze(ordered, [along + 1])}
    alike = cast(append("equal", ends, axis=-1), "int64")
    counts = layers.reduce_sum(alike, along)
    first = layers.unsqueeze(layers.argmax(counts, along), [along])
    last = first + layers.reduce_max(counts, along, True) - 1
    place = take_along_axis(order, last, along)
    found = [take_along_axis(x, place, along), place]
    value, index = found if keepdim else [layers.squeeze(one, [along]) for one in found]
    return value, index


def trapezoid(
    y: Variable, x: Any = None, dx: Any = None, axis: int = -1, name: str | None = None
) -> Variable:
    """Return the integral along ``axis`` of values that are ``dx`` (1), or as ``x``, apart."""
    if x is not None and dx is not None:
        raise GraphError("paddle.trapezoid: expected x or dx, not both")
    along = axis_of("paddle.trapezoid", axis, len(y.shape))
    before, behind = _neighbours(y, along)
    if x is None:
        steps = 1.0 if dx is None else dx
    else:
        low, high = _neighbours(x, len(x.shape) - 1 if len(x.shape) == 1 else along)
        steps = high - low
        if len(x.shape) == 1:
            steps = layers.reshape(steps, [-1, *[1] * (len(y.shape) - 1 - along)])
    parts = append("elementwise_add", {"X": behind, "Y": before}, axis=-1)
    parts = (
        append("elementwise_mul", {"X": parts, "Y": steps}, axis=-1)
        if x is not None
        else (parts * steps)
    )
    total = layers.reduce_sum(parts, along) * 0.5
    return scalar(total) if len(y.shape) == 1 else total


def _neighbours(x: Variable, along: int) -> tuple[Variable, Variable]:
    return (
        layers.slice(x, [along], [0], [-1]),
        layers.slice(x, [along], [1], [np.iinfo(np.int32).max]),
    )


def rot90(x: Variable, k: int = 1, axes: Ints = [0, 1], name: str | None = None) -> Variable:  # noqa: B006
    """Return ``x``, turned k times by a right angle, from the first of ``axes`` to the second."""
    rank = len(x.shape)
    first, second = (axis_of("paddle.rot90: axes", axis, rank) for axis in axes)
    order = list(range(rank))
    order[first], order[second] = second, first
    k %= 4
    if k == 0:
        return layers.assign(x)
    if k == 2:
        return append("flip", {"X": x}, name, dims=[first, second])
    if k == 1:
        return layers.transpose(append("flip", {"X": x}, dims=[second]), order)
    return append("flip", {"X": layers.transpose(x, order)}, name, dims=[second])


# -- places ----------------------------------------------------------------------------------------
def take(x: Variable, index: Variable, mode: str = "raise", name: str | None = None) -> Variable:
    """Return the elements at places in ``x`` as one row; ``mode``: 'raise', 'clip' or 'wrap'."""
    if -1 in x.shape:
        raise GraphError(f"paddle.take: of known extents only, got {x.shape}: use paddle.gather")
    count = int(np.prod(x.shape))
    if mode == "clip":
        bounds = (creation.full([1], bound, index.dtype) for bound in (0, count - 1))
        for type, bound in zip(("elementwise_max", "elementwise_min"), bounds):
            index = append(type, {"X": index, "Y": bound}, axis=-1)
    elif mode == "wrap":
        index = index % count
        index = (index + count) % count
    elif mode == "raise":  # which takes negative ones from the end
        index = index + cast(index < 0, index.dtype) * count
    else:
        raise GraphError(f"paddle.take: mode: expected 'raise', 'clip' or 'wrap', got {mode!r}")
    flat = layers.reshape(index, [-1])
    return layers.reshape(layers.gather(layers.reshape(x, [-1]), flat), list(index.shape))


def put_along_axis(
    arr: Variable,
    indices: Variable,
    values: Any,
    axis: int,
    reduce: str = "assign",
    include_self: bool = True,
    broadcast: bool = True,
) -> Variable:
    """Return ``arr`` with values at the places ``indices`` along ``axis``, by themselves or with
    what was there: 'add', 'mul', 'mean', 'amax', 'amin'."""
    how = {"assign", "add", "mul", "multiply", "mean", "amax", "amin"}
    if reduce not in how or not include_self:
        raise GraphError(
            f"paddle.put_along_axis: reduce: one of {sorted(how)}, with include_self, got {reduce}"
        )
    if not isinstance(values, Variable):
        values = creation.full([1] * len(arr.shape), values, arr.dtype)
    along = axis_of("paddle.put_along_axis", axis, len(arr.shape))
    if broadcast:
        shape = [d if k != along else indices.shape[k] for k, d in enumerate(arr.shape)]
        indices = indices if list(indices.shape) == shape else expand(indices, shape)
    inputs = {"Input": arr, "Index": indices, "Value": values}
    attrs: dict[str, Any] = {"Axis": along}
    attrs["Reduce"] = reduce
    helper = LayerHelper("put_along_axis")
    return helper.apply("put_along_axis", inputs, attrs, slot="Result", dtype=arr.dtype)


def crop(x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None) -> Variable:
    """Return a part of ``x``, of this shape (-1: all behind), from these places on (0)."""
    sizes = list(x.shape) if shape is None else declare.KINDS["ints"]("paddle.crop: shape", shape)
    begin = declare.KINDS["ints"]("paddle.crop: offsets", offsets or [0] * len(sizes))
    kept = [(k, b, s) for k, (b, s) in enumerate(zip(begin, sizes)) if b or s != x.shape[k]]
    if not kept:
        return layers.assign(x)
    ends = [np.iinfo(np.int32).max if s < 0 else b + s for _, b, s in kept]
    return layers.slice(x, [k for k, _, _ in kept], [b for _, b, _ in kept], ends)


# -- shapes and positions --------------------------------------------------------------------------
def vsplit(x: Variable, num_or_sections: Any, name: str | None = None) -> list[Variable]:
    """Cut along dimension 0."""
    if len(x.shape) < 2:
        raise GraphError(f"paddle.vsplit: expected two dimensions or more, got {x.shape}")
    return layers.split(x, num_or_sections, 0)


def _at_least(rank: int) -> Any:
    name = f"atleast_{rank}d"

    def function(*inputs: Any, name: str | None = None) -> Any:
        """Return values with dimensions of extent 1, so that they have enough of them."""
        many = declare.operands(f"paddle.atleast_{rank}d", list(inputs))
        found = [_raised(one, rank) for one in many]
        return found[0] if len(found) == 1 else found

    function.__name__ = function.__qualname__ = name
    return function


def _raised(x: Variable, rank: int) -> Variable:
    have = len(x.shape)
    if have >= rank:
        return x
    # Of three dimensions a matrix is the first two, and a row the second one, as of two.
    before = {0: 0, 1: 1, 2: 0}[have] if rank > 1 else 0
    return layers.unsqueeze(x, [*range(before), *range(have + before, rank)])


atleast_1d, atleast_2d, atleast_3d = map(_at_least, (1, 2, 3))


def diagflat(x: Variable, offset: int = 0, name: str | None = None) -> Variable:
    """Return a matrix with the elements of ``x`` on a diagonal."""
    flat = x if len(x.shape) == 1 else layers.reshape(x, [-1])
    return append("diag_embed", {"Input": flat}, name, offset=offset, dim1=-2, dim2=-1)


def tril_indices(
    row: int, col: int | None = None, offset: int = 0, dtype: Any = "int64"
) -> Variable:
    """Return the places [2, n] of the lower triangle of a matrix."""
    return _places("tril_indices", np.tril_indices, row, col, offset, dtype)


def triu_indices(
    row: int, col: int | None = None, offset: int = 0, dtype: Any = "int64"
) -> Variable:
    """Return the places [2, n] of the upper triangle of a matrix."""
    return _places("triu_indices", np.triu_indices, row, col, offset, dtype)


def _places(where: str, of: Any, row: Any, col: Any, offset: Any, dtype: Any) -> Variable:
    given = {"row": row, "col": row if col is None else col, "offset": offset}
    rows, columns, shift = (
        declare.KINDS["int"](f"paddle.{where}: {name}", value) for name, value in given.items()
    )
    return creation.assign(np.stack(of(rows, shift, columns)).astype(canonical(dtype)))


def logspace(
    start: float, stop: float, num: int, base: float = 10.0, dtype: Any = None, name: Any = None
) -> Variable:
    """Return powers of ``base``, whose exponents are evenly spaced from start to stop."""
    kind = "float32" if dtype is None else canonical(dtype)
    return creation.assign(np.logspace(start, stop, num, base=base).astype(kind))


def _first(x: Variable, along: int) -> tuple[Variable, list[int]]:
    """Return ``x`` with dimension ``along`` first, and the order that takes it back there."""
    rest = [d for d in range(len(x.shape)) if d != along]
    back = [*range(1, along + 1), 0, *range(along + 1, len(x.shape))]
    return (layers.transpose(x, [along, *rest]) if along else x), back


def _of_vector(where: str, index: Variable) -> Variable:
    if len(index.shape) != 1 or index.dtype not in ("int32", "int64"):
        raise GraphError(
            f"{where}: index: expected integers in one dimension, got "
            f"{index.shape} of {index.dtype}"
        )
    return index


def index_add(
    x: Variable, index: Variable, axis: int, value: Variable, name: str | None = None
) -> Variable:
    """Return ``x`` plus ``value`` [..., len(index), ...] at the places ``index`` along ``axis``."""
    along = axis_of("paddle.index_add: axis", axis, len(x.shape))
    (front, back), (more, _) = _first(x, along), _first(value, along)
    places = layers.unsqueeze(_of_vector("paddle.index_add", index), [1])
    inputs = {"X": front, "Index": places, "Updates": more}
    return layers.transpose(append("scatter_nd_add", inputs, name), back)


def index_fill(
    x: Variable, index: Variable, axis: int, value: Any, name: str | None = None
) -> Variable:
    """Return ``x`` with ``value`` at the places ``index`` along ``axis``."""
    along = axis_of("paddle.index_fill: axis", axis, len(x.shape))
    front, back = _first(x, along)
    rows = layers.gather(front, _of_vector("paddle.index_fill", index)) * 0
    filled = (
        rows + value
        if isinstance(value, Variable)
        else append(
            "fill_any_like",
            {"X": rows},
            value=declare.KINDS["float"]("paddle.index_fill: value", value),
        )
    )
    inputs = {"X": front, "Ids": index, "Updates": filled}
    return layers.transpose(append("scatter", inputs, name, overwrite=True), back)


def index_put(
    x: Variable, indices: Variables, value: Variable, accumulate: bool = False, name: Any = None
) -> Variable:
    """Return ``x`` with ``value`` at places, or with it added there.

    ``indices``: integers for each of the first dimensions, or one mask of all of them.
    """
    if len(indices) == 1 and indices[0].dtype == "bool" and indices[0].shape == x.shape:
        new = x + value if accumulate else expand(value, list(x.shape))
        return where(indices[0], new, x)
    known = x.shape[: len(indices)]
    if len(indices) > len(x.shape) or any(i.dtype not in ("int32", "int64") for i in indices):
        raise GraphError(
            f"paddle.index_put: indices: expected integers for the first dimensions of {x.shape}, "
            f"or a mask of this shape, got {[(i.shape, i.dtype) for i in indices]}"
        )
    if -1 in known[1:]:
        raise GraphError(f"paddle.index_put: x: extents behind the first must be known: {x.shape}")
    place = cast(indices[0], "int64")  # in the first dimensions, counted as one
    for one, extent in zip(indices[1:], known[1:]):
        place = append("elementwise_add", {"X": place * extent, "Y": cast(one, "int64")}, axis=-1)
    rest = list(x.shape[len(indices) :])
    rows = expand(value, [*place.shape, *rest])
    inputs = {
        "X": layers.reshape(x, [-1, *rest]),
        "Ids": layers.reshape(place, [-1]),
        "Updates": layers.reshape(rows, [-1, *rest]),
    }
    if accumulate:
        inputs["Index"] = layers.unsqueeze(inputs.pop("Ids"), [1])
        out = append("scatter_nd_add", inputs, name)
    else:
        out = append("scatter", inputs, name, overwrite=True)
    return layers.reshape(out, list(x.shape))


_UNCHECKED = ("atleast_1d", "atleast_2d", "atleast_3d", "tril_indices", "triu_indices")
__all__ = declare.offered("paddle", globals(), unchecked=_UNCHECKED)
