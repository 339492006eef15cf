"""numpy's inner loops, by address: what a ufunc computes, without what finds out what it must.

On a few elements a ufunc takes half a microsecond, of which its loop takes some nanoseconds.
"""

from __future__ import annotations

import ctypes
import functools

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
