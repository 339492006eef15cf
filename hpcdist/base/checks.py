"""Checks of arguments and fields, with their error messages."""

from __future__ import annotations

import functools
import math
import operator
import os
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

from hpcdist.base.errors import (
    FleetError,
    FleetTypeError,
    GraphError,
    GraphTypeError,
    MissingNameError,
    PlanAttributeError,
    PlanError,
    PlanTypeError,
)
from hpcdist.base.nearest import did_you_mean

Errors = tuple[type[Exception], type[Exception]]  # of a wrong type, of a wrong value
PLAN: Errors = (PlanTypeError, PlanError)
FLEET: Errors = (FleetTypeError, FleetError)
GRAPH: Errors = (GraphTypeError, GraphError)


def integer(
    name: str,
    value: Any,
    least: int,
    below: int | None = None,
    errors: Errors = PLAN,
) -> int:
    """Return an int of at least ``least``, below ``below`` if that is given; a bool is none.

    ``name`` is what errors call it.
    """
    wrong_type, wrong_value = errors
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise wrong_type(f"{name}: expected an integer, got {value!r}")
    number = int(value)
    if number < least or (below is not None and number >= below):
        expected = f"at least {least}" if below is None else f"{least}..{below - 1}"
        raise wrong_value(f"{name}: expected {expected}, got {value}")
    return number


def checked_path(
    name: str,
    value: Any,
    error: type[Exception] = GraphTypeError,
    expected: str = "a path as text",
) -> Path:
    """Return the path of a file or a directory, which need not be there; ``error`` if it is none.

    ``name`` is what errors call it.
    """
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise error(f"{name}: expected {expected}, got {value!r:.80}")
    return Path(value)


def is_whole(value: Any, least: int) -> bool:
    """Return whether a value is an integer of at least ``least``; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_positive(value: Any) -> bool:
    """Return whether a value is a finite number above 0; a bool is none."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and 0.0 < float(value) < math.inf


def extents(shape: Iterable[Any]) -> tuple[int, ...]:
    """Return a shape's extents as ints; GraphTypeError for text, and for what is not whole."""
    listed = tuple(shape)
    for extent in listed:
        if not _stands_for_whole(extent):
            raise GraphTypeError(f"a shape has whole numbers, got {extent!r} in {[*listed]}")
    return tuple(map(int, listed))


def whole(value: Any) -> int:
    """Return a number of elements as an int: of 4.0 too; GraphTypeError for what is not whole."""
    if not _stands_for_whole(value):
        raise GraphTypeError(f"expected a whole number, got {value!r}: int() of it, or // for /")
    return int(value)


def _stands_for_whole(value: Any) -> bool:
    if type(value) is int:
        return True
    return not isinstance(value, str) and (not isinstance(value, Real) or float(value).is_integer())


def positive(name: str, value: Any, errors: Errors = PLAN) -> float:
    """Return a number above 0 that is finite, as a float; a bool is none."""
    wrong_type, wrong_value = errors
    if not isinstance(value, Real) or isinstance(value, bool):
        raise wrong_type(f"{name}: expected a number, got {value!r}")
    if not is_positive(value):
        raise wrong_value(f"{name}: expected a number above 0, got {value}")
    return float(value)


def directory(name: str, value: Any, error: type[Exception]) -> Path:
    """Return the path of a directory, which need not be there; a number or "" is none."""
    if value == "":
        raise error(f"{name}: expected a directory, got {value!r}")
    return checked_path(name, value, error, "a directory")


def names(argument: str, value: Any, errors: Errors = PLAN) -> set[str]:
    """Return the names that a list, a set, ... holds (None: none); one str is no list of them."""
    many = isinstance(value, Iterable) and not isinstance(value, str)
    items = list(value) if many else []
    if not (many or value is None) or any(not isinstance(name, str) for name in items):
        raise errors[0](f"{argument}: expected a list of names, got {value!r}")
    return set(items)


def no_field(owner: str, name: str, fields: Iterable[str]) -> str:
    """Return the words for a field that does not exist, with the one that may be meant."""
    return f"{owner} has no field {name!r}{did_you_mean(name, fields)}"


def no_key(owner: str, key: object, keys: Iterable[str]) -> str:
    """Return the words for a key that a dict of settings does not have, with all it has."""
    known = sorted(keys)
    return (
        f"{owner} has no key {key!r}{did_you_mean(str(key), known)} (its keys: {', '.join(known)})"
    )


class Fields:
    """Base of dataclasses of settings: fields that do not exist cannot be set."""

    def __setattr__(self, name: str, value: Any) -> None:
        fields = type(self).__dataclass_fields__  # type: ignore[attr-defined]
        if name not in fields:
            raise PlanAttributeError(no_field(type(self).__name__, name, fields))
        super().__setattr__(name, value)


class Refused:
    """A name that objects of Fluid's or Paddle's have, and which says what to use instead.

    Reading it raises MissingNameError, an AttributeError: for ``hasattr`` it is not there.
    """

    def __init__(self, instead: str, of: str = "Fluid 1.8.5") -> None:
        self._instead, self._of = instead, of

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise MissingNameError(f"{self._name} of {self._of} is not in hpcdist: {self._instead}")


# -- ranges, declared in the words of the error ----------------------------------------------------
#     {"max_norm": "above 0", "groups": "at least 1", "ratio": "[0, 0.5]", "beta": "[0, 1)"}
#     {"rate": "a finite number", "mode": "min or max"}
_LIMITS = {"above ": operator.gt, "at least ": operator.ge}


@functools.cache
def _test(text: str) -> Callable[[Any], bool]:
    for words, compare in _LIMITS.items():
        if text.startswith(words):
            limit = float(text.removeprefix(words))
            return lambda value: compare(value, limit) and math.isfinite(value)
    if text.startswith("["):
        least, most = map(float, text[1:-1].split(","))
        below = operator.lt if text.endswith(")") else operator.le
        return lambda value: least <= value and below(value, most)
    if text == "a finite number":
        return math.isfinite
    allowed = text.split(" or ")
    return lambda value: str(value) in allowed


def is_within(text: str, value: Any) -> bool:
    """Return whether a value, or every one of a list, is what the text says; nan is in no range.

    None stands for what is not known yet.
    """
    if isinstance(value, (list, tuple)):
        return all(is_within(text, one) for one in value)
    return value is None or _test(text)(value)
