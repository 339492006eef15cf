"""Layers that print values, or call Python functions, during a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.values import Value
from hpcdist.graph.variable import Variable
from hpcdist.ops.print_py_func import registered

__all__ = ["Print", "py_func"]


def Print(
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """Print ``input`` in every step, or in the ``first_n``, and return it.

    ``summarize`` numbers are shown (-1: all); ``print_phase`` "backward" prints the gradient,
    "both" prints both. On several trainers each prints its own rows.

    Examples:
        >>> x = fluid.data("x", [None, 3])
        >>> fluid.layers.Print(x, message="x is").shape
        (-1, 3)
    """
    helper = LayerHelper(f"print_{input.name}")
    attrs = {
        "first_n": first_n,
        "summarize": summarize,
        "message": message or "",
        "print_tensor_name": print_tensor_name,
        "print_tensor_type": print_tensor_type,
        "print_tensor_shape": print_tensor_shape,
        "print_tensor_lod": print_tensor_lod,
        "print_phase": print_phase.upper(),
        "variable": input.name,
    }
    return helper.apply("print", {"In": input}, attrs, dtype=input.dtype)


def py_func(
    func: Callable[..., Any],
    x: Variable | Sequence[Variable] | None,
    out: Variable | Sequence[Variable] | None,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Any = None,
) -> Any:
    """Call ``func`` with the values of ``x`` in every step; what it returns becomes ``out``.

    ``out`` are variables with shapes. ``backward_func`` gets the values of x and out, but for those
    that are skipped, and the gradients of out; it returns those of x.

    Examples:
        >>> x = fluid.data("x", [2, 3])
        >>> block = fluid.default_main_program().current_block()
        >>> out = block.create_var("y", shape=[2, 3], dtype="float32")
        >>> fluid.layers.py_func(lambda a: np.asarray(a) * 2, x, out).shape
        (2, 3)
    """
    helper = LayerHelper("py_func")
    ins, outs = _listed(x), _listed(out)
    for var in outs:
        if not var.shape:
            raise GraphError(f"py_func: the shape of {var.name!r} must be given")
    order = [var.name for var in (*ins, *outs)]
    skipped = [var.name for var in _listed(skip_vars_in_backward_input)]
    for name in skipped:
        if name not in order:
            raise GraphError(f"py_func: {name!r} is to be skipped, but is neither in x nor in out")
    attrs = {
        "forward_callable_id": registered(_of_tensors(func)),
        "backward_callable_id": registered(backward_func and _of_tensors(backward_func)),
        "backward_skip_vars": skipped,
        "count": len(outs),
        "skip": [order.index(name) for name in skipped],
    }
    helper.append_op("py_func", {"X": ins}, {"Out": outs}, attrs)
    return out


def _of_tensors(function: Callable[..., Any]) -> Callable[[Sequence[Value]], list[Value | None]]:
    """Adapt a function of LoDTensors that returns arrays to take and return Values."""

    def call(operands: Sequence[Value]) -> list[Value | None]:
        returned = function(*(LoDTensor(v.array, v.lod) for v in operands))
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        return [None if result is None else as_value(result) for result in results]

    def as_value(result: Any) -> Value:
        lod = result.sequences if isinstance(result, LoDTensor) else None
        return Value(np.ascontiguousarray(result), lod)

    return call


def _listed(variables: Any) -> list[Variable]:
    if variables is None:
        return []
    return list(variables) if isinstance(variables, (list, tuple)) else [variables]
