"""Sums over NCCL in two levels: to the first GPU of each node, among those, and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hpcdist.comm.collective import Buffer, Reduction
from hpcdist.comm.device import on_device
from hpcdist.comm.hierarchy import OverFlat, find_nodes
from hpcdist.comm.host_collective import agreed, part_of, sum_of
from hpcdist.comm.nccl import NcclCollective, NcclReduction


class HierarchicalNcclCollective(OverFlat):
    """A group of GPUs that sums in two levels, all of it on one stream."""

    def __init__(self, flat: NcclCollective, device_id: int, inter_nranks: int = 0) -> None:
        """Make the communicators of both levels. Collective."""
        super().__init__(flat)
        self.flat: NcclCollective = flat
        self.nodes, inner = find_nodes(flat.group, inter_nranks)
        leads = inner.rank == 0
        leaders = part_of(flat.group, flat.group.transport.split(0 if leads else 1, flat.rank))
        self._levels: list[NcclCollective] = []
        if self.nodes.have_two_levels:
            self._levels.append(NcclCollective(inner, device_id))
            if leads:
                self._levels.append(NcclCollective(leaders, device_id))

    def allreduce_init(
        self, array: Buffer, *, ordered: bool = False, describe: Callable[[], str] | None = None
    ) -> Reduction:
        """Make the reduction of an array on this rank's GPU, in place, in two levels. Collective.

        In one with ``ordered``, or where no node has several ranks.
        """
        if ordered or not self._levels:
            return self.flat.allreduce_init(array, ordered=ordered, describe=describe)
        agreed(self.group, on_device(self.flat.cupy, array), ordered)
        kind, add = self.flat.kind(array), self.flat.nccl.NCCL_SUM
        count = array.size

        def enqueue(stream: Any) -> None:
            ptr = array.data.ptr  # of an array that lives as long as its sum
            inner = self._levels[0].comm
            inner.reduce(ptr, ptr, count, kind, add, 0, stream.ptr)
            for leaders in self._levels[1:]:
                leaders.comm.allReduce(ptr, ptr, count, kind, add, stream.ptr)
            inner.broadcast(ptr, ptr, count, kind, 0, stream.ptr)

        return NcclReduction(self._levels, enqueue, describe or partial(sum_of, array))

    def close(self) -> None:
        """Destroy the communicators of both levels, once their work has ended. Collective."""
        for level in (*self._levels, self.flat):
            level.close()

    def abort(self) -> None:
        """Abort the communicators of both levels: what waits in them ends in an error."""
        for level in (*self._levels, self.flat):
            level.abort()
