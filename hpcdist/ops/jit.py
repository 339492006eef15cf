"""Compiled loops of operators; see `hpcdist.jit`."""

from hpcdist.jit import bound, jit

__all__ = ["bound", "jit"]
