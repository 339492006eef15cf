"""Names that NumPy had when Fluid's scripts were written, for ``--as-paddle``.

``np.int``, ``np.float``, ``np.product`` and the like were other names of what is still there; NumPy
1.24 to 2.4 dropped them. They are put back while such a script runs, and nothing else changes.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

_ALIASES: dict[str, Any] = {
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


def install() -> Callable[[], None]:
    """Put the names back; return what takes them away again."""
    before = dict(vars(np))
    for name, value in _ALIASES.items():
        if value is not None and name not in before:
            setattr(np, name, value)

    def uninstall() -> None:
        for name in _ALIASES:
            if name not in before and name in vars(np):
                delattr(np, name)

    return uninstall
