"""Sums in two levels: within nodes, among nodes, and back; fewer bytes on the links between nodes.

Within a node every rank adds up one share of the array. Each share is then summed among the nodes,
by the ranks that have it, and distributed within each node. For an array of S bytes a node of L
ranks sends 2 (nodes - 1) / nodes S to other nodes; a flat sum would send L times as much. (In Fluid
one leader per node does this with the complete array: the sums have the same order.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcdist.base.errors import PlanAssertionError
from hpcdist.comm.base import Array
from hpcdist.comm.collective import CollectiveOperations, RankGroup, Reduction
from hpcdist.comm.host_collective import HostCollective, part_of, sum_of
from hpcdist.comm.reduction_phases import (
    Action,
    Exchange,
    all_gather,
    cuts,
    exchange_all,
    reduce_scatter,
    shares,
)
from hpcdist.comm.shared_memory import SharedAddress, SharedMemory


@dataclass(frozen=True)
class Nodes:
    """Which ranks form a node; nodes are in the order of their first ranks."""

    members: tuple[tuple[int, ...], ...]

    @staticmethod
    def by_count(size: int, inter_nranks: int) -> Nodes:
        """Return nodes of ``inter_nranks`` consecutive ranks each; refuses what Fluid refuses."""
        if size <= inter_nranks or size % inter_nranks:
            raise PlanAssertionError(
                f"hierarchical_allreduce_inter_nranks={inter_nranks}: expected less than the "
                f"{size} trainers, and a divisor of that number"
            )
        starts = range(0, size, inter_nranks)
        return Nodes(tuple(tuple(range(first, first + inter_nranks)) for first in starts))

    @staticmethod
    def by_first_rank(firsts: Sequence[int]) -> Nodes:
        """Return the nodes, given for each rank the first rank of its node."""
        return Nodes(
            tuple(
                tuple(rank for rank, other in enumerate(firsts) if other == first)
                for first in sorted(set(firsts))
            )
        )

    def of(self, rank: int) -> int:
        """Return the node of a rank."""
        return next(i for i, node in enumerate(self.members) if rank in node)

    @property
    def owners(self) -> int:
        """How many ranks of each node hold shares: what the smallest node has."""
        return min(map(len, self.members))

    @property
    def have_two_levels(self) -> bool:
        """Whether there are several nodes, and one of them has several ranks."""
        return len(self.members) > 1 and max(map(len, self.members)) > 1

    @property
    def are_consecutive(self) -> bool:
        """Whether each node's ranks follow those of the node before."""
        ranks = [rank for node in self.members for rank in node]
        return ranks == sorted(ranks)

    def __str__(self) -> str:
        sizes = sorted({len(node) for node in self.members})
        ranks = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        return f"{len(self.members)} nodes of {ranks} ranks"


def find_nodes(group: RankGroup, inter_nranks: int) -> tuple[Nodes, RankGroup]:
    """Return the nodes of a group, and this rank's as a separate group. Collective.

    ``inter_nranks`` consecutive ranks each; up to 1, as in Fluid, what they share decides: a host.
    """
    if inter_nranks > 1:
        nodes = Nodes.by_count(group.size, inter_nranks)
        return nodes, part_of(group, group.transport.split(nodes.of(group.rank), group.rank))
    inner = part_of(group, group.transport.on_host())
    first = str(group.names.index(inner.names[0])).encode()
    firsts = group.transport.allgather_bytes(first, group.deadline_s, "the others' hosts")
    return Nodes.by_first_rank([int(other) for other in firsts]), inner


class OverFlat:
    """A group that sums in two levels, and leaves everything else to the flat group under it."""

    def __init__(self, flat: CollectiveOperations) -> None:
        self.flat = flat
        self.group = flat.group
        self.rank, self.size = flat.rank, flat.size
        self.empty = flat.empty
        self.broadcast = flat.broadcast
        self.allgather = flat.allgather
        self.reduce = flat.reduce
        self.barrier = flat.barrier
        self.split = flat.split

    def close(self) -> None:
        """Release the group's resources; no reduction may be pending. Collective."""
        self.flat.close()

    def abort(self) -> None:
        """End the job: every rank that waits for this one gets an error."""
        self.flat.abort()


class HierarchicalCollective(OverFlat):
    """A group that sums in two levels."""

    def __init__(self, flat: HostCollective, inter_nranks: int = 0) -> None:
        """Find the nodes, see ``find_nodes``. Collective; ``flat`` closes what both hold."""
        super().__init__(flat)
        self.flat: HostCollective = flat
        self.nodes, self._inner = find_nodes(flat.group, inter_nranks)
        node = self.nodes.of(flat.rank)
        rail = min(self._inner.rank, self.nodes.owners)  # the last: those without a share
        self._rail = part_of(flat.group, flat.group.transport.split(rail, node))

    def allreduce_init(
        self, array: Array, *, ordered: bool = False, describe: Callable[[], str] | None = None
    ) -> Reduction:
        """Make the reduction of an array in host memory, in place, in two levels. Collective.

        In one where there are no nodes of several ranks. CommError on all ranks unless all have
        arrays of one shape and dtype.
        """
        if not self.nodes.have_two_levels:
            return self.flat.allreduce_init(array, ordered=ordered, describe=describe)
        place = self.flat.agree(array, ordered)
        operation = describe or partial(sum_of, array)
        memory = self.flat.memory
        if place is not None and memory is not None and memory.group.names == self._inner.names:
            return self._shared(array, memory, place, operation)
        flat = array.reshape(-1)
        bounds = self._bounds(flat)
        tag = self.flat.tag
        return self.flat.chain(
            [
                reduce_scatter(self._inner, flat, bounds, tag(), operation),
                *self._among_nodes(shares(flat, bounds)[self._inner.rank], operation),
                all_gather(self._inner, flat, bounds, tag(), operation),
            ]
        )

    def _shared(
        self, array: Array, memory: SharedMemory, place: SharedAddress, operation: Callable[[], str]
    ) -> Reduction:
        from hpcdist.comm.ordered_sum import add_rows  # numba takes 0.3 s to import

        rows = memory.rows(place, array)
        begin, end = self._bounds(rows[0])[self._inner.rank :][:2]
        columns = rows[:, begin:end]
        share = np.empty(end - begin, array.dtype)

        def add() -> None:
            add_rows(columns[1:], columns[0], 0, share)

        def spread() -> None:
            columns[...] = share

        return self.flat.chain(
            [
                memory.meeting(operation, add),
                *self._among_nodes(share, operation, spread),
                memory.meeting(operation),
            ]
        )

    def _among_nodes(
        self, share: Array, operation: Callable[[], str], then: Action | None = None
    ) -> list[Exchange]:
        """Return the phases that sum this rank's share over the nodes."""
        tags = self.flat.tag(), self.flat.tag()
        if self._inner.rank >= self.nodes.owners:
            return []
        if self._rail.size == 2:
            return [exchange_all(self._rail, share, tags[0], operation, then)]
        bounds = cuts(share.size, self._rail.size, self._rail.size)
        return [
            reduce_scatter(self._rail, share, bounds, tags[0], operation),
            all_gather(self._rail, share, bounds, tags[1], operation, then),
        ]

    def _bounds(self, flat: Array) -> list[int]:
        return cuts(flat.size, self._inner.size, self.nodes.owners)
