"""The memory that temporaries share."""

from __future__ import annotations

from typing import Any

from hpcdist.executor.backend import Backend


class Pool:
    """Memory for the temporaries of all Programs of one executor, which run one at a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._memory = backend.bytes(0)

    def take(self, nbytes: int) -> Any:
        """Return a buffer of at least ``nbytes``; it may be the one taken before."""
        if len(self._memory) < nbytes:
            self._memory = self._backend.bytes(nbytes)
        return self._memory
