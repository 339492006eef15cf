"""Creation of values (identity, ranges, grids), and queries about values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.checks import whole
from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.extents import as_extents, has_variables
from hpcdist.fluid.layers.helper import LayerHelper, append, append_all, into
from hpcdist.fluid.layers.tensor import assign, cast, expand, fill_constant, reshape
from hpcdist.graph.dtypes import DTypeLike, canonical
from hpcdist.graph.variable import Variable

__all__ = [
    "add_position_encoding",
    "arange",
    "clamp",
    "elementwise_equal",
    "eye",
    "full",
    "full_like",
    "linspace",
    "mean_iou",
    "meshgrid",
    "randint",
    "randn",
    "random_crop",
    "randperm",
    "range",
    "rank",
    "sampling_id",
    "size",
]


def _constant(values: np.ndarray, dtype: DTypeLike) -> Variable:
    array = values.astype(canonical(dtype))
    if array.dtype == np.float64:
        return cast(assign(array.astype(np.float32)), "float64")
    return assign(array)


def range(start: Any, end: Any, step: Any, dtype: DTypeLike) -> Variable:
    """Return start, start + step, ... below end; Variables among them follow from shapes.

    Examples:
        >>> fluid.Executor().run(fetch_list=[fluid.layers.range(0, 6, 2, "int64")])
        [array([0, 2, 4])]
    """
    if not any(isinstance(value, Variable) for value in (start, end, step)):
        if not step or (end - start) * step < 0:
            raise GraphError(f"range: expected a step from {start} towards {end}, got {step}")
        return _constant(np.arange(start, end, step), dtype)
    slots = {}
    for slot, value in (("Start", start), ("End", end), ("Step", step)):
        if not isinstance(value, Variable):
            value = fill_constant([1], dtype, value, force_cpu=True)
        elif value.dtype != canonical(dtype):
            value = cast(value, dtype)
        slots[slot] = value
    return LayerHelper("range").apply("range", slots, dtype=dtype, stop_gradient=True)


def arange(
    start: float,
    end: float,
    step: float = 1,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Variable:
    """Return start, start + step, ... below end; float32 if dtype is not given.

    Examples:
        >>> fluid.Executor().run(fetch_list=[fluid.layers.arange(0, 6, step=2, dtype="int64")])
        [array([0, 2, 4])]
    """
    return range(start, end, step, "float32" if dtype is None else dtype)


def linspace(start: Any, stop: Any, num: Any, dtype: DTypeLike) -> Variable:
    """Return ``num`` numbers at equal distances, both ends included; there may be Variables.

    Examples:
        >>> fluid.Executor().run(fetch_list=[fluid.layers.linspace(0.0, 1.0, 3, "float32")])
        [array([0. , 0.5, 1. ], dtype=float32)]
    """
    if not has_variables([start, stop, num]):
        return _constant(np.linspace(start, stop, whole(num)), dtype)
    kinds = {"Start": dtype, "Stop": dtype, "Num": "int32"}
    slots = {
        slot: value if isinstance(value, Variable) else fill_constant([1], kinds[slot], value)
        for slot, value in zip(kinds, (start, stop, num))
    }
    slots["Num"].stop_gradient = True
    return append("linspace", slots)


def eye(
    num_rows: int,
    num_columns: int | None = None,
    batch_shape: Sequence[int] | None = None,
    dtype: DTypeLike = "float32",
) -> Variable:
    """Return an identity matrix, repeated for ``batch_shape``.

    Examples:
        >>> fluid.Executor().run(fetch_list=[fluid.layers.eye(2, dtype="int64")])
        [array([[1, 0],
               [0, 1]])]
    """
    helper = LayerHelper("eye")
    columns = num_rows if num_columns is None else num_columns
    if num_rows < 0 or columns < 0:
        raise GraphTypeError(f"layers.eye: expected no negative extents, got {num_rows}, {columns}")
    attrs = {"num_rows": num_rows, "num_columns": columns, "dtype": canonical(dtype)}
    out = helper.apply("eye", {}, attrs, dtype=dtype, stop_gradient=True)
    if batch_shape is None:
        return out
    wide = reshape(out, [1] * len(batch_shape) + [num_rows, columns])
    return expand(wide, [*batch_shape, 1, 1])


def full(
    shape: Sequence[int],
    fill_value: float,
    out: Variable | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """Return ``fill_value`` at every place of this shape; ``dtype``: float32 if None is given.

    Examples:
        >>> fluid.Executor().run(fetch_list=[fluid.layers.full([2], fill_value=1.5)])
        [array([1.5, 1.5], dtype=float32)]
    """
    tensor = fill_constant(shape, "float32" if dtype is None else dtype, fill_value, out=out)
    tensor.stop_gradient = stop_gradient
    return tensor


def full_like(
    input: Variable,
    fill_value: float,
    out: Variable | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """Return ``fill_value`` at every place of the shape of ``input``, by default of its dtype.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1, 2]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.full_like(x, fill_value=7)])
        [array([[7, 7]])]
    """
    kind = input.dtype if dtype is None else canonical(dtype)
    attrs = {"value": float(fill_value), "dtype": kind}
    helper = LayerHelper("full_like", name)
    tensor = helper.apply("fill_any_like", {"X": input}, attrs, dtype=kind)
    tensor.stop_gradient = stop_gradient
    return into(out, tensor)


# -- drawn -----------------------------------------------------------------------------------------
def randint(
    low: int,
    high: int | None = None,
    shape: Sequence[int] | None = None,
    out: Variable | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    stop_gradient: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Variable:
    """Draw integers of [low, high), or of [0, low); int64.

    Examples:
        >>> fluid.layers.randint(0, 10, shape=[3]).shape
        (3,)
    """
    least, bound = (0, low) if high is None else (low, high)
    kind = canonical("int64" if dtype is None else dtype)
    sizes = [1] if shape is None else as_extents(shape)
    attrs = {"shape": sizes, "low": least, "high": bound, "dtype": kind, "seed": seed}
    tensor = LayerHelper("randint", name).apply("randint", {}, attrs, dtype=kind)
    tensor.stop_gradient = stop_gradient
    return into(out, tensor)


def randn(
    shape: Sequence[int],
    out: Variable | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """Draw normal numbers of mean 0 and deviation 1.

    Examples:
        >>> fluid.layers.randn([2, 3]).shape
        (2, 3)
    """
    kind = canonical("float32" if dtype is None else dtype)
    attrs = {"shape": as_extents(shape), "mean": 0.0, "std": 1.0, "seed": 0, "dtype": kind}
    tensor = LayerHelper("randn", name).apply("gaussian_random", {}, attrs, dtype=kind)
    tensor.stop_gradient = stop_gradient
    return into(out, tensor)


def randperm(
    n: int,
    out: Variable | None = None,
    dtype: DTypeLike = "int64",
    device: str | None = None,
    stop_gradient: bool = True,
    seed: int = 0,
) -> Variable:
    """Draw an order of 0 .. n - 1.

    Returns [n] of ``dtype`` (int64); the same on all ranks.

    Examples:
        >>> fluid.layers.randperm(5).shape
        (5,)
    """
    if n < 1:
        raise GraphError(f"layers.randperm: n must be positive, got {n}")
    attrs = {"n": n, "dtype": canonical(dtype), "seed": seed}
    tensor = LayerHelper("randperm").apply("randperm", {}, attrs, dtype=dtype)
    tensor.stop_gradient = stop_gradient
    return into(out, tensor)


def sampling_id(
    x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0, dtype: DTypeLike = "float32"
) -> Variable:
    """Draw a column for each row, with the probabilities of the row.

    x: [rows, columns], each row adding up to 1. Returns [rows] of ``dtype``.

    Examples:
        >>> probabilities = fluid.layers.assign(np.array([[0.0, 1.0, 0.0]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.sampling_id(probabilities)])
        [array([1])]
    """
    attrs: dict[str, Any] = {"min": float(min), "max": float(max), "seed": seed}
    return append("sampling_id", {"X": x}, dtype="int64", stop_gradient=True, **attrs)


def random_crop(x: Variable, shape: Sequence[int], seed: int | None = None) -> Variable:
    """Cut a piece of this shape out of every sample, at a place that is drawn.

    Examples:
        >>> images = fluid.data("images", [None, 3, 32, 32])
        >>> fluid.layers.random_crop(images, shape=[3, 28, 28]).shape
        (-1, 3, 28, 28)
    """
    return append("random_crop", {"X": x}, shape=[whole(d) for d in shape], startup_seed=seed or 0)


# -- of coordinates --------------------------------------------------------------------------------
def meshgrid(input: Sequence[Variable], name: str | None = None) -> list[Variable]:
    """Repeat each of N vectors along the dimensions of the others.

    input: N vectors of lengths n1, ..., nN. Returns N values of shape [n1, ..., nN].

    Examples:
        >>> x, y = fluid.data("x", [3]), fluid.data("y", [5])
        >>> [out.shape for out in fluid.layers.meshgrid([x, y])]
        [(3, 5), (3, 5)]
    """
    helper = LayerHelper("meshgrid", name)
    outs = [helper.new_var(v.dtype) for v in input]
    helper.append_op("meshgrid", {"X": list(input)}, {"Out": outs})
    return outs


def add_position_encoding(
    input: Variable, alpha: float, beta: float, name: str | None = None
) -> Variable:
    """Return alpha input + beta sines and cosines of positions (Vaswani et al., 2017).

    input: [batch, length, width], width even, or [rows, width] in sequences. The result has its
    shape and type.

    Examples:
        >>> x = fluid.data("x", [None, 10, 16])
        >>> fluid.layers.add_position_encoding(x, alpha=1.0, beta=1.0).shape
        (-1, 10, 16)
    """
    attrs, helper = (
        {"alpha": float(alpha), "beta": float(beta)},
        LayerHelper("add_position_encoding", name),
    )
    out = helper.apply(helper.layer_type, {"X": input}, attrs, dtype=input.dtype)
    return out


# -- about values ----------------------------------------------------------------------------------
def rank(input: Variable) -> Variable:
    """Return the number of dimensions: int32 of shape (1,).

    Examples:
        >>> x = fluid.data("x", [None, 3, 4])
        >>> fluid.layers.rank(fluid.layers.assign(np.array([[1.0]]))).shape
        (1,)
    """
    return assign(np.array([len(input.shape)], "int32"))


def size(input: Variable) -> Variable:
    """Return the number of elements of ``input``, of any shape, as one int64.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0, 2.0]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.size(x)])
        [array([2])]
    """
    return append("size", {"Input": input}, dtype="int64", stop_gradient=True)


def clamp(
    input: Variable,
    min: float | Variable | None = None,
    max: float | Variable | None = None,
    output: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Limit every element to [min, max], one of which may be left out.

    Bounds may be Variables: one float32 number each.

    Examples:
        >>> x = fluid.layers.assign(np.array([-2.0, 0.5], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.clamp(x, min=-1.0, max=1.0)])
        [array([-1. ,  0.5], dtype=float32)]
    """
    if min is None and max is None:
        raise GraphError("layers.clamp: min or max must be given")
    bound = float(np.finfo(np.float32).max)
    bounds = {"min": -bound if min is None else min, "max": bound if max is None else max}
    attrs = {n: b if isinstance(b, Variable) else float(b) for n, b in bounds.items()}
    tensor = LayerHelper("clamp", name).apply("clip", {"X": input}, attrs, dtype=input.dtype)
    return into(output, tensor)


def elementwise_equal(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return which elements are equal, bool.

    x and y: one shape. Returns bool of that shape.

    Examples:
        >>> x, y = fluid.layers.assign(np.array([1, 2])), fluid.layers.assign(np.array([1, 3]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.elementwise_equal(x, y)])
        [array([ True, False])]
    """
    helper = LayerHelper("elementwise_equal", name)
    return helper.apply("equal", {"X": x, "Y": y}, dtype="bool", stop_gradient=True)


def mean_iou(input: Variable, label: Variable, num_classes: int) -> tuple[Variable, ...]:
    """Return the mean overlap of the classes, and how often each is wrong and right.

    input and label: int32 or int64 of one shape, classes 0..num_classes - 1. Returns float32 [1],
    and int32 [num_classes] twice.

    Examples:
        >>> found = fluid.layers.assign(np.array([0, 1, 1], "int32"))
        >>> label = fluid.layers.assign(np.array([0, 1, 0], "int32"))
        >>> out = fluid.layers.mean_iou(found, label, num_classes=2)[0]
        >>> fluid.Executor().run(fetch_list=[out])
        [array([0.5], dtype=float32)]
    """
    inputs = {"Predictions": input, "Labels": label}
    outputs = {"OutMeanIou": "float32", "OutWrong": "int32", "OutCorrect": "int32"}
    return append_all("mean_iou", inputs, {"num_classes": num_classes}, outputs)
