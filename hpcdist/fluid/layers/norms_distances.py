"""Products and norms of vectors and matrices, logarithms of sums, truth over dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.errors import GraphTypeError
from hpcdist.fluid.layers.helper import LayerHelper, append, into
from hpcdist.fluid.layers.math import elementwise_add, elementwise_mul, reduce_sum, reduction, scale
from hpcdist.fluid.layers.param_attr import ParamLike
from hpcdist.graph.dtypes import DTypeLike, canonical, is_float
from hpcdist.graph.variable import Variable
from hpcdist.ops.algebra.products import NO_DIM

__all__ = [
    "addcmul",
    "addmm",
    "allclose",
    "bilinear_tensor_product",
    "bmm",
    "cross",
    "cumsum",
    "dist",
    "dot",
    "fsp_matrix",
    "kron",
    "log_softmax",
    "logsumexp",
    "reduce_all",
    "reduce_any",
    "trace",
]


def _of_two(type: str, x: Variable, y: Variable, name: str | None = None, **attrs: Any) -> Variable:
    return append(type, {"X": x, "Y": y}, name, **attrs)


def bmm(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Multiply as many matrices of x by those of y: [N, a, b] by [N, b, c].

    Examples:
        >>> x, y = fluid.data("x", [None, 2, 3]), fluid.data("y", [None, 3, 4])
        >>> fluid.layers.bmm(x, y).shape
        (-1, 2, 4)
    """
    return _of_two("bmm", x, y, name)


def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Return the dot product of each row of x with that of y.

    x and y: [rows, n] or [n]. Returns [rows, 1] or [1].

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0, 2.0]))
        >>> y = fluid.layers.assign(np.array([3.0, 4.0]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.dot(x, y)])
        [array([11.], dtype=float32)]
    """
    return _of_two("dot", x, y, name)


def cross(input: Variable, other: Variable, dim: int | None = None) -> Variable:
    """Return cross products along the dimension ``dim`` of 3 numbers (None: the first such).

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0, 0.0, 0.0]]))
        >>> y = fluid.layers.assign(np.array([[0.0, 1.0, 0.0]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.cross(x, y)])
        [array([[0., 0., 1.]], dtype=float32)]
    """
    return _of_two("cross", input, other, dim=NO_DIM if dim is None else dim)


def kron(
    x: Variable, y: Variable, out: Variable | None = None, name: str | None = None
) -> Variable:
    """Return the Kronecker product: every element of x times all of y.

    x and y: numbers of one type; the shorter shape is preceded by 1s. Returns the products of the
    extents.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0, 2.0]]))
        >>> y = fluid.layers.assign(np.array([[1.0], [10.0]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.kron(x, y)])
        [array([[ 1.,  2.],
               [10., 20.]], dtype=float32)]
    """
    return into(out, _of_two("kron", x, y, name))


def dist(x: Variable, y: Variable, p: float = 2) -> Variable:
    """Return the p-norm of x - y, of shape [1].

    Examples:
        >>> x = fluid.layers.assign(np.array([3.0, 0.0]))
        >>> y = fluid.layers.assign(np.array([0.0, 4.0]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.dist(x, y, p=2)])
        [array([5.], dtype=float32)]
    """
    return _of_two("dist", x, y, p=float(p))


def fsp_matrix(x: Variable, y: Variable) -> Variable:
    """Return mean products over pixels of every channel of x and every one of y.

    x: [n, cx, rows, columns], y: [n, cy, rows, columns]. Returns [n, cx, cy].

    Examples:
        >>> x, y = fluid.data("x", [None, 3, 8, 8]), fluid.data("y", [None, 5, 8, 8])
        >>> fluid.layers.fsp_matrix(x, y).shape
        (-1, 3, 5)
    """
    return _of_two("fsp", x, y)


def addmm(
    input: Variable,
    x: Variable,
    y: Variable,
    alpha: float = 1.0,
    beta: float = 1.0,
    name: str | None = None,
) -> Variable:
    """Return beta input + alpha x y.

    x: [m, k], y: [k, n], input: broadcast to [m, n]. Returns [m, n].

    Examples:
        >>> a, b = fluid.layers.assign(np.array([[1.0]])), fluid.layers.assign(np.array([[2.0]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.addmm(a, b, b)])
        [array([[5.]], dtype=float32)]
    """
    inputs, attrs = {"Input": input, "X": x, "Y": y}, {"Alpha": float(alpha), "Beta": float(beta)}
    return LayerHelper("addmm", name).apply("addmm", inputs, attrs, dtype=x.dtype)


def addcmul(
    input: Variable,
    tensor1: Variable,
    tensor2: Variable,
    value: float = 1.0,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return input + value tensor1 tensor2, element by element.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0, 2.0]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.addcmul(x, x, x, value=0.5)])
        [array([1.5, 4. ], dtype=float32)]
    """
    product = scale(elementwise_mul(tensor1, tensor2), float(value))
    return into(out, elementwise_add(input, product))


def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: str | None = None,
    name: str | None = None,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
) -> Variable:
    """Return x W y + b by row, with a learned matrix W for each of ``size`` columns.

    x: [rows, m], y: [rows, n]; W is [size, m, n], b [1, size]. Returns [rows, size].

    Examples:
        >>> x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 4])
        >>> fluid.layers.bilinear_tensor_product(x, y, size=5).shape
        (-1, 5)
    """
    helper = LayerHelper("bilinear_tensor_product", name)
    weight = helper.create_parameter(param_attr, [size, x.shape[1], y.shape[1]], x.dtype)
    bias = helper.create_parameter(bias_attr, [1, size], x.dtype, is_bias=True)
    inputs = {"X": x, "Y": y, "Weight": weight, **({} if bias is None else {"Bias": bias})}
    out = helper.apply("bilinear_tensor_product", inputs, dtype=x.dtype)
    return helper.activate(out, act)


def trace(
    input: Variable,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return sums of the diagonals of matrices in dimensions dim1 and dim2.

    Examples:
        >>> x = fluid.layers.assign(np.array([[1.0, 2.0], [3.0, 4.0]]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.trace(x)])
        [array([5.], dtype=float32)]
    """
    attrs = {"offset": offset, "dim1": dim1, "dim2": dim2}
    result = LayerHelper("trace", name).apply("trace", {"Input": input}, attrs, dtype=input.dtype)
    return into(out, result)


def cumsum(
    x: Variable,
    axis: int | None = None,
    exclusive: bool | None = None,
    reverse: bool | None = None,
) -> Variable:
    """Return sums of the elements so far along ``axis`` (-1); exclusive: without the last.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0, 2.0, 3.0], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.cumsum(x)])
        [array([1., 3., 6.], dtype=float32)]
    """
    options = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    attrs = {key: value for key, value in options.items() if value is not None}
    return LayerHelper("cumsum").apply("cumsum", {"X": x}, attrs, dtype=x.dtype)


def logsumexp(
    x: Variable,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Return the logarithm of the sum of exp(x) over ``dim`` (None: all).

    Examples:
        >>> x = fluid.data("x", [None, 5])
        >>> fluid.layers.logsumexp(x, dim=1).shape
        (-1,)
    """
    helper = LayerHelper("logsumexp", name)
    summed = reduce_sum(helper.apply("exp", {"X": x}, dtype=x.dtype), dim, keepdim)
    return into(out, helper.apply("log", {"X": summed}, dtype=x.dtype))


def log_softmax(
    input: Variable,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Variable:
    """Return the logarithm of the softmax along ``axis`` (the last one).

    Examples:
        >>> x = fluid.data("x", [None, 5])
        >>> fluid.layers.log_softmax(x).shape
        (-1, 5)
    """
    helper = LayerHelper("log_softmax", name)
    if dtype is not None:
        facts = {"in_dtype": input.dtype, "out_dtype": canonical(dtype)}
        input = helper.apply("cast", {"X": input}, facts, dtype=dtype)
    elif not is_float(input.dtype):
        raise GraphTypeError(
            f"layers.log_softmax: input must be of floats, got {input.name!r} of {input.dtype}; "
            "give a dtype"
        )
    attrs = {"axis": -1 if axis is None else axis}
    probability = helper.apply("softmax", {"X": input}, attrs, dtype=input.dtype)
    return helper.apply("log", {"X": probability}, dtype=input.dtype)


# -- truth -----------------------------------------------------------------------------------------
_TRUTH: Any = {"dtype": "bool", "stop_gradient": True}
_WHETHER = "Tell whether %s of the elements over ``dim`` (None: all) are true."
reduce_all = reduction("reduce_all", _WHETHER % "all", **_TRUTH)
reduce_any = reduction("reduce_any", _WHETHER % "any", **_TRUTH)


def allclose(
    input: Variable,
    other: Variable,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
    name: str | None = None,
) -> Variable:
    """Return whether all |input - other| <= atol + rtol |other|.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.0]))
        >>> y = fluid.layers.assign(np.array([1.0 + 1e-9]))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.allclose(x, y)])
        [array([ True])]
    """
    attrs = {"rtol": float(rtol), "atol": float(atol), "equal_nan": equal_nan}
    helper, inputs = LayerHelper("allclose", name), {"Input": input, "Other": other}
    return helper.apply("allclose", inputs, attrs, dtype="bool", stop_gradient=True)
