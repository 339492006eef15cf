"""numpy's inner loops, by address: what a ufunc computes, without what finds out what it must.

On a few elements a ufunc takes half a microsecond, of which its loop takes some nanoseconds.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import numpy as np


class UfuncHead(ctypes.Structure):
    """The head of PyUFuncObject (numpy/ufuncobject.h), which extensions are compiled against."""

    _fields_ = (
        ("head", ctypes.c_char * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved", ctypes.c_int),
        ("name", ctypes.c_char_p),
    )


@functools.cache
def loop_of(ufunc: np.ufunc, types: str) -> tuple[int, int] | None:
    """Return the address of a ufunc's loop for types such as "ff->f", and of the loop's data.

    None if it has none for these types, or if this numpy describes its ufuncs in another way.
    """
    if types not in ufunc.types:
        return None
    found = UfuncHead.from_address(id(ufunc))
    seen = found.nin, found.nout, found.nargs, found.ntypes
    if seen != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes):
        return None
    if found.name is None or found.name.decode() != ufunc.__name__:
        return None
    k = ufunc.types.index(types)
    function = found.functions[k]
    return None if not function else (function, (found.data[k] or 0) if found.data else 0)


def coalesced(arrays: Sequence[np.ndarray]) -> tuple[list[int], list[list[int]]]:
    """Return extents and strides of arrays of one shape, with as few dimensions as they allow."""
    shape: list[int] = []
    strides: list[list[int]] = [[] for _ in arrays]
    for i, extent in enumerate(arrays[0].shape):
        if extent == 1:
            continue
        if shape and all(s[-1] == a.strides[i] * extent for s, a in zip(strides, arrays)):
            shape[-1] *= extent
            for s, a in zip(strides, arrays):
                s[-1] = a.strides[i]
        else:
            shape.append(extent)
            for s, a in zip(strides, arrays):
                s.append(a.strides[i])
    return shape, strides
