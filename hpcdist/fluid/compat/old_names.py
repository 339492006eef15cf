"""Names that Python and NumPy had when Fluid's scripts were written, for ``--as-paddle``.

``np.int``, ``np.float``, ``np.product`` and the like were other names of what is still there; NumPy
1.24 to 2.4 dropped them. So did Python 3.8 to 3.11 with ``collections.Iterable``, ``time.clock``
and others. They are put back while such a script runs, with two ways to call functions of NumPy
that are still there (``np.reshape(x, newshape=...)``, ``np.fromstring`` of bytes); nothing else
changes.
"""

from __future__ import annotations

import builtins
import collections
import collections.abc
import functools
import importlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcdist.fluid.compat.one_element import StandIn

_NUMPY: dict[str, Any] = {
    **{name: getattr(builtins, name) for name in ("int", "float", "bool", "object", "complex")},
    "str": builtins.str,
    "long": builtins.int,
    "unicode": builtins.str,
    "float_": np.float64,
    "complex_": np.complex128,
    "unicode_": np.str_,
    "string_": np.bytes_,
    "Inf": np.inf,
    "Infinity": np.inf,
    "infty": np.inf,
    "PINF": np.inf,
    "NINF": -np.inf,
    "NaN": np.nan,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "sometrue": np.any,
    "alltrue": np.all,
    "round_": np.round,
    "row_stack": np.vstack,
    "trapz": getattr(np, "trapezoid", None),
    "in1d": np.isin,
    "asscalar": lambda a: a.item(),
    "msort": functools.partial(np.sort, axis=0),
}


_ArgSpec = collections.namedtuple("_ArgSpec", ("args", "varargs", "keywords", "defaults"))


def _getargspec(func: Callable[..., Any]) -> _ArgSpec:
    import inspect

    return _ArgSpec(*inspect.getfullargspec(func)[:4])


NAMES: dict[str, dict[str, Any]] = {
    "numpy": _NUMPY,
    "collections": {name: getattr(collections.abc, name) for name in collections.abc.__all__},
    "fractions": {"gcd": math.gcd},
    "inspect": {"getargspec": _getargspec},
    "time": {"clock": time.process_time},
}


def _reshape(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if "newshape" in kwargs:
        kwargs["shape"] = kwargs.pop("newshape")
    return original(*args, **kwargs)


def _fromstring(original: Callable[..., Any], string: Any, *args: Any, **kwargs: Any) -> Any:
    sep = args[2] if len(args) > 2 else kwargs.pop("sep", "")
    if sep != "":
        return original(string, *args[:2], **kwargs, sep=sep)
    data = string.encode("latin-1") if isinstance(string, str) else string
    return np.frombuffer(data, *args[:2], **kwargs).copy()  # scripts write into what they read


FUNCTIONS = {"reshape": _reshape, "fromstring": _fromstring}


def install() -> Callable[[], None]:
    """Put the names back; return what takes them away again."""
    added = []
    for module_name, names in NAMES.items():
        module = importlib.import_module(module_name)
        before = dict(vars(module))
        for name, value in names.items():
            if value is not None and name not in before:
                setattr(module, name, value)
                added.append((module, name))
    originals = {name: getattr(np, name) for name in FUNCTIONS}
    for name, call in FUNCTIONS.items():
        setattr(np, name, StandIn(originals[name], call))

    def uninstall() -> None:
        for module, name in added:
            delattr(module, name)
        vars(np).update(originals)

    return uninstall
