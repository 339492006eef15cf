"""Values copied, joined, cut and reshaped."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.checks import check_shape
from hpcdist.fluid.layers.constant import *  # noqa: F403 - Fluid has them here
from hpcdist.fluid.layers.extents import as_extents, has_variables, refuse_variables
from hpcdist.fluid.layers.helper import LayerHelper, append
from hpcdist.graph.variable import Variable
from hpcdist.ops.tensor.constant import VALUE_ATTRS

__all__ = [
    "assign",
    "concat",
    "expand",
    "flatten",
    "gather",
    "get_tensor_from_selected_rows",
    "merge_selected_rows",
    "reshape",
    "reverse",
    "shape",
    "slice",
    "split",
    "squeeze",
    "stack",
    "strided_slice",
    "transpose",
    "unsqueeze",
]


# -- copied ----------------------------------------------------------------------------------------
def assign(
    input: Variable | np.ndarray | Sequence[float], output: Variable | None = None
) -> Variable:
    """Copy a variable, or an array that becomes part of the Program, into ``output``.

    An array of float64 is stored as float32.

    Examples:
        >>> x = fluid.layers.assign(np.array([1, 2], "int64"))
        >>> fluid.Executor().run(fetch_list=[x])
        [array([1, 2])]
    """
    helper = LayerHelper("assign")
    if isinstance(input, Variable):
        return helper.apply("assign", {"X": input}, out=output, dtype=input.dtype)
    value = np.asarray(input)
    dtype = "float32" if value.dtype == np.float64 else value.dtype.name
    if dtype not in VALUE_ATTRS:
        raise GraphError(f"assign: expected an array of {', '.join(VALUE_ATTRS)}, got {dtype}")
    if value.size > 1024 * 1024:
        raise GraphError(
            f"assign: an array of {value.size} elements is too large for a Program; feed it, or "
            "create a parameter with NumpyArrayInitializer"
        )
    attrs = {
        "shape": list(value.shape),
        "dtype": dtype,
        VALUE_ATTRS[dtype]: value.astype(dtype).reshape(-1).tolist(),
    }
    return helper.apply("assign_value", {}, attrs, out=output, dtype=dtype)


def shape(input: Variable) -> Variable:
    """Return the extents (int32).

    Examples:
        >>> x = fluid.layers.assign(np.zeros((2, 3), "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.shape(x)])
        [array([2, 3], dtype=int32)]
    """
    return append("shape", {"Input": input}, dtype="int32")


# -- reshaped --------------------------------------------------------------------------------------
def _reshaping(
    helper: LayerHelper, type: str, x: Variable, attrs: dict[str, Any], more: Any = None
) -> Variable:
    """Append an operator that leaves a note of x's shape (XShape) for its gradient."""
    inputs, outputs = {"X": x, **(more or {})}, dict.fromkeys(("Out", "XShape"), x.dtype)
    return helper.apply_all(type, inputs, outputs, attrs, constant=("XShape",))[0]


def reshape(
    x: Variable,
    shape: Variable | Sequence[int | Variable],
    actual_shape: Variable | None = None,
    act: str | None = None,
    inplace: bool = False,  # memory is shared whenever possible
    name: str | None = None,
) -> Variable:
    """Reshape x: 0 keeps the extent at its position, one -1 is inferred.

    There may be Variables in the shape; ``actual_shape`` is one that wins over it.

    Examples:
        >>> x = fluid.data("x", [None, 6])
        >>> fluid.layers.reshape(x, [-1, 2, 3]).shape
        (-1, 2, 3)
    """
    check_shape("reshape", x, shape)
    helper = LayerHelper("reshape2", name)
    attrs, inputs = {"shape": as_extents(shape)}, {}
    if actual_shape is not None:  # what shape says is known until the step
        known = attrs["shape"] if not isinstance(shape, Variable) else []
        attrs["shape"] = [-1 if isinstance(d, Variable) else d for d in known]
        inputs = helper.slots_of("reshape2", {"shape": actual_shape})[0]
    out = _reshaping(helper, "reshape2", x, attrs, inputs)
    return helper.activate(out, act)


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """Order the dimensions anew.

    perm: for each dimension of the result, that of x.

    Examples:
        >>> x = fluid.data("x", [2, 3, 4])
        >>> fluid.layers.transpose(x, perm=[1, 0, 2]).shape
        (3, 2, 4)
    """
    return _reshaping(LayerHelper("transpose", name), "transpose2", x, {"axis": list(perm)})


def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """Make a matrix; the dimensions before ``axis`` become its rows.

    Examples:
        >>> x = fluid.data("x", [None, 3, 4])
        >>> fluid.layers.flatten(x, axis=1).shape
        (-1, 12)
    """
    return _reshaping(LayerHelper("flatten", name), "flatten2", x, {"axis": axis})


def squeeze(input: Variable, axes: Sequence[int], name: str | None = None) -> Variable:
    """Drop dimensions of extent 1; no axes: all of them.

    Examples:
        >>> x = fluid.data("x", [None, 1, 3])
        >>> fluid.layers.squeeze(x, axes=[1]).shape
        (-1, 3)
    """
    return _reshaping(LayerHelper("squeeze", name), "squeeze2", input, {"axes": list(axes)})


def unsqueeze(
    input: Variable, axes: int | Variable | Sequence[int | Variable], name: str | None = None
) -> Variable:
    """Insert dimensions of extent 1 at ``axes``, places in the result; the dtype stays.

    Examples:
        >>> x = fluid.data("x", [None, 3])
        >>> fluid.layers.unsqueeze(x, axes=[1]).shape
        (-1, 1, 3)
    """
    axis_list = [axes] if isinstance(axes, int) else as_extents(axes)
    return _reshaping(LayerHelper("unsqueeze2", name), "unsqueeze2", input, {"axes": axis_list})


# -- joined and cut --------------------------------------------------------------------------------
def concat(
    input: Sequence[Variable], axis: int | Variable = 0, name: str | None = None
) -> Variable:
    """Join values along a dimension.

    input: values of one type whose shapes agree except along ``axis``. Returns their sum along it.

    Examples:
        >>> a = fluid.data("a", [None, 3])
        >>> b = fluid.data("b", [None, 5])
        >>> fluid.layers.concat([a, b], axis=1).shape
        (-1, 8)
    """
    xs = [input] if isinstance(input, Variable) else list(input)
    return append("concat", {"X": xs}, name, dtype=xs[0].dtype, axis=axis)


def split(
    input: Variable,
    num_or_sections: int | Sequence[int | Variable],
    dim: int | Variable = -1,
    name: str | None = None,
) -> list[Variable]:
    """Cut into equal parts, or into parts of given extents, along a dimension.

    num_or_sections: a number of parts, or their extents (one may be -1). Returns a list of values.

    Examples:
        >>> x = fluid.data("x", [None, 6])
        >>> [part.shape for part in fluid.layers.split(x, num_or_sections=3, dim=1)]
        [(-1, 2), (-1, 2), (-1, 2)]
    """
    if isinstance(num_or_sections, Variable):
        refuse_variables("split", "num_or_sections", num_or_sections)
    sections: list[int | Variable]
    if isinstance(num_or_sections, int):
        num, sections, count = num_or_sections, [], num_or_sections
    else:
        num, sections, count = 0, list(num_or_sections), len(num_or_sections)
    helper = LayerHelper("split", name)
    outs = [helper.new_var(input.dtype) for _ in builtins.range(count)]
    axis = dim if isinstance(dim, Variable) or dim >= 0 else len(input.shape) + dim
    attrs = {"num": num, "sections": sections, "axis": axis}
    helper.append_op("split", {"X": input}, {"Out": outs}, attrs)
    return outs


def stack(x: Sequence[Variable], axis: int = 0) -> Variable:
    """Join values of one shape along a new dimension.

    Examples:
        >>> a = fluid.data("a", [None, 3])
        >>> b = fluid.data("b", [None, 3])
        >>> fluid.layers.stack([a, b], axis=1).shape
        (-1, 2, 3)
    """
    xs = [x] if isinstance(x, Variable) else list(x)
    return append("stack", {"X": xs}, slot="Y", dtype=xs[0].dtype, axis=axis)


Places = Variable | Sequence[int | Variable]


def slice(input: Variable, axes: Sequence[int], starts: Places, ends: Places) -> Variable:
    """Take a part along some dimensions; negative starts and ends count from the end.

    There may be Variables in both.

    Examples:
        >>> x = fluid.data("x", [None, 5])
        >>> fluid.layers.slice(x, axes=[1], starts=[1], ends=[4]).shape
        (-1, 3)
    """
    return _part("slice", input, axes, starts, ends)


def _part(
    type: str, input: Variable, axes: Sequence[int], starts: Places, ends: Places, **steps: Places
) -> Variable:
    attrs = {"starts": starts, "ends": ends, **steps}
    each = zip(axes, *(_each(places) for places in attrs.values()))
    flags = [-1 if has_variables(places) else 1 for _, *places in each]
    attrs = {name: as_extents(places) for name, places in attrs.items()}
    attrs |= {"axes": list(axes), "infer_flags": flags}
    return LayerHelper(type).apply(type, {"Input": input}, attrs, dtype=input.dtype)


def _each(places: Places) -> Iterable[int | Variable]:
    return itertools.repeat(places) if isinstance(places, Variable) else places


def strided_slice(
    input: Variable,
    axes: Sequence[int],
    starts: Places,
    ends: Places,
    strides: Places,
) -> Variable:
    """Take every ``strides``-th element of a part along some dimensions, backwards if negative.

    Examples:
        >>> x = fluid.data("x", [3, 6])
        >>> fluid.layers.strided_slice(x, axes=[1], starts=[0], ends=[6], strides=[2]).shape
        (3, 3)
    """
    return _part("strided_slice", input, axes, starts, ends, strides=strides)


def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """Turn the order of the elements round along some dimensions.

    Examples:
        >>> x = fluid.layers.assign(np.array([1, 2, 3], "int64"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.reverse(x, axis=0)])
        [array([3, 2, 1])]
    """
    attrs = {"axis": [axis] if isinstance(axis, int) else list(axis)}
    return LayerHelper("reverse").apply("reverse", {"X": x}, attrs, dtype=x.dtype)


def expand(x: Variable, expand_times: Places, name: str | None = None) -> Variable:
    """Repeat along every dimension, as often as numbers or Variables say.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1, 2]], "int64"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.expand(x, expand_times=[2, 1])])
        [array([[1, 2],
               [1, 2]])]
    """
    return append("expand", {"X": x}, name, expand_times=as_extents(expand_times))


def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """Take rows by their numbers; the gradient of a row taken twice is the sum of both.

    So it is whatever ``overwrite`` says: in Fluid it is that of one of them, unless False is given.

    ``index`` is int [n] or [n, 1], from 0 to the number of rows - 1: at a step FeedError for any
    other. The result is [n, *the shape of a row].

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0], [2.0], [3.0]], "float32"))
        >>> rows = fluid.layers.assign(np.array([2, 0], "int64"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.gather(x, rows)])
        [array([[3.],
               [1.]], dtype=float32)]
    """
    return append("gather", {"X": input, "Index": index}, overwrite=overwrite)


# -- rows of a sparse gradient ---------------------------------------------------------------------
def merge_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """Add up the repeated rows of SelectedRows."""
    return append("merge_selected_rows", {"X": x}, name)


def get_tensor_from_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """Return the values of SelectedRows as a dense value [rows, width]."""
    return append("get_tensor_from_selected_rows", {"X": x}, name)
