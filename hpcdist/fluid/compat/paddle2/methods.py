"""What Variables can do in Paddle 2: functions as methods, and signs by numpy's rules.

``enable_static`` installs them; Fluid's signs (`fluid.layers.math_op`) place an operand of fewer
dimensions at the front if its first extent is the batch's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphTypeError
from hpcdist.fluid.compat.paddle2 import composed, declare, linalg, tensor, values
from hpcdist.fluid.compat.paddle2.composed import arithmetic
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.compat.paddle2.tensor import DECLARED
from hpcdist.fluid.layers import math_op
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.dtypes import canonical, is_float
from hpcdist.graph.variable import Variable

# Of tensor's functions those that are no methods.
_NO_METHODS = {
    "arange", "assign", "empty", "eye", "finfo", "full", "get_default_dtype", "iinfo",
    "is_tensor", "linspace", "meshgrid", "normal", "ones", "rand", "randint", "randn", "randperm",
    "set_default_dtype", "shape", "standard_normal", "to_tensor", "uniform", "zeros",
}  # fmt: skip
# Of other modules.
_MORE = {
    "sigmoid": functional,
    "inverse": linalg,
    **dict.fromkeys(set(linalg.__all__) - {"inv", "det", "slogdet"}, linalg),
}
_FLOATS = ("float16", "float32", "float64")


def _sign(type: str, *, reverse: bool = False, compare: bool = False) -> Callable[..., Any]:
    """Make the method of a sign: operands broadcast by numpy's rules, types promoted."""
    with_number = math_op.scaling(type, reverse)

    def method(self: Variable, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.size == 1:
            other = other.item()
        x = self
        if isinstance(other, Real):
            if not is_float(x.dtype) and (isinstance(other, float) or type == "elementwise_div"):
                x = composed.cast(x, "float32")
            if with_number is not None:
                return with_number(x, float(other))
            other = math_op.filled(x, float(other))
        elif not isinstance(other, Variable):
            if compare and isinstance(other, (np.ndarray, list, tuple)):
                raise GraphTypeError(
                    f"{x.name!r} is compared with a {other.__class__.__name__}: expected a "
                    "Variable or a number; paddle.assign makes an array a Variable"
                )
            return NotImplemented
        if other.dtype != x.dtype:
            both = is_float(x.dtype) and is_float(other.dtype)
            kind = max(x.dtype, other.dtype, key=_FLOATS.index) if both else x.dtype
            x, other = (v if v.dtype == kind else composed.cast(v, kind) for v in (x, other))
        if type == "elementwise_div" and not is_float(x.dtype):
            x, other = composed.cast(x, "float32"), composed.cast(other, "float32")
        left, right = (other, x) if reverse else (x, other)
        if type in _BY_FLOOR:
            return _BY_FLOOR[type](left, right)
        out = LayerHelper(type, "tmp_of").apply(
            type, {"X": left, "Y": right}, {"axis": -1}, out=math_op.fresh(x, compare)
        )
        out.is_comparison = compare
        return out

    return method


def getitem(self: Variable, item: Any) -> Variable:
    """Return a part, as numpy does: integers, slices, ``...`` and None; or rows by a Variable."""
    if isinstance(item, Variable) and (item.dtype == "bool" or len(item.shape) == 1):
        chosen = composed.masked_select if item.dtype == "bool" else composed.gather
        return chosen(self, item)
    items = list(item) if isinstance(item, tuple) else [item]
    if any(one is Ellipsis for one in items):
        place = next(k for k, one in enumerate(items) if one is Ellipsis)
        given = sum(one is not None for one in items) - 1
        items[place : place + 1] = [slice(None)] * (len(self.shape) - given)
    places = [one for one in items if one is not None]
    if any(isinstance(one, bool) for one in places):
        raise GraphTypeError("x[...]: an index is a number or a slice of numbers, got a bool")
    part = math_op.getitem(self, tuple(places)) if places else self
    if len(places) == len(self.shape) and not any(isinstance(one, slice) for one in places):
        part = scalar(part)
    kept = [one for one in items if one is None or isinstance(one, slice)]
    new = [place for place, one in enumerate(kept) if one is None]
    return DECLARED["unsqueeze"](part, new) if new else part


def astype(self: Variable, dtype: Any) -> Variable:
    """Return the value in another element type."""
    return math_op.astype(self, canonical(dtype))


def _method(name: str) -> Callable[..., Any]:
    module = _MORE.get(name, tensor)
    function = getattr(module, "inv" if name == "inverse" else name)

    def method(self: Variable, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, function.__doc__
    method.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return method


# Fluid's operators round towards 0.
_BY_FLOOR = {"elementwise_floordiv": arithmetic.floor_divide, "elementwise_mod": arithmetic.mod}
_SIGNS: dict[str, Any] = {
    "__add__": _sign("elementwise_add"),
    "__radd__": _sign("elementwise_add"),
    "__sub__": _sign("elementwise_sub"),
    "__rsub__": _sign("elementwise_sub", reverse=True),
    "__mul__": _sign("elementwise_mul"),
    "__rmul__": _sign("elementwise_mul"),
    "__truediv__": _sign("elementwise_div"),
    "__rtruediv__": _sign("elementwise_div", reverse=True),
    "__pow__": _sign("elementwise_pow"),
    "__rpow__": _sign("elementwise_pow", reverse=True),
    "__floordiv__": _sign("elementwise_floordiv"),
    "__mod__": _sign("elementwise_mod"),
    "__lt__": _sign("less_than", compare=True),
    "__le__": _sign("less_equal", compare=True),
    "__gt__": _sign("greater_than", compare=True),
    "__ge__": _sign("greater_equal", compare=True),
    "__eq__": _sign("equal", compare=True),
    "__ne__": _sign("not_equal", compare=True),
    "__getitem__": getitem,
    "__matmul__": lambda self, other: arithmetic.matmul(self, other),
    "__invert__": lambda self: DECLARED["logical_not"](self),
    "__and__": lambda self, other: DECLARED["logical_and"](self, other),
    "__or__": lambda self, other: DECLARED["logical_or"](self, other),
    "astype": astype,
    "cast": astype,
    "dim": lambda self: len(self.shape),
    "ndimension": lambda self: len(self.shape),
    "ndim": property(lambda self: len(self.shape)),
    "T": property(lambda self: DECLARED["transpose"](self, list(range(len(self.shape)))[::-1])),
    "size": property(lambda self: int(np.prod(self.shape))),
}


def _methods() -> dict[str, Any]:
    names = [*tensor.__all__, *_MORE]
    plain = {name: _method(name) for name in names if name not in _NO_METHODS}
    in_place = declare.in_place("paddle.Tensor", plain)
    return {**plain, **in_place, **_SIGNS}


_before: dict[tuple[type, str], Any] = {}  # what names were; None where there were none


def install() -> None:
    """Give Variables and Programs Paddle 2's methods."""
    for owner, more in values.METHODS.items():
        methods = {**_methods(), **more} if owner is Variable else more
        for name, method in methods.items():
            _before.setdefault((owner, name), vars(owner).get(name))
            setattr(owner, name, method)


def uninstall() -> None:
    """Give them Fluid's again."""
    for (owner, name), method in _before.items():
        if method is None:
            delattr(owner, name)
        else:
            setattr(owner, name, method)
    _before.clear()
    math_op.install()
