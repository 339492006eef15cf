"""Host copies of device arrays: messages leave from, and arrive in, host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from hpcdist.executor.backend import Backend
from hpcdist.executor.control import Binding
from hpcdist.graph.registry import Call
from hpcdist.ops.common import in_sequence
from hpcdist.ops.embedding.selected_rows import SelectedRows


class Staging:
    """The arrays of a compiled Program as messages see them.

    A host array is used as it is. Of a device array there is a host copy of the same shape:
    ``down`` fills it before a send, ``up`` takes what arrived back to the device. ``copies`` holds
    the host copies by name; Programs with the same connection share them.
    """

    def __init__(
        self, arrays: Mapping[str, Any], backend: Backend, copies: dict[str, np.ndarray]
    ) -> None:
        self._arrays = arrays
        self._backend = backend
        self._copies = copies

    def host(self, name: str) -> np.ndarray:
        """Return the array that messages of ``name`` use."""
        array = self._arrays[name]
        if isinstance(array, np.ndarray):
            return array
        if name not in self._copies:
            self._copies[name] = np.empty(array.shape, array.dtype)
        return self._copies[name]

    def down(self, names: Iterable[str]) -> Callable[[], None] | None:
        """Return the copy of device arrays into their host copies; None if there is none."""
        pairs = self._pairs(names)
        if not pairs:
            return None

        def copy() -> None:
            for device, host in pairs:
                host[...] = self._backend.copy_out(device)

        return copy

    def up(self, names: Iterable[str]) -> Callable[[], None] | None:
        """Return the copy of host copies back into their device arrays; None if there is none."""
        pairs = self._pairs(names)
        if not pairs:
            return None

        def copy() -> None:
            for device, host in pairs:
                self._backend.copy_in(device, host)

        return copy

    def _pairs(self, names: Iterable[str]) -> list[tuple[Any, np.ndarray]]:
        return [
            (self._arrays[n], self.host(n))
            for n in names
            if not isinstance(self._arrays[n], (np.ndarray, SelectedRows))
        ]


def rebound(binding: Binding, make: Callable[[], Callable[[], object] | None]) -> Call:
    """Return a call of what ``make`` binds to the arrays, bound anew when values have got others.

    Ragged batches of other lengths lie in other arrays.
    """
    call, made_at = make(), binding.fits.count

    def run() -> None:
        nonlocal call, made_at
        if made_at != binding.fits.count:
            call, made_at = make(), binding.fits.count
        if call is not None:
            call()

    return run


def in_order(*calls: Callable[[], object] | None) -> Callable[[], object] | None:
    """Return one call that makes these calls in order; None if there is nothing to call."""
    present = [call for call in calls if call is not None]
    return in_sequence(*present) if present else None
