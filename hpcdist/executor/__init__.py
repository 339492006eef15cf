"""Executing Programs: places, scopes, the compiler and its plans."""

from hpcdist.executor.arrays import as_numpy
from hpcdist.executor.arrays import fetch_var as _fetch_var

__all__ = ["_fetch_var", "as_numpy"]
