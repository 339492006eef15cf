"""Dispatchers, which assign blocks to servers, as Fluid's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32


class PSDispatcher:
    """Base of dispatchers: hands each block of a parameter to one of the servers.

    A custom dispatcher derives directly from this class and implements ``dispatch``. It is
    asked once, for all blocks of all parameters; gradients go where their parameters go.
    """

    def __init__(self, pserver_endpoints: Sequence[str]) -> None:
        self._eps = list(pserver_endpoints)
        self._step = 0

    @property
    def eps(self) -> list[str]:
        """The servers' endpoints."""
        return self._eps

    def reset(self) -> None:
        """Start again at the first server."""
        self._step = 0

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        """Return the endpoint of each variable (it has ``name`` and ``shape``), in order."""
        raise NotImplementedError(f"{type(self).__name__} does not implement dispatch(varlist)")


class RoundRobin(PSDispatcher):
    """One block to each server in turn, continuing where the last call ended.

    Examples:
        >>> from hpcdist.transpiler import RoundRobin
        >>> RoundRobin(["ps0:6174", "ps1:6174"]).dispatch(["a", "b", "c"])
        ['ps0:6174', 'ps1:6174', 'ps0:6174']
    """

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        """Return the next endpoints, one per variable."""
        chosen = []
        for _ in varlist:
            chosen.append(self._eps[self._step])
            self._step = (self._step + 1) % len(self._eps)
        return chosen


class HashName(PSDispatcher):
    """The server is a function of the block's name, the same in every process."""

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        """Return the endpoint that each variable's name stands for."""
        return [self._eps[crc32(var.name.encode()) % len(self._eps)] for var in varlist]
