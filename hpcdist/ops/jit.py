"""Compiling loops with numba. Only modules of kernels import this: numba takes 0.3 s to import."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba


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


def bound(kernel: Any, *arrays: Any) -> Callable[[], Any]:
    """Compile a kernel for these arrays now, not at the first step, and bind it to them."""
    kernel.compile(tuple(numba.typeof(a) for a in arrays))
    return functools.partial(kernel, *arrays)
