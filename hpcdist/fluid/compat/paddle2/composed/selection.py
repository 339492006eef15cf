"""Functions of Paddle 2 that choose elements: by places, by masks, by size, by chance."""

from __future__ import annotations

import builtins
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import creation, declare
from hpcdist.fluid.compat.paddle2.composed.arithmetic import cast
from hpcdist.fluid.compat.paddle2.composed.shapes import expand
from hpcdist.fluid.compat.paddle2.declare import Ints, Variables, axis_of
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers.helper import LayerHelper, append
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.variable import Variable


def gather(x: Variable, index: Variable, axis: Any = None, name: str | None = None) -> Variable:
    """Return the parts of ``x`` at the places ``index`` along ``axis`` (0)."""
    if isinstance(axis, Variable):
        raise GraphError("paddle.gather: axis must be an integer here, got a Variable")
    if len(index.shape) > 1 and index.shape[1:] != (1,):
        raise GraphError(f"paddle.gather: index: expected [n], or [n, 1], got {list(index.shape)}")
    flat = index if len(index.shape) == 1 else layers.reshape(index, [-1])
    along = axis_of("paddle.gather", axis or 0, len(x.shape))
    if along == 0:
        parts = append("gather", {"X": x, "Index": flat}, name)
    else:
        parts = layers.index_select(x, flat, along)
    return parts if index.shape else layers.squeeze(parts, [along])


def where(condition: Variable, x: Any = None, y: Any = None, name: str | None = None) -> Any:
    """Return elements of ``x`` where the condition holds, else of ``y``; broadcast to one shape.

    Without x and y, where it holds: see ``nonzero``.
    """
    if x is None and y is None:
        return nonzero(condition, as_tuple=True)
    if x is None or y is None:
        raise GraphError("paddle.where: expected both x and y, or none of them")
    kind = next((v.dtype for v in (x, y) if isinstance(v, Variable)), None)
    if kind is None:
        kind = "float32" if isinstance(x, float) or isinstance(y, float) else "int64"
    sides = [v if isinstance(v, Variable) else creation.full([1], v, kind) for v in (x, y)]
    shape = condition.shape
    if any(v.shape != shape for v in sides):
        zero = _zeros(cast(condition, sides[0].dtype)) + _zeros(sides[0]) + _zeros(sides[1])
        sides = [v + zero for v in sides]
        condition = (
            append("logical_or", {"X": condition, "Y": cast(zero, "bool")})
            if zero.shape == shape
            else cast(cast(condition, zero.dtype) + zero, "bool")
        )
    inputs = {"Condition": condition, "X": sides[0], "Y": sides[1]}
    return append("where", inputs, name, dtype=sides[0].dtype)


def _zeros(x: Variable) -> Variable:
    """Return zeros in the shape of ``x``, whatever it holds: NaN * 0 is NaN."""
    return append("fill_any_like", {"X": x}, value=0.0, stop_gradient=True)


def nonzero(x: Variable, as_tuple: bool = False) -> Any:
    """Return the places of the elements that are not zero, [n, rank]; n is known in the step."""
    found = append("where_index", {"Condition": cast(x, "bool")}, dtype="int64")
    if not as_tuple:
        return found
    return tuple(layers.slice(found, [1], [d], [d + 1]) for d in range(len(x.shape)))


def masked_select(x: Variable, mask: Variable, name: str | None = None) -> Variable:
    """Return the elements of ``x`` where ``mask`` holds, as a vector."""
    return layers.gather_nd(x, nonzero(mask))


def masked_fill(x: Variable, mask: Variable, value: Any, name: str | None = None) -> Variable:
    """Return ``x`` with ``value`` where ``mask`` holds."""
    return where(mask, value, x)


def argmax(
    x: Variable,
    axis: int | None = None,
    keepdim: bool = False,
    dtype: Any = "int64",
    name: str | None = None,
) -> Variable:
    """Return the place of the greatest element along ``axis``; None: among all."""
    return _arg("arg_max", x, axis, keepdim, dtype, name)


def argmin(
    x: Variable,
    axis: int | None = None,
    keepdim: bool = False,
    dtype: Any = "int64",
    name: str | None = None,
) -> Variable:
    """Return the place of the least element along ``axis``; None: among all."""
    return _arg("arg_min", x, axis, keepdim, dtype, name)


def _arg(
    type: str, x: Variable, axis: int | None, keepdim: bool, dtype: Any, name: str | None
) -> Variable:
    of = layers.reshape(x, [-1]) if axis is None else x
    attrs = {"axis": -1 if axis is None else axis, "keepdims": keepdim, "dtype": canonical(dtype)}
    place = LayerHelper(type.replace("_", ""), name).apply(
        type, {"X": of}, attrs, dtype=dtype, stop_gradient=True
    )
    return scalar(place) if len(of.shape) == 1 and not keepdim else place


def topk(
    x: Variable,
    k: Any,
    axis: int | None = None,
    largest: bool = True,
    sorted: bool = True,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Return the k greatest (or least) elements along ``axis`` (the last) and their places."""
    rank = len(x.shape)
    along = axis_of("paddle.topk", -1 if axis is None else axis, rank)
    order = [d for d in range(rank) if d != along] + [along]
    turned = layers.transpose(x, order) if along != rank - 1 else x
    sign = turned if largest else layers.scale(turned, -1.0)
    helper = LayerHelper("top_k_v2", name)
    outputs = {"Out": x.dtype, "Indices": "int64"}
    _, indices = helper.apply_all("top_k", {"X": sign}, outputs, {"k": k}, constant=outputs)
    values = _taken(turned, indices)
    if along != rank - 1:
        back = _sorted_places(order)
        values, indices = layers.transpose(values, back), layers.transpose(indices, back)
    return values, indices


def _sorted_places(order: list[int]) -> list[int]:
    """Return the permutation that undoes ``order``."""
    return builtins.sorted(range(len(order)), key=order.__getitem__)


def _taken(x: Variable, indices: Variable) -> Variable:
    """Return elements along the last dimension; gradients flow to them."""
    if len(x.shape) == 2:
        return layers.index_sample(x, indices)
    if len(x.shape) == 1:
        return layers.gather(x, indices)
    if indices.shape.count(-1) > 1 or x.shape[-1] < 0:
        raise GraphError(
            f"paddle.topk: of {x.shape} one extent may be unknown, and not the one it is along"
        )
    rows = layers.reshape(x, [-1, x.shape[-1]])
    places = layers.reshape(indices, [-1, indices.shape[-1]])
    return layers.reshape(layers.index_sample(rows, places), list(indices.shape))


def median(
    x: Variable, axis: int | None = None, keepdim: bool = False, name: str | None = None
) -> Variable:
    """Return the middle value along ``axis`` (of all), of two the mean; NaN where there is one."""
    flat = layers.reshape(x, [-1]) if axis is None else x
    along = axis_of("paddle.median", axis or 0, len(flat.shape))
    count = flat.shape[along]
    if count < 0:
        raise GraphError(
            f"paddle.median: axis: {x.name!r} has an open extent there, {x.shape}: give it one"
        )
    least = topk(flat, count // 2 + 1, along, False)[0]
    middle = [count // 2] if count % 2 else [count // 2 - 1, count // 2]
    dtype = "float64" if x.dtype == "float64" else "float32"
    values = [cast(layers.slice(least, [along], [k], [k + 1]), dtype) for k in middle]
    out = values[0] if len(values) == 1 else (values[0] + values[1]) / 2.0
    if x.dtype in ("float32", "float64"):
        unknown = layers.elementwise_sub(flat, flat)  # 0, or NaN
        out = out + layers.reduce_sum(unknown, along, keep_dim=True)
    if axis is None:
        return layers.reshape(out, [1] * len(x.shape)) if keepdim else scalar(out)
    return out if keepdim else layers.squeeze(out, [along])


def take_along_axis(
    arr: Variable, indices: Variable, axis: int, broadcast: bool = True
) -> Variable:
    """Return the elements of ``arr`` at the places ``indices`` along ``axis``."""
    rank = len(arr.shape)
    along = axis_of("paddle.take_along_axis", axis, rank)
    if along == rank - 1:
        return _taken(arr, indices)
    order = [d for d in range(rank) if d != along] + [along]
    taken = _taken(layers.transpose(arr, order), layers.transpose(indices, order))
    return layers.transpose(taken, _sorted_places(order))


def multiplex(inputs: Variables, index: Variable, name: str | None = None) -> Variable:
    """Return row i of the input that ``index`` names for it."""
    return layers.multiplex(inputs, index)


def scatter_nd(index: Variable, updates: Variable, shape: Ints, name: Any = None) -> Variable:
    """Return zeros of this shape with the updates added at their places."""
    return layers.scatter_nd(index, updates, shape)


def expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Repeat dimensions of extent 1 so that the result has the shape of ``y``."""
    if all(extent >= 0 for extent in y.shape):
        return expand(x, list(y.shape), name)
    zeros = append("fill_any_like", {"X": y}, value=0.0, dtype=x.dtype)
    zeros.stop_gradient = True
    return append("elementwise_add", {"X": x, "Y": zeros}, name, axis=-1)


def unique(
    x: Variable,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: Any = None,
    dtype: Any = "int64",
    name: str | None = None,
) -> Any:
    """Return the values that occur in a vector, each once, ascending."""
    if return_index or axis is not None:
        raise GraphError("paddle.unique: return_index and axis are not there: use paddle.argsort")
    kind = canonical(dtype)
    outputs = {"Out": x.dtype, "Index": kind, "Count": kind}
    type = "unique_with_counts" if return_counts else "unique"
    made = outputs if return_counts else {k: outputs[k] for k in ("Out", "Index")}
    helper = LayerHelper("unique", name)
    out, *rest = helper.apply_all(type, {"X": x}, made, {"dtype": kind}, constant=made)
    ordered, order = layers.argsort(out)
    found = [ordered]
    if return_inverse:  # the place of a value in the order, by its first place
        found.append(layers.gather(cast(layers.argsort(order)[1], kind), rest[0]))
    found += [layers.gather(count, order) for count in rest[1:]]
    return tuple(found) if len(found) > 1 else ordered


def multinomial(
    x: Variable, num_samples: int = 1, replacement: bool = False, name: str | None = None
) -> Variable:
    """Draw places along the last dimension with probabilities in proportion to ``x``.

    Without replacement, they are those of the greatest x / e, e drawn from an exponential
    distribution.
    """
    if replacement and num_samples > 1:
        rows = [_drawn(x, 1) for _ in range(num_samples)]
        return layers.concat(rows, -1)
    return _drawn(x, num_samples)


def _drawn(x: Variable, count: int) -> Variable:
    uniform = layers.uniform_random_batch_size_like(x, list(x.shape), x.dtype, min=0.0, max=1.0)
    keys = layers.log(x) - layers.log(layers.scale(layers.log(uniform), -1.0))
    return topk(keys, count)[1]


__all__ = declare.offered("paddle", globals())
