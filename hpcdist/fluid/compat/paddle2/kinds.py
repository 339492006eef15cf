"""Kinds of arguments: what a parameter takes, by the annotation that it has.

A check takes what errors call the parameter, and a value; it returns the value as the function gets
it, or raises GraphTypeError or GraphError. ``Literal["a", "b"]`` is a kind, too.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

from hpcdist.base.checks import GRAPH, integer
from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.variable import Variable

Kind = Callable[[str, Any], Any]

# As annotations: what a function that is checked gets.
Ints = Any  # an integer or several: a list
Sizes = Any  # likewise, of windows: a number for all, or a list
Extents = Any  # likewise, also Variables of integers
Count = int  # from 1 on
Natural = int  # from 0 on
Counts = Any  # sizes from 1 on
Positive = float  # above 0
Unsigned = float  # from 0 on
Probability = float  # within 0..1
Fraction = float  # from 0 on, below 1
Function = Callable[..., Any]
Reduction = Literal["mean", "sum", "none"]
Counted = Any  # with a length
Iterated = Any  # to be looped over
Samples = Any  # a data set: by place, or to be looped over
DataSets = Any  # one or more


def refusal(where: str, expected: str, value: Any) -> GraphTypeError:
    return GraphTypeError(f"{where}: expected {expected}, got {value!r:.120}")


def _int(where: str, value: Any) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise refusal(where, "an integer", value)


def _float(where: str, value: Any) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    raise refusal(where, "a number", value)


def _bool(where: str, value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise refusal(where, "True or False", value)


def _str(where: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise refusal(where, "a string", value)


def _sizes(where: str, value: Any) -> int | list[int]:
    """Return one size for all axes as it is: how many axes there are, the layer knows."""
    found = _ints(where, value)
    return found[0] if len(found) == 1 else found


def _ints(where: str, value: Any) -> list[int]:
    many = value if isinstance(value, (list, tuple)) else [value]
    if all(isinstance(one, Integral) and not isinstance(one, bool) for one in many):
        return [int(one) for one in many]
    raise refusal(where, "an integer or a list of integers", value)


def _extents(where: str, value: Any) -> Any:
    """Take integers that may be given as Variables: one, a list, or a Variable of them all."""
    if isinstance(value, Variable):
        return value
    many = value if isinstance(value, (list, tuple)) else [value]
    for one in many:
        if not isinstance(one, (Integral, Variable)) or isinstance(one, bool):
            raise refusal(where, "integers or Variables of them", value)
    return [one if isinstance(one, Variable) else int(one) for one in many]


def _extent(where: str, value: Any) -> Any:
    return value if isinstance(value, Variable) else _int(where, value)


def _dtype(where: str, value: Any) -> str:
    try:
        return canonical(value)
    except (GraphError, TypeError, ValueError) as error:
        raise refusal(where, "an element type such as 'float32'", value) from error


def bounded(expected: str, holds: Callable[[Any], bool], kind: Kind = _float) -> Kind:
    """Return a kind of numbers that are within bounds."""

    def check(where: str, value: Any) -> Any:
        number = kind(where, value)
        if all(map(holds, number if isinstance(number, list) else [number])):
            return number
        raise GraphError(f"{where}: expected {expected}, got {value!r}")

    return check


def _from(least: int) -> Kind:
    return lambda where, value: integer(where, value, least, errors=GRAPH)


def one_of(choices: Sequence[Any]) -> Kind:
    """Return the kind of one of these values."""
    expected = " or ".join([", ".join(map(repr, choices[:-1])), repr(choices[-1])])

    def check(where: str, value: Any) -> Any:
        if any(value is one or (type(value) is type(one) and value == one) for one in choices):
            return value
        raise GraphError(f"{where}: expected {expected}, got {value!r:.120}")

    return check


def _having(expected: str, *ways: Sequence[str]) -> Kind:
    """Return the kind of objects that have all methods of one of these ways."""

    def check(where: str, value: Any) -> Any:
        made = not isinstance(value, (str, type))
        if made and any(all(hasattr(value, method) for method in way) for way in ways):
            return value
        raise refusal(where, expected, value)

    return check


_iterated = _having("a list, or something else to loop over", ("__iter__",), ("__getitem__",))
_samples = _having(
    "a data set, with __getitem__ and __len__, or with __iter__",
    ("__getitem__", "__len__"),
    ("__iter__",),
)


def _data_sets(where: str, value: Any) -> list[Any]:
    many = list(_iterated(where, value))
    if many:
        return [_samples(where, one) for one in many]
    raise GraphError(f"{where}: expected at least one data set, got {value!r}")


def _function(where: str, value: Any) -> Any:
    if callable(value):
        return value
    raise refusal(where, "a function", value)


KINDS: Mapping[str, Kind] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "ints": _ints,
    "extent": _extent,
    "extents": _extents,
    "dtype": _dtype,
    "Ints": _ints,
    "Sizes": _sizes,
    "Extents": _extents,
    "Count": _from(1),
    "Natural": _from(0),
    "Counts": bounded("at least 1", lambda n: n >= 1, _sizes),
    "Positive": bounded("a number above 0", lambda n: 0 < n < math.inf),
    "Unsigned": bounded("a number from 0 on", lambda n: 0 <= n < math.inf),
    "Probability": bounded("a number within 0..1", lambda n: 0 <= n <= 1),
    "Fraction": bounded("a number from 0 on, below 1", lambda n: 0 <= n < 1),
    "Function": _function,
    "Counted": _having("something with a length, such as a data set", ("__len__",)),
    "Iterated": _iterated,
    "Samples": _samples,
    "DataSets": _data_sets,
    "Reduction": one_of(get_args(Reduction)),
}


def kind_of(annotation: str) -> Kind | None:
    """Return the kind that an annotation names; None if it names none."""
    if annotation.startswith("Literal["):
        choices = ast.literal_eval(annotation.removeprefix("Literal"))
        return one_of(choices)
    return KINDS.get(annotation)
