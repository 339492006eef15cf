"""The group operations over a transport of host memory: MPI, or threads of one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcdist.base.errors import CommError
from hpcdist.comm.base import Array, Request, Transport, contiguous, summable, writable
from hpcdist.comm.collective import RankGroup, Reduction
from hpcdist.comm.progress import DEADLINE_S
from hpcdist.comm.reduction_phases import (
    Chain,
    Exchange,
    all_gather,
    cuts,
    exchange_all,
    reduce_scatter,
)
from hpcdist.comm.shared_memory import SharedAddress, SharedMemory

FIRST_TAG = 1000  # of sums; below are the tags of single messages
# From so many bytes on per pair of ranks, our exchange is as fast as MPI's own sum, or faster.
EXCHANGE_FROM = 1024
EXCHANGE_ALL_TO = 16384


class HostCollective:
    """A group of ranks over one transport, which carries nothing else meanwhile."""

    def __init__(
        self,
        transport: Transport,
        deadline_s: float | None = DEADLINE_S,
        names: Sequence[int] | None = None,
    ) -> None:
        """``names`` are the ranks' numbers in error messages; None: as in ``transport``."""
        self.group = RankGroup(transport, tuple(names or range(transport.size)), deadline_s)
        self.rank = transport.rank
        self.size = transport.size
        self.memory: SharedMemory | None = None  # once somebody has asked for memory
        self._exchanges: list[Exchange] = []
        self._tag = FIRST_TAG

    def empty(self, nbytes: int) -> Array:
        """Return uninitialized bytes in which sums need the least copying. Collective.

        They are shared among the ranks of the host if it has room; they live until ``close``.
        ``nbytes`` is the same on all ranks.
        """
        memory = None
        if self.size > 1:
            if self.memory is None:
                self.memory = SharedMemory(part_of(self.group, self.group.transport.on_host()))
            memory = self.memory.empty(nbytes)
        return np.empty(nbytes, np.uint8) if memory is None else memory

    def allreduce_init(
        self, array: Array, *, ordered: bool = False, describe: Callable[[], str] | None = None
    ) -> Reduction:
        """Make the reduction of an array in host memory, in place. Collective.

        How follows from its bytes and where it lies, on all ranks alike: in memory that ranks
        of one host share, as one sum of MPI's, whole to everyone, or in two phases by parts.
        CommError on all ranks unless all have arrays of one shape and dtype that can be summed.
        """
        place = self.agree(array, ordered)
        operation = describe or partial(sum_of, array)
        if self.size == 1:
            return AloneReduction()
        if place is not None and self.memory is not None and self.memory.group.size == self.size:
            return self.chain(shared_sum(self.memory, place, array, operation))
        if not ordered and array.nbytes < EXCHANGE_FROM * self.size:
            return TransportReduction(self.group, array, operation)
        flat = array.reshape(-1)
        if array.nbytes <= EXCHANGE_ALL_TO:
            return self.chain([exchange_all(self.group, flat, self.tag(), operation)])
        bounds = cuts(flat.size, self.size, self.size)
        return self.chain(
            [
                reduce_scatter(self.group, flat, bounds, self.tag(), operation),
                all_gather(self.group, flat, bounds, self.tag(), operation),
            ]
        )

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Overwrite ``array``, of equal bytes on all ranks, with the root's. Collective."""
        self.group.transport.broadcast(array, self.group.checked_root(root))

    def allgather(self, array: Array, out: Array) -> None:
        """Write all ranks' arrays, in rank order, into ``out``. Collective.

        ``out`` is writable, of the same dtype, and ``size`` times as large, or CommError.
        """
        sent = contiguous(array)
        self.group.check_gathered(sent, writable(out))
        rows = out.reshape(self.size, -1)
        requests: list[Request] = []
        for peer in self.group.others:
            requests.append(self.group.transport.irecv(rows[peer], peer, 0))
            requests.append(self.group.transport.isend(sent, peer, 0))
        rows[self.rank] = sent.reshape(-1)
        self._wait(requests, "the others' arrays")

    def reduce(self, array: Array, root: int = 0) -> None:
        """Replace the root's array by the sum over all ranks, added in rank order. Collective.

        The others' arrays stay as they are.
        """
        summable(array)
        transport = self.group.transport
        if self.rank != self.group.checked_root(root):
            self._wait([transport.isend(array, root, 0)], "its array to be taken", [root])
            return
        flat, peers = array.reshape(-1), self.group.others
        rows: Any = np.empty((len(peers), flat.size), flat.dtype)
        requests = [transport.irecv(row, p, 0) for row, p in zip(rows, peers, strict=True)]
        self._wait(requests, "arrays to add")
        if peers:
            from hpcdist.comm.ordered_sum import add_rows  # numba takes 0.3 s to import

            add_rows(rows, flat, root, flat)

    def barrier(self) -> None:
        """Wait until every rank has come here; DeadlineError if one does not. Collective."""
        self.group.transport.barrier(self.group.deadline_s)

    def split(self, color: int, key: int) -> HostCollective:
        """Return the group of ranks of equal ``color``, by ``key``. Collective."""
        group = part_of(self.group, self.group.transport.split(color, key))
        return HostCollective(group.transport, group.deadline_s, group.names)

    def close(self) -> None:
        """Release requests and shared memory; no reduction may be pending. Collective."""
        for exchange in self._exchanges:
            exchange.close()
        self._exchanges.clear()
        if self.memory is not None:
            self.memory.close()
            self.memory = None

    def abort(self) -> None:
        """End the job: every rank that waits for this one gets an error."""
        self.group.transport.abort(1)

    # -- for those who build other sums over this group --

    def tag(self) -> int:
        """Return a tag that no other sum of this group uses; the same on all ranks."""
        self._tag += 1
        return self._tag

    def chain(self, phases: Sequence[Reduction]) -> Chain:
        """Return a reduction by phases, closed together with this group."""
        self._exchanges += [phase for phase in phases if isinstance(phase, Exchange)]
        return Chain(phases)

    def agree(self, array: Array, ordered: bool) -> SharedAddress | None:
        """Check that all ranks sum arrays alike; return where they lie in shared memory, if so.

        Collective.
        """
        summable(array)
        place = self.memory.find(array) if self.memory is not None else None
        offered = [place.region, place.offset] if place else None
        return place if agreed(self.group, array, ordered, offered) else None

    def _wait(
        self, requests: list[Request], awaited: str, peers: Sequence[int] | None = None
    ) -> None:
        describe = self.group.lacking(lambda: awaited, lambda: peers or self.group.others)
        self.group.transport.wait_all(requests, describe, self.group.deadline_s)


def shared_sum(
    memory: SharedMemory, place: SharedAddress, like: Array, operation: Callable[[], str]
) -> list[Reduction]:
    """Return the phases that sum arrays in shared memory over the ranks of one host."""
    from hpcdist.comm.ordered_sum import add_in_all  # numba takes 0.3 s to import

    rows = memory.rows(place, like)
    size, rank = memory.group.size, memory.group.rank
    begin, end = cuts(like.size, size, size)[rank : rank + 2]
    return [
        memory.meeting(operation, partial(add_in_all, rows, begin, end)),
        memory.meeting(operation),
    ]


class TransportReduction(Reduction):
    """A sum by the transport itself, in whatever order it finds fastest."""

    def __init__(self, group: RankGroup, array: Array, operation: Callable[[], str]) -> None:
        self._transport = group.transport
        self._array = array
        self._requests: list[Any] = [None]  # one list forever: the waiter is made once
        describe = group.lacking(operation)
        self._wait = group.transport.waiter_all(self._requests, describe, group.deadline_s)

    def start(self) -> None:
        self._requests[0] = self._transport.iallreduce(self._array)

    def test(self) -> bool:
        return self._transport.test_all(self._requests)

    def wait(self) -> None:
        self._wait()


class AloneReduction(Reduction):
    """The sum over one rank."""

    def start(self) -> None:
        """Leave the array as it is."""

    def test(self) -> bool:
        return True

    def wait(self) -> None:
        """Return at once."""


def sum_of(array: Array) -> str:
    """Return how errors call a sum of arrays like this one."""
    return f"the sum of {array.dtype}{list(array.shape)}"


def _described(facts: tuple[str, int, bool]) -> str:
    dtype, size, ordered = facts
    return f"{dtype}[{size}]{' in fixed order' if ordered else ''}"


def agreed(group: RankGroup, array: Any, ordered: bool, place: object = None) -> bool:
    """Check that all ranks sum arrays alike; return whether all are at the same ``place``.

    Collective.
    """
    signature = [array.dtype.name, array.size, ordered]
    encoded = json.dumps([signature, place]).encode()
    everyone = [
        json.loads(data)
        for data in group.transport.allgather_bytes(
            encoded, group.deadline_s, "the shapes of the others' sums"
        )
    ]
    first = everyone[0][0]
    for peer, (other, _) in enumerate(everyone):
        if other != first:
            raise CommError(
                f"ranks sum different arrays: {_described(first)} on rank {group.names[0]}, "
                f"{_described(other)} on rank {group.names[peer]}"
            )
    return all(where == place for _, where in everyone)


def part_of(group: RankGroup, part: Transport) -> RankGroup:
    """Return a part of a group, given its transport, under the same names. Collective there."""
    names = part.allgather_bytes(str(group.names[group.rank]).encode())
    return RankGroup(part, tuple(map(int, names)), group.deadline_s)
