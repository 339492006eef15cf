"""Operators that print values, or call Python functions, during a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base.device import on_host
from hpcdist.base.errors import GraphError
from hpcdist.graph.names import EMPTY, grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.graph.rows import by_element
from hpcdist.graph.values import Value
from hpcdist.ops.common import Wanted, grad_by
from hpcdist.ops.tensor.tensor_array import in_loops
from hpcdist.ops.types import ArrayModule, Attrs, Call

# -- print -----------------------------------------------------------------------------------------
_PRINT: Attrs = {
    "first_n": -1,
    "message": "",
    "summarize": 20,
    "print_tensor_name": True,
    "print_tensor_type": True,
    "print_tensor_shape": True,
    "print_tensor_lod": True,
    "print_phase": "BOTH",
    "variable": "",
    "is_forward": True,
}


@dataclass
class Printed:
    """How often an operator has printed."""

    name: str
    count: int = 0


def _text(array, lod, attrs: Attrs) -> str:
    words = [attrs["message"]] if attrs["message"] else []
    if attrs["print_tensor_name"]:
        words.append(f"Variable: {attrs['variable']}")
    if attrs["print_tensor_lod"] and lod is not None:
        words.append(f"lod: {[offsets.tolist() for offsets in lod.offsets]}")
    if attrs["print_tensor_shape"]:
        words.append(f"shape: {list(array.shape)}")
    if attrs["print_tensor_type"]:
        words.append(f"dtype: {array.dtype}")
    flat = array.reshape(-1)
    shown = flat if attrs["summarize"] < 0 else flat[: attrs["summarize"]]
    return "\n  - ".join([*words, f"data: {shown.tolist()}"])


def _print_bind(xp: ArrayModule, x, out, lods, state: Printed, **attrs) -> Call:
    phase = "FORWARD" if attrs["is_forward"] else "BACKWARD"

    def run() -> None:
        if attrs["print_phase"] in (phase, "BOTH") and not 0 <= attrs["first_n"] <= state.count:
            state.count += 1
            print(_text(on_host(x), lods[0], attrs), flush=True)
        if out is not None:
            xp.copyto(out, x)

    return run


def _print_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    (x,), (out,) = op.inputs["In"], op.outputs["Out"]
    inputs = {"In": [grad_name(out)]}
    outputs = {"Out": [grad_name(x) if wanted(x) else EMPTY]}
    attrs = {**op.attrs, "is_forward": False, "variable": f"{op.attrs['variable']}@GRAD"}
    return [GradOp("print", inputs, outputs, attrs)]


define(
    "print",
    "In -> Out",
    rows=by_element(),
    attrs=_PRINT,
    infer=lambda x, **_: Meta(x.shape, x.dtype, lod=x.lod),
    bind=_print_bind,
    grad=_print_grad,
    lods=("In",),
    state=Printed,
    acts=True,
)


# -- functions of users ----------------------------------------------------------------------------
Function = Callable[[Sequence[Value]], list[Value | None]]
_functions: list[Function] = []


def registered(function: Function | None) -> int:
    """Return the number by which operators of this process know a function; -1 for none."""
    if function is None:
        return -1
    _functions.append(function)
    return len(_functions) - 1


def _called(number: int, operands: Sequence[Value], count: int) -> list[Value | None]:
    if not 0 <= number < len(_functions):
        raise GraphError(
            "py_func: its function is of the process that built the Program; build it here again"
        )
    results = _functions[number](operands)
    if count and len(results) != count:
        raise GraphError(f"py_func: expected {count} results of the function, got {len(results)}")
    return results[:count]


_PY_FUNC: Attrs = {
    "forward_callable_id": -1,
    "backward_callable_id": -1,
    "backward_skip_vars": (),
    "count": 0,
    "skip": (),
}


def _py_func(x: Sequence[Value], forward_callable_id: int, count: int, **_) -> Any:
    return (_called(forward_callable_id, x, count),)


def _py_func_backward(
    x: Sequence[Any],
    out: Sequence[Any],
    dout: Sequence[Any],
    backward_callable_id: int,
    skip: Sequence[int],
    **_,
) -> Any:
    operands = [v for k, v in enumerate((*x, *out)) if k not in skip]
    return (_called(backward_callable_id, [*operands, *dout], len(x)),)


_PY_FUNC_GRAD = "X*, Out*, Out@GRAD* -> X@GRAD*"
_by_function = grad_by("py_func_grad", _PY_FUNC_GRAD)


def _py_func_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    return _by_function(op, wanted) if op.attrs["backward_callable_id"] >= 0 else []


define(
    "py_func",
    "X* -> Out*",
    rows=in_loops,
    attrs=_PY_FUNC,
    values=_py_func,
    grad=_py_func_grad,
    acts=True,
    by_number=True,
)
define(
    "py_func_grad",
    _PY_FUNC_GRAD,
    attrs=_PY_FUNC,
    infer=lambda x, *_, **__: [Meta(m.shape, m.dtype, lod=m.lod) for m in x],
    values=_py_func_backward,
    by_number=True,
)
