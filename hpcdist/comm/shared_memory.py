"""Sums in memory shared by the ranks of one host: no messages, no copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcdist.base.division import round_up
from hpcdist.comm.base import Array, SharedRows
from hpcdist.comm.collective import RankGroup, Reduction
from hpcdist.comm.reduction_phases import Action

LINE = 64  # bytes: a flag has a separate cache line
PAGE = 4096


@dataclass(frozen=True)
class SharedAddress:
    """Where an array lies in the shared memory of its host: in which region, at which byte."""

    region: int
    offset: int


class SharedMemory:
    """Regions of memory shared by the ranks of one host, and flags among them."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self._regions: list[SharedRows] = []
        self._flags: list[SharedRows] = []
        self._flags_used = 0

    def empty(self, nbytes: int) -> Array | None:
        """Return new bytes of this rank's in a separate region; None if there is no room.

        Collective; ``nbytes`` is the same on all ranks.
        """
        region = self.group.transport.share(round_up(max(nbytes, 1), PAGE))
        if region is None:
            return None
        self._regions.append(region)
        row: Array = region.rows[self.group.rank, :nbytes]
        return row

    def find(self, array: Array) -> SharedAddress | None:
        """Return where an array lies, None if it is not in shared memory."""
        address = array.ctypes.data
        for index, region in enumerate(self._regions):
            row = region.rows[self.group.rank]
            offset = address - row.ctypes.data
            if offset >= 0 and offset + array.nbytes <= row.size:
                return SharedAddress(index, offset)
        return None

    def rows(self, place: SharedAddress, like: Array) -> Array:
        """Return all ranks' arrays at one place [size, length], of ``like``'s type and length."""
        region = self._regions[place.region]
        raw = region.rows[:, place.offset : place.offset + like.nbytes]
        return raw.view(like.dtype)

    def meeting(self, operation: Callable[[], str], then: Action | None = None) -> HostBarrier:
        """Return a new phase in which all ranks of the host meet. Collective."""
        per_region = PAGE // LINE
        if self._flags_used % per_region == 0:
            region = self.group.transport.share(PAGE)
            if region is None:
                raise MemoryError("no room for a page of flags")
            self._flags.append(region)
        line = self._flags_used % per_region * LINE
        self._flags_used += 1
        region = self._flags[-1]
        flags = region.rows[:, line : line + 8].view(np.int64)[:, 0]
        return HostBarrier(self.group, flags, region.sync, operation, then)

    def close(self) -> None:
        """Free all regions: arrays in them must not be used any more. Collective."""
        for region in self._regions + self._flags:
            region.free()
        self._regions.clear()
        self._flags.clear()
        self._flags_used = 0


class HostBarrier(Reduction):
    """All ranks of a host come here; then each calls ``then``."""

    def __init__(
        self,
        group: RankGroup,
        flags: Array,
        sync: Action,
        operation: Callable[[], str],
        then: Action | None,
    ) -> None:
        """``flags`` [size] counts how often each rank has come."""
        self._flags = flags
        self._rank = group.rank
        self._sync = sync
        self._then = then
        self._count = 0
        describe = group.lacking(operation, self._missing)
        self._wait = group.transport.waiter(self._met, describe, group.deadline_s)

    def start(self) -> None:
        self._count += 1
        self._sync()
        self._flags[self._rank] = self._count

    def test(self) -> bool:
        if not self._met():
            return False
        self._end()
        return True

    def wait(self) -> None:
        if not self._met():
            self._wait()
        self._end()

    def _met(self) -> bool:
        counts: list[int] = self._flags.tolist()
        return min(counts) >= self._count  # of few numbers faster than NumPy finds it

    def _end(self) -> None:
        self._sync()
        if self._then is not None:
            self._then()

    def _missing(self) -> list[int]:
        return [int(peer) for peer in np.flatnonzero(self._flags < self._count)]
