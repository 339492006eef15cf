"""Checks of layers' arguments: Variables, their element types, and types of what is no Variable.

Element types are those that Fluid's layers take (``element_types.txt``), and so are types of other
arguments (``argument_types.txt``); ``tests/fluid_1_8/element_types.py`` and ``argument_types.py``
made them with the original. Anything else is a TypeError. Whole numbers are taken for floats, and
tuples for lists, too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpcdist.base import text_tables
from hpcdist.base.errors import GraphAssertionError, GraphTypeError
from hpcdist.base.keywords import defaults_of, names_arguments, parameters_of
from hpcdist.graph.dtypes import canonical
from hpcdist.graph.variable import Variable

_ONE = ("Variable", "Variable | None")
_SEVERAL = ("Sequence[Variable]", "Variable | Sequence[Variable]")


def checked(name: str, layer: Callable[..., Any]) -> Callable[..., Any]:
    """Return the layer with a look at the names of its arguments, and at those that are Variables.

    They are annotated as such, or have element types in the table.
    """
    return _looked_at(name, names_arguments(layer, f"layers.{name}"))


def check_methods(kind: type) -> None:
    """Look at arguments of a class's constructor and methods, those that the tables name."""
    for name, method in list(vars(kind).items()):
        key = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
        if inspect.isfunction(method) and key in _table("argument_types.txt"):
            setattr(kind, name, _looked_at(key, method))


def _looked_at(name: str, layer: Callable[..., Any]) -> Callable[..., Any]:
    order = parameters_of(layer)
    annotations = {
        key: annotation
        for key, annotation in layer.__annotations__.items()
        if annotation in _ONE + _SEVERAL and key != "return"
    }
    types = _table("element_types.txt").get(name, {})
    others = _table("argument_types.txt").get(name, {})
    if not (annotations or types or others):
        return layer

    @functools.wraps(layer)
    def call(*args: Any, **kwargs: Any) -> Any:
        for key, value in (*zip(order, args), *kwargs.items()):
            default = defaults_of(layer).get(key, inspect.Parameter.empty)
            if key in annotations and not _fits(value, annotations[key], default):
                expected = "a Variable" if annotations[key] in _ONE else "Variables"
                raise GraphTypeError(f"layers.{name}: {key} must be {expected}, got {value!r}")
            if key in types:
                _check_types(name, key, value, types[key])
            if key in others and value is not default:
                _check_argument(name, key, value, others[key])
        return layer(*args, **kwargs)

    return call


def check_shape(layer: str, x: Variable, shape: Any) -> None:
    """Raise what Fluid raises for a new shape: TypeError if it is no list, AssertionError."""
    if isinstance(shape, Variable):
        return
    if not isinstance(shape, (list, tuple)):
        raise GraphTypeError(f"layers.{layer}: shape must be a list or a Variable, got {shape!r}")
    extents = {place: d for place, d in enumerate(shape) if not isinstance(d, Variable)}
    unknown = sum(extent == -1 for extent in extents.values())
    beyond = any(extent == 0 and place >= len(x.shape) for place, extent in extents.items())
    if unknown > 1 or beyond or any(extent < -1 for extent in extents.values()):
        raise GraphAssertionError(
            f"layers.{layer}: {x.name!r} of {x.shape} cannot have shape {shape}: one extent may be "
            "-1, and 0 keeps an extent that is there"
        )


def _fits(value: Any, annotation: str, default: Any) -> bool:
    if isinstance(value, Variable) or (value is None and default is None):
        return True
    several = annotation in _SEVERAL and isinstance(value, (list, tuple))
    return several and all(isinstance(v, Variable) for v in value)


def _check_types(layer: str, argument: str, value: Any, types: tuple[str, ...]) -> None:
    for var in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(var, Variable) and var.dtype not in types:
            raise GraphTypeError(
                f"layers.{layer}: {argument} must be of {' or '.join(types)}, got {var.name!r} of "
                f"{var.dtype}; convert it with layers.cast"
            )


_PYTHON: Mapping[str, tuple[type, ...]] = {
    "Variable": (Variable,),
    "None": (type(None),),
    "bool": (bool, np.bool_),
    "dict": (dict,),
    "float": (float, int, np.floating, np.integer),
    "int": (int, np.integer),
    "list": (list, tuple),
    "ndarray": (np.ndarray,),
    "str": (str,),
    "tuple": (list, tuple),
}
_OF_VARIABLES = {"dict", "list", "tuple"}


def _check_argument(layer: str, argument: str, value: Any, types: tuple[str, ...]) -> None:
    """Raise GraphTypeError if an argument, or its element type, is none of these."""
    python = [word for word in types if word in _PYTHON]
    of = [word.removeprefix("of:") for word in types if word not in _PYTHON]
    if python and not isinstance(value, tuple(t for word in python for t in _PYTHON[word])):
        of_type, got = f"of type {' or '.join(python)}", repr(value)
        if isinstance(value, Variable) and not _OF_VARIABLES.issuperset(python):
            of_type, got = "known before the step", f"a Variable: expected {' or '.join(python)}"
        raise GraphTypeError(f"layers.{layer}: {argument} must be {of_type}, got {got}")
    named = value.dtype if isinstance(value, Variable) else None if python else value
    if of and named is not None and canonical(named) not in of:
        raise GraphTypeError(
            f"layers.{layer}: {argument} must be of {' or '.join(of)}, got {canonical(named)}"
        )


@functools.cache
def _table(name: str) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Return the types that each layer takes, by argument."""
    by_layer: dict[str, dict[str, tuple[str, ...]]] = {}
    types: tuple[str, ...] = ()
    for line in text_tables.lines(__package__, name):
        if not line.startswith(" "):
            types = tuple(line.split())
            continue
        for layer, _, argument in (word.rpartition(".") for word in line.split()):
            by_layer.setdefault(layer, {})[argument] = types
    return by_layer
