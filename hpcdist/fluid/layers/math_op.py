"""Python's arithmetic, comparison and indexing operators on Variables."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph import names
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import DTypeLike, canonical, is_float
from hpcdist.graph.program import program_of
from hpcdist.graph.variable import Variable


def _append(
    block: Block,
    type: str,
    dtype: DTypeLike,
    inputs: dict[str, Variable],
    attrs: dict[str, Any],
    key: str = "tmp",
) -> Variable:
    """Append an operator that writes a new variable ``<key>_<n>``."""
    out = block.create_var(names.generate(key), dtype=dtype)
    block.append_op(type, inputs, {"Out": out}, attrs)
    return out


def _block(var: Variable) -> Block:
    return program_of(var).current_block()


def _scaled(var: Variable, scale: float, bias: float) -> Variable:
    attrs = {"scale": scale, "bias": bias}
    return _append(_block(var), "scale", var.dtype, {"X": var}, attrs)


def _filled(like: Variable, value: float, *, every_element: bool) -> Variable:
    """Return a constant of shape (1,), or of the whole shape of ``like``; () where that has it."""
    block, dtype = _block(like), like.dtype
    attrs: dict[str, Any] = {"dtype": dtype, "value": value}
    if every_element and -1 in like.shape:
        batch = like.shape.index(-1)
        attrs["shape"] = [1 if d == -1 and i != batch else d for i, d in enumerate(like.shape)]
        attrs |= {"input_dim_idx": batch, "output_dim_idx": batch}
        out = _append(block, "fill_constant_batch_size_like", dtype, {"Input": like}, attrs)
    else:
        attrs["shape"] = list(like.shape) if every_element or not like.shape else [1]
        out = _append(block, "fill_constant", dtype, {}, attrs)
    out.stop_gradient = True
    return out


def _binary(
    type: str,
    *,
    reverse: bool = False,
    compare: bool = False,
    with_number: Callable[[Variable, float], Variable] | None = None,
) -> Callable[[Variable, Any], Any]:
    """Make a method; ``with_number`` is the short cut for ``var <sign> number``."""

    def method(self: Variable, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.size == 1:
            other = other.item()  # as Fluid takes it
        if isinstance(other, Real):
            # a quotient of integers is not a scaling
            if with_number and (is_float(self.dtype) or type != "elementwise_div"):
                return with_number(self, float(other))
            other = _filled(self, float(other), every_element=reverse)
        elif not isinstance(other, Variable):
            return NotImplemented
        if other.dtype != self.dtype:
            other = astype(other, self.dtype)
        x, y = (other, self) if reverse else (self, other)
        dtype = "bool" if compare else self.dtype
        axis = 0 if y.shape and y.shape[0] == -1 else -1
        return _append(_block(self), type, dtype, {"X": x, "Y": y}, {"axis": axis})

    return method


def _comparison(type: str) -> Callable[[Variable, Any], Any]:
    """Compare by an operator; a Python `if` must not take the result for an answer."""
    compare = _binary(type, compare=True)

    def method(self: Variable, other: Any) -> Any:
        out = compare(self, other)
        if out is NotImplemented and isinstance(other, (np.ndarray, list, tuple)):
            raise GraphTypeError(  # Python would call them different, whatever their numbers
                f"{self.name!r} is compared with a {other.__class__.__name__}: expected a Variable "
                "or a number; layers.assign makes an array a Variable"
            )
        if isinstance(out, Variable):
            out.is_comparison = True
        return out

    return method


equal = _comparison("equal")


def _truth(self: Variable) -> bool:
    """Refuse to say what only a step knows; that there is a variable is true, as of any object."""
    if self.is_comparison:
        raise GraphTypeError(
            f"{self.name!r} compares values that only a step knows, so Python's if, while, and, "
            "or, not and in cannot ask for it while the program is built: use layers.cond, "
            "layers.while_loop or layers.logical_and, or fetch the values and compare them; "
            "`a is b`, or their names, tell whether two Variables are the same"
        )
    return True


def astype(self: Variable, dtype: DTypeLike) -> Variable:
    """Return the value converted to another element type.

    Examples:
        >>> fluid.data("x", [None, 3]).astype("int64").dtype
        'int64'
    """
    facts = {"in_dtype": self.dtype, "out_dtype": canonical(dtype)}
    return _append(_block(self), "cast", dtype, {"X": self}, facts)


_END = 10_000_000  # what Fluid writes for "to the end"
Place = int | Variable


def getitem(self: Variable, item: Any) -> Variable:
    """Return a part, by integers and slices of them; one that is no slice drops its dimension.

    In place of integers there may be Variables of one integer each; one that is a step goes
    forwards where no end is said.
    """
    axes: list[int] = []
    bounds: list[tuple[Place, Place, Place]] = []
    dropped: list[int] = []
    turned: list[int] = []
    for axis, index in enumerate(item if isinstance(item, tuple) else (item,)):
        if isinstance(index, Variable):
            bounds.append((index, index + 1, 1))
            dropped.append(axis)
        elif isinstance(index, Integral):
            start = int(index)
            bounds.append((start, _END if start == -1 else start + 1, 1))
            dropped.append(axis)
        elif not isinstance(index, slice) or not _is_of_places(index):
            raise GraphTypeError(
                f"{self.name}[...]: an index is a number or a slice of numbers, got {index!r}"
            )
        elif _is_whole(index):
            continue
        elif not _in_values(*_places(index)) and _places(index) == (None, None, -1):
            turned.append(axis)
            continue
        else:
            step = _place(index.step, 1)
            forwards = isinstance(step, Variable) or step > 0
            first, last = (0, _END) if forwards else (_END, -_END)
            bounds.append((_place(index.start, first), _place(index.stop, last), step))
        axes.append(axis)
    result = self
    if axes:
        starts, ends, strides = zip(*bounds)
        by_one = all(not isinstance(step, Variable) and step == 1 for step in strides)
        type = "slice" if by_one else "strided_slice"
        key = f"{self.name}_{type}"
        helper = LayerHelper(type, key)
        places = {"starts": list(starts), "ends": list(ends)}
        if not by_one:
            places["strides"] = list(strides)
        bounded, attrs = helper.slots_of(type, places)
        attrs |= {"axes": axes, "decrease_axis": dropped}
        attrs["infer_flags"] = [-1 if _in_values(*places) else 1 for places in bounds]
        inputs = {"Input": self, **bounded}
        result = _append(_block(self), type, self.dtype, inputs, attrs, key)
    if turned:
        key = f"{self.name}_slice_reverse"
        result = _append(_block(self), "reverse", self.dtype, {"X": result}, {"axis": turned}, key)
    return result


def _is_whole(index: slice) -> bool:
    """Return whether a slice takes all places: so it does not mix the rows of a batch."""
    return not _in_values(*_places(index)) and (
        (index.start or 0, index.stop, index.step) in ((0, None, None), (0, None, 1))
    )


def _places(index: slice) -> tuple[Any, Any, Any]:
    return index.start, index.stop, index.step


def _place(bound: Any, default: int) -> Place:
    if isinstance(bound, Variable):
        return bound
    return default if bound is None else int(bound)


def _in_values(*places: Place) -> bool:
    return any(isinstance(place, Variable) for place in places)


def _is_of_places(index: slice) -> bool:
    """Return whether a slice is of integers, or of Variables."""
    places = all(p is None or isinstance(p, Integral | Variable) for p in (index.start, index.stop))
    return places and (index.step is None or isinstance(index.step, Integral | Variable))


def scaling(type: str, reverse: bool = False) -> Callable[[Variable, float], Variable] | None:
    """Return the method for a Variable and a number by one ``scale``, if it can be one."""
    return _SCALINGS.get((type, reverse or type in ("elementwise_add", "elementwise_mul")))


def filled(like: Variable, value: float) -> Variable:
    """Return a constant of shape (1,) (() if ``like`` has that), of the type of ``like``."""
    return _filled(like, value, every_element=False)


def fresh(like: Variable, is_bool: bool) -> Variable:
    """Create the variable ``tmp_<n>`` that a sign's operator writes."""
    dtype = "bool" if is_bool else like.dtype
    return _block(like).create_var(names.generate("tmp"), dtype=dtype)


def _inverse(var: Variable, value: float) -> float:
    if value == 0:
        raise GraphError(f"{var.name!r} / 0: expected another number")
    return 1 / value


_SCALINGS: dict[tuple[str, bool], Callable[[Variable, float], Variable]] = {
    ("elementwise_add", True): lambda var, c: _scaled(var, 1.0, c),
    ("elementwise_sub", False): lambda var, c: _scaled(var, 1.0, -c),
    ("elementwise_sub", True): lambda var, c: _scaled(var, -1.0, c),
    ("elementwise_mul", True): lambda var, c: _scaled(var, c, 0.0),
    ("elementwise_div", False): lambda var, c: _scaled(var, _inverse(var, c), 0.0),
}
_add = _binary("elementwise_add", with_number=scaling("elementwise_add"))
_mul = _binary("elementwise_mul", with_number=scaling("elementwise_mul"))
_METHODS: dict[str, Any] = {
    "__add__": _add,
    "__radd__": _add,
    "__sub__": _binary("elementwise_sub", with_number=scaling("elementwise_sub")),
    "__rsub__": _binary(
        "elementwise_sub", reverse=True, with_number=scaling("elementwise_sub", reverse=True)
    ),
    "__mul__": _mul,
    "__rmul__": _mul,
    "__truediv__": _binary("elementwise_div", with_number=scaling("elementwise_div")),
    "__rtruediv__": _binary("elementwise_div", reverse=True),
    "__pow__": _binary("elementwise_pow"),
    "__rpow__": _binary("elementwise_pow", reverse=True),
    "__floordiv__": _binary("elementwise_floordiv"),
    "__mod__": _binary("elementwise_mod"),
    "__lt__": _comparison("less_than"),
    "__le__": _comparison("less_equal"),
    "__gt__": _comparison("greater_than"),
    "__ge__": _comparison("greater_equal"),
    "__eq__": equal,
    "__ne__": _comparison("not_equal"),
    "__hash__": object.__hash__,
    "__bool__": _truth,
    "__neg__": lambda self: _scaled(self, -1.0, 0.0),
    "__getitem__": getitem,
    "__iter__": None,  # or Python would ask for parts without end
    "__array_ufunc__": None,  # numpy leaves `array * variable` to the variable
    "astype": astype,
}


def install() -> None:
    """Give Variables these methods."""
    for name, method in _METHODS.items():
        setattr(Variable, name, method)


install()
