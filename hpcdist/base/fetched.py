"""Fetched values as scripts use them, whatever NumPy is installed."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np


class FetchedArray(np.ndarray):
    """A fetched array of one element, such as a loss [1]: it converts to a number.

    So ``float(loss)``, ``int(count)`` and ``"%f" % loss`` work as they did before NumPy 2.4, which
    converts only arrays without dimensions. What is computed from it is one as well.
    """

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))


Kind = TypeVar("Kind", bound=type)
FETCHED: set[type] = {FetchedArray}  # what scripts make arrays of that still convert to numbers


def holds_fetched(kind: Kind) -> Kind:
    """Mark a class of values that hold what was fetched: a decorator."""
    FETCHED.add(kind)
    return kind


def as_fetched(value: Any) -> Any:
    """Return a host value as `Executor.run` hands it out; sparse gradients stay as they are."""
    if not isinstance(value, np.ndarray) or value.size != 1 or not value.ndim:
        return value
    return value.view(FetchedArray)
