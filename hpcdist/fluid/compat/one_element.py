"""``float(np.array(loss))`` and ``"%f" % np.array(loss)`` for scripts from before NumPy 2.4.

NumPy 2.4 converts only arrays without dimensions to numbers. What is fetched has a class that
converts (`FetchedArray`), which ``np.array`` drops. So the launcher makes ``numpy.array`` and
``numpy.asarray`` keep it where they are given what was fetched, and nowhere else: mistakes with
other arrays are errors as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.base.fetched import FETCHED, as_fetched

NAMES = ("array", "asarray")


class StandIn:
    """One of numpy's functions, called by ``call`` before its arguments.

    Whoever looks it up in a table, as numba does, finds numpy's.
    """

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        self._original, self._call = original, call
        self.__name__, self.__doc__ = original.__name__, original.__doc__
        self.__module__, self.__wrapped__ = original.__module__, original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._original, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __eq__(self, other: object) -> bool:
        return other is self._original or other is self

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


def _made(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    made = original(*args, **kwargs)
    given = args[0] if args else None
    if type(given) is list and len(given) == 1:
        given = given[0]
    return as_fetched(made) if type(given) in FETCHED else made


def converts() -> bool:
    """Return whether NumPy itself converts arrays of one element: it did before 2.4."""
    try:
        float(np.zeros(1))
    except TypeError:
        return False
    return True


def install() -> None:
    """Wrap NumPy's functions to keep the class of fetched values, where they lose it."""
    if converts():
        return
    for name in NAMES:
        original = getattr(np, name)
        if not isinstance(original, StandIn):
            setattr(np, name, StandIn(original, _made))


def uninstall() -> None:
    """Give NumPy its functions back."""
    for name in NAMES:
        found = getattr(np, name)
        if isinstance(found, StandIn):
            setattr(np, name, found.__wrapped__)
