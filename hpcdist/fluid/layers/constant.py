"""Values made from nothing, parameters among them; and other types of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.checks import whole
from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import ConstantInitializer
from hpcdist.fluid.layers.extents import as_extents
from hpcdist.fluid.layers.helper import LayerHelper, append
from hpcdist.fluid.layers.param_attr import ParamAttr
from hpcdist.graph import names
from hpcdist.graph.dtypes import DTypeLike, canonical
from hpcdist.graph.registry import INTEGERS
from hpcdist.graph.variable import Parameter, Variable

__all__ = [
    "cast",
    "create_global_var",
    "create_parameter",
    "create_tensor",
    "fill_constant",
    "fill_constant_batch_size_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


def create_tensor(dtype: DTypeLike, name: str | None = None, persistable: bool = False) -> Variable:
    """Create a variable that some operator will write.

    Examples:
        >>> total = fluid.layers.create_tensor("float32")
        >>> out = fluid.layers.assign(np.array([1.0], "float32"), total)
        >>> fluid.Executor().run(fetch_list=[out])
        [array([1.], dtype=float32)]
    """
    helper = LayerHelper("create_tensor", name)
    block = helper.main_program.current_block()
    return block.create_var(helper.name, dtype=dtype, persistable=persistable)


def create_parameter(
    shape: Sequence[int],
    dtype: DTypeLike,
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Parameter | None:
    """Create a trainable parameter (Xavier; a bias: 0; or as attr or default_initializer say).

    Examples:
        >>> fluid.layers.create_parameter([3, 4], "float32", name="w").shape
        (3, 4)
    """
    helper = LayerHelper("create_parameter")
    if attr is None:
        attr = ParamAttr(name=name)
    return helper.create_parameter(attr, shape, dtype, is_bias, default_initializer)


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: DTypeLike,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """Create a variable of the global block that the startup program sets to ``value``.

    Examples:
        >>> counter = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True)
        >>> counter.persistable
        True
    """
    helper = LayerHelper("global_var", name)
    var = helper.main_program.global_block().create_var(
        name or names.generate("_generated_var"),
        shape=shape,
        dtype=dtype,
        persistable=persistable,
        stop_gradient=True,
    )
    helper.initialize(var, ConstantInitializer(value, force_cpu))
    return var


def fill_constant(
    shape: Variable | Sequence[int | Variable],
    dtype: DTypeLike,
    value: float | Variable,
    force_cpu: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Fill a value of this shape, in which there may be Variables; it stops gradients.

    ``value`` may be a Variable of shape (1,).

    Examples:
        >>> fluid.Executor().run(fetch_list=[fluid.layers.fill_constant([2], "float32", 0.5)])
        [array([0.5, 0.5], dtype=float32)]
    """
    if isinstance(value, Variable):
        return _filled(fill_constant(shape, dtype, 0.0, force_cpu), value, out)
    extents = as_extents(shape)
    if isinstance(extents, list) and any(isinstance(d, int) and d < 0 for d in extents):
        raise GraphError(f"fill_constant: expected extents of 0 or more, got {extents}")
    helper = LayerHelper("fill_constant", name)
    if out is None:
        out = helper.new_var(dtype)
    out.stop_gradient = True
    attrs = {
        "shape": extents,
        "dtype": canonical(dtype),
        "value": _number(value, dtype),
        "force_cpu": force_cpu,
    }
    helper.append_op("fill_constant", {}, {"Out": out}, attrs)
    return out


def _number(value: float, dtype: DTypeLike) -> int | float:
    """Return a constant; whole numbers of any size as they are."""
    return int(value) if canonical(dtype) in INTEGERS else float(value)


def _filled(zeros: Variable, value: Variable, out: Variable | None) -> Variable:
    helper = LayerHelper("fill_constant")
    if out is None:
        out = helper.new_var(zeros.dtype)
    out.stop_gradient = True
    helper.append_op(
        "elementwise_add", {"X": zeros, "Y": cast(value, zeros.dtype)}, {"Out": out}, {"axis": -1}
    )
    return out


def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: DTypeLike,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Variable:
    """Fill a value of this shape, one extent taken from ``input``; it stops gradients.

    Examples:
        >>> x = fluid.data("x", [None, 3])
        >>> fluid.layers.fill_constant_batch_size_like(x, [1, 4], "float32", value=0.0).shape
        (-1, 4)
    """
    attrs = {
        "shape": [whole(d) for d in shape],
        "dtype": canonical(dtype),
        "value": _number(value, dtype),
        "input_dim_idx": input_dim_idx,
        "output_dim_idx": output_dim_idx,
        "force_cpu": force_cpu,
    }
    type = "fill_constant_batch_size_like"
    return LayerHelper(type).apply(type, {"Input": input}, attrs, stop_gradient=True)


def zeros(shape: Sequence[int], dtype: DTypeLike, force_cpu: bool = False) -> Variable:
    """Return 0 at every place of this shape, of any dtype; no gradient flows.

    Examples:
        >>> fluid.Executor().run(fetch_list=[fluid.layers.zeros([2], "int64")])
        [array([0, 0])]
    """
    return fill_constant(shape, dtype, 0.0, force_cpu)


def ones(shape: Sequence[int], dtype: DTypeLike, force_cpu: bool = False) -> Variable:
    """Return 1 at every place of this shape, of any dtype; no gradient flows.

    Examples:
        >>> fluid.Executor().run(fetch_list=[fluid.layers.ones([2], "int64")])
        [array([1, 1])]
    """
    return fill_constant(shape, dtype, 1.0, force_cpu)


def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """Fill a value of the shape and type of x with 0.

    Examples:
        >>> x = fluid.layers.assign(np.array([1, 2], "int64"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.zeros_like(x)])
        [array([0, 0])]
    """
    helper = LayerHelper("zeros_like")
    if out is None:
        out = helper.new_var(x.dtype)
    out.stop_gradient = True
    helper.append_op("fill_zeros_like", {"X": x}, {"Out": out})
    return out


def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """Fill a value of the shape and type of x with 1.

    Examples:
        >>> x = fluid.layers.assign(np.array([3, 2], "int64"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.ones_like(x)])
        [array([1, 1])]
    """
    helper = LayerHelper("ones_like")
    return helper.apply("fill_any_like", {"X": x}, {"value": 1.0}, out=out, dtype=x.dtype)


def cast(x: Variable, dtype: DTypeLike) -> Variable:
    """Convert every element to another type.

    x: any type; dtype: its new one. The result has the shape of x.

    Examples:
        >>> x = fluid.layers.assign(np.array([1.7, -1.7], "float32"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.cast(x, "int64")])
        [array([ 1, -1])]
    """
    return append("cast", {"X": x}, dtype=dtype, in_dtype=x.dtype, out_dtype=canonical(dtype))
