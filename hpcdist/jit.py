"""Compiling loops with numba. Only modules of kernels import this: numba takes 0.3 s to import."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

_compiled: set[Any] = set()  # kernels with the kinds of arrays they are compiled for


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function; kept on disk beside the package, or in the user's cache directory.

    Division by zero gives infinity, as in arrays. Nothing is reordered: two machines, and slices
    of any length, give the same bits.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no directory can be written: compile in every process
        return numba.njit(**options)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function into its callers: to hand over arrays takes longer than a short loop."""
    return numba.njit(inline="always", error_model="numpy")(function)


def bound(kernel: Any, *arrays: Any) -> Callable[[], Any]:
    """Compile a kernel for these arrays now, not at the first step, and bind it to them."""
    kind = (kernel, *map(_kind, arrays))
    if kind not in _compiled:  # asking numba takes longer than many a kernel
        kernel.compile(tuple(numba.typeof(a) for a in arrays))
        _compiled.add(kind)
    return functools.partial(kernel, *arrays)


def _kind(value: Any) -> Any:
    """Return what numba tells values apart by."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim, value.flags.num
    return tuple(map(_kind, value)) if isinstance(value, tuple) else type(value)
