"""Arithmetic on values: element by element, matrix products, reductions, clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.extents import refuse_variables
from hpcdist.fluid.layers.helper import LayerHelper, append, named
from hpcdist.graph.variable import Variable

__all__ = [
    "argmax",
    "argmin",
    "clip",
    "clip_by_norm",
    "elementwise_add",
    "elementwise_div",
    "elementwise_floordiv",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mod",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
    "has_inf",
    "has_nan",
    "isfinite",
    "matmul",
    "mean",
    "mul",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "scale",
    "sum",
    "sums",
]


# -- two values, element by element ----------------------------------------------------------------
def _elementwise(type: str, first: str, second: str) -> Callable[..., Variable]:
    def layer(
        x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
    ) -> Variable:
        helper = LayerHelper(type, name)
        out = helper.apply(type, {"X": x, "Y": y}, {"axis": axis}, dtype=x.dtype)
        return helper.activate(out, act)

    return named(type, layer, _ELEMENTWISE.format(type=type, first=first, second=second))


_ELEMENTWISE = """Append ``{type}`` of x and y; y is placed within x at ``axis`` (-1: its end).

x: any shape; y: the same element type, and a part of its dimensions, or 1 there. The result has the
shape and type of x.

Examples:
    >>> x = fluid.layers.assign(np.array([[3, 8], [5, 9]], "int32"))
    >>> y = fluid.layers.assign(np.array([3, 2], "int32"))
    >>> fluid.Executor().run(fetch_list=[fluid.layers.{type}(x, y)])
    [array([[{first}],
           [{second}]], dtype=int32)]
"""


elementwise_add = _elementwise("elementwise_add", " 6, 10", " 8, 11")
elementwise_sub = _elementwise("elementwise_sub", "0, 6", "2, 7")
elementwise_mul = _elementwise("elementwise_mul", " 9, 16", "15, 18")
elementwise_div = _elementwise("elementwise_div", "1, 4", "1, 4")
elementwise_max = _elementwise("elementwise_max", "3, 8", "5, 9")
elementwise_min = _elementwise("elementwise_min", "3, 2", "3, 2")
elementwise_pow = _elementwise("elementwise_pow", " 27,  64", "125,  81")
elementwise_mod = _elementwise("elementwise_mod", "0, 0", "2, 1")
elementwise_floordiv = _elementwise("elementwise_floordiv", "1, 4", "1, 4")


def sum(x: Variable | Sequence[Variable]) -> Variable:
    """Return the sum of values of one shape and dtype, element by element.

    Examples:
        >>> a = fluid.layers.assign(np.array([1.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.sum([a, a])])
        [array([2.], dtype=float32)]
    """
    return sums(x)


def sums(input: Variable | Sequence[Variable], out: Variable | None = None) -> Variable:
    """Add values of one shape into ``out``, or into a new variable.

    Examples:
        >>> a = fluid.layers.assign(np.array([1.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.sums([a, a, a])])
        [array([3.], dtype=float32)]
    """
    xs = [input] if isinstance(input, Variable) else list(input)
    return LayerHelper("sum").apply("sum", {"X": xs}, out=out, dtype=xs[0].dtype)


# -- matrix products -------------------------------------------------------------------------------
def mul(
    x: Variable,
    y: Variable,
    x_num_col_dims: int = 1,
    y_num_col_dims: int = 1,
    name: str | None = None,
) -> Variable:
    """Multiply matrices; the first ``*_num_col_dims`` dimensions of each count as its rows.

    Examples:
        >>> x = fluid.data("x", [None, 3, 4])
        >>> w = fluid.data("w", [12, 5])
        >>> fluid.layers.mul(x, w).shape
        (-1, 5)
    """
    attrs = {"x_num_col_dims": x_num_col_dims, "y_num_col_dims": y_num_col_dims}
    return LayerHelper("mul", name).apply("mul", {"X": x, "Y": y}, attrs, dtype=x.dtype)


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """Multiply the last two dimensions, batch by batch; a vector is a row (x) or a column (y).

    x: [..., m, k], y: [..., k, n] (before ``transpose_x`` and ``transpose_y``), with equal leading
    dimensions, or one without: GraphError otherwise. Returns [..., m, n] times ``alpha``.

    Examples:
        >>> x = fluid.data("x", [2, 3])
        >>> y = fluid.data("y", [4, 3])
        >>> fluid.layers.matmul(x, y, transpose_y=True).shape
        (2, 4)
    """
    _expect_equal_batches(x, y)
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": float(alpha)}
    return LayerHelper("matmul", name).apply("matmul", {"X": x, "Y": y}, attrs, dtype=x.dtype)


def _expect_equal_batches(x: Variable, y: Variable) -> None:
    """Raise GraphError if both are batches of matrices, and not of equally many."""
    batches = x.shape[:-2], y.shape[:-2]
    if all(batches) and (
        len(x.shape) != len(y.shape) or any(a != b and min(a, b) > 0 for a, b in zip(*batches))
    ):
        raise GraphError(
            f"matmul: x {x.name!r} {x.shape} and y {y.name!r} {y.shape} are batches of matrices: "
            "expected equal dimensions before the last two, or one matrix without any; repeat the "
            "smaller one with layers.expand"
        )


# -- reductions ------------------------------------------------------------------------------------
def mean(x: Variable, name: str | None = None) -> Variable:
    """Average everything to shape (1,).

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0, 2.0], [3.0, 6.0]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.mean(x)])
        [array([3.], dtype=float32)]
    """
    return append("mean", {"X": x}, name)


def reduction(type: str, what: str = "", gives: str = "", **result: Any) -> Callable[..., Variable]:
    """Return the layer of a reduction; ``result``: facts of its value, such as a ``dtype``.

    Without a docstring ``what``, its example ``gives`` these numbers.
    """

    def layer(
        input: Variable,
        dim: int | Sequence[int] | None = None,
        keep_dim: bool = False,
        name: str | None = None,
    ) -> Variable:
        refuse_variables(type, "dim", dim)
        dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
        attrs = {
            "dim": dims or [0],
            "keep_dim": keep_dim,
            "reduce_all": not dims or len(dims) == len(input.shape),
        }
        facts = {"dtype": input.dtype, **result}
        return LayerHelper(type, name).apply(type, {"X": input}, attrs, **facts)

    return named(type, layer, what or _REDUCTION.format(type=type, gives=gives))


_REDUCTION = """Append ``{type}`` over ``dim``; None: over all, to shape (1,).

input: any shape; the result has its type, and the shape without ``dim`` (keep_dim: with 1 there).

Examples:
    >>> x = fluid.layers.assign(np.array([[1.0, 2.0], [3.0, 6.0]], "float32"))
    >>> fluid.Executor().run(fetch_list=[fluid.layers.{type}(x, dim=1)])
    [array([{gives}], dtype=float32)]
"""

reduce_sum = reduction("reduce_sum", gives="3., 9.")
reduce_mean = reduction("reduce_mean", gives="1.5, 4.5")
reduce_max = reduction("reduce_max", gives="2., 6.")
reduce_min = reduction("reduce_min", gives="1., 3.")
reduce_prod = reduction("reduce_prod", gives=" 2., 18.")


def argmax(x: Variable, axis: int = 0) -> Variable:
    """Return where along ``axis`` the largest element stands (int64).

    Examples:
        >>> x = fluid.layers.assign(np.array([[0.1, 0.9], [0.8, 0.2]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.argmax(x, axis=1)])
        [array([1, 0])]
    """
    return append("arg_max", {"X": x}, dtype="int64", stop_gradient=True, axis=axis)


def argmin(x: Variable, axis: int = 0) -> Variable:
    """Return where along ``axis`` the smallest element stands (int64).

    Examples:
        >>> x = fluid.layers.assign(np.array([[0.1, 0.9], [0.8, 0.2]], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.argmin(x, axis=1)])
        [array([0, 1])]
    """
    return append("arg_min", {"X": x}, dtype="int64", stop_gradient=True, axis=axis)


def has_nan(x: Variable) -> Variable:
    """Return True in shape (1,) if any element is not a number.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0, np.nan], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.has_nan(x)])
        [array([ True])]
    """
    return append("isnan", {"X": x}, dtype="bool")


def has_inf(x: Variable) -> Variable:
    """Return True in shape (1,) if any element is infinite.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0, np.inf], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.has_inf(x)])
        [array([ True])]
    """
    return append("isinf", {"X": x}, dtype="bool")


def isfinite(x: Variable) -> Variable:
    """Return True in shape (1,) if every element is finite.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0, np.inf], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.isfinite(x)])
        [array([False])]
    """
    return append("isfinite", {"X": x}, dtype="bool")


# -- scaling and clipping --------------------------------------------------------------------------
def scale(
    x: Variable,
    scale: float | Variable = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Return scale * x + bias, or scale * (x + bias).

    A Variable as ``scale`` has shape (1,); no gradient flows into it, as in Fluid.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0, 2.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.scale(x, scale=2.0, bias=1.0)])
        [array([3., 5.], dtype=float32)]
    """
    helper = LayerHelper("scale", name)
    if isinstance(scale, Variable):
        return helper.activate(_scaled_by(x, scale, float(bias), bias_after_scale), act)
    attrs = {
        "scale": float(scale),
        "bias": float(bias),
        "bias_after_scale": bias_after_scale,
    }
    return helper.activate(helper.apply("scale", {"X": x}, attrs, dtype=x.dtype), act)


def _scaled_by(x: Variable, factor: Variable, bias: float, bias_after_scale: bool) -> Variable:
    factor = constant(factor)
    if bias_after_scale:
        return scale(elementwise_mul(x, factor), 1.0, bias)
    return elementwise_mul(scale(x, 1.0, bias), factor)


def constant(value: Variable) -> Variable:
    """Return the value as one that gradients do not flow into, though they may elsewhere."""
    return append("assign", {"X": value}, stop_gradient=True)


def clip(x: Variable, min: float, max: float, name: str | None = None) -> Variable:
    """Limit every element to the interval [min, max].

    Examples:
        >>> x = fluid.layers.assign(np.array([-2.0, 0.5, 2.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.clip(x, min=-1.0, max=1.0)])
        [array([-1. ,  0.5,  1. ], dtype=float32)]
    """
    if min >= max:
        raise GraphError(f"clip: min must be below max, got {min} and {max}")
    return append("clip", {"X": x}, name, min=float(min), max=float(max))


def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """Scale the value down to the Euclidean norm ``max_norm`` if it is longer.

    x: float32 of any shape, or SelectedRows. The result has its shape.

    Examples:
        >>> x = fluid.layers.assign(np.array([3.0, 4.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.clip_by_norm(x, max_norm=1.0)])
        [array([0.6, 0.8], dtype=float32)]
    """
    return append("clip_by_norm", {"X": x}, name, max_norm=float(max_norm))
