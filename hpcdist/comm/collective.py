"""Sums and copies among all ranks of a group: the network interface of collective training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hpcdist.base.errors import CommError
from hpcdist.base.trace.events import Cause
from hpcdist.comm.base import Transport

Buffer: TypeAlias = Any  # a numpy array, or for NCCL a cupy array, C-contiguous


@dataclass(frozen=True)
class RankGroup:
    """The ranks of one transport, under the names by which errors call them."""

    transport: Transport
    names: tuple[int, ...]
    deadline_s: float | None

    @property
    def rank(self) -> int:
        """This rank's number in the transport."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """The number of ranks of the transport."""
        return self.transport.size

    @property
    def others(self) -> list[int]:
        """The other ranks, in order."""
        return [peer for peer in range(self.size) if peer != self.rank]

    def lacking(
        self,
        operation: Callable[[], str],
        missing: Callable[[], Sequence[int]] | None = None,
        cause: Cause = Cause.SUM,
    ) -> Lacking:
        """Return the description of this rank's wait for ``missing()``; None: for all others."""
        return Lacking(self, operation, missing or (lambda: self.others), cause)

    def checked_root(self, root: int) -> int:
        """Return ``root``; CommError if there is no such rank."""
        if not 0 <= root < self.size:
            raise CommError(f"rank {self.rank}: no rank {root} in a group of {self.size}")
        return root

    def check_gathered(self, array: Buffer, out: Buffer) -> None:
        """Raise CommError unless ``out`` has room for an array like this one of every rank."""
        if out.dtype != array.dtype or out.size != array.size * self.size:
            raise CommError(
                f"rank {self.rank}: gathering {self.size} arrays of "
                f"{array.dtype}{list(array.shape)} needs room for {array.size * self.size} of "
                f"{array.dtype}, got {out.dtype}{list(out.shape)}"
            )


@dataclass(frozen=True)
class Lacking:
    """Describes a wait in a group: what for, and for which ranks."""

    group: RankGroup
    what: Callable[[], str]
    missing: Callable[[], Sequence[int]]
    cause: Cause

    def __call__(self) -> str:
        me = self.group.names[self.group.rank]
        ranks = ", ".join(map(str, self.missing_ranks()))
        return f"rank {me} waiting for {self.what()}" + (f", from rank {ranks}" if ranks else "")

    def missing_ranks(self) -> tuple[int, ...]:
        """Return the names of the ranks from which something is missing."""
        return tuple(self.group.names[peer] for peer in self.missing())


class Reduction(Protocol):
    """One array that all ranks sum again and again, in place.

    All ranks start the reductions of one collective in the same order. The array belongs to the
    reduction from ``start`` until ``test`` or ``wait`` has told its end.
    """

    def start(self) -> None:
        """Start one sum and return at once."""
        ...

    def test(self) -> bool:
        """Return whether the sum has ended, after helping it along. Never waits."""
        ...

    def wait(self) -> object:
        """Wait for the end; DeadlineError or CommError if there is none."""
        ...


class CollectiveOperations(Protocol):
    """The ranks ``0..size-1`` of one group, who call these together and in the same order.

    Every wait is bounded by the deadline given when the group was made.
    """

    @property
    def group(self) -> RankGroup:
        """The ranks, and what carries their words on the host."""
        ...

    @property
    def rank(self) -> int:
        """This rank's number."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def empty(self, nbytes: int) -> Buffer:
        """Return uninitialized bytes in which sums need the least copying. Collective."""
        ...

    def allreduce_init(
        self, array: Buffer, *, ordered: bool = False, describe: Callable[[], str] | None = None
    ) -> Reduction:
        """Make the reduction that sums ``array`` over all ranks, in place. Collective.

        All ranks get the same bits; with ``ordered`` also in every run: the sum runs in rank
        order, or in another that depends on nothing but who the ranks are. ``describe()`` says in
        errors what is waited for.
        """
        ...

    def broadcast(self, array: Buffer, root: int = 0) -> None:
        """Overwrite ``array`` with the root's. Collective."""
        ...

    def allgather(self, array: Buffer, out: Buffer) -> None:
        """Write the ranks' equally large arrays, in rank order, into ``out``. Collective."""
        ...

    def reduce(self, array: Buffer, root: int = 0) -> None:
        """Replace the root's ``array`` by the sum over all ranks. Collective."""
        ...

    def barrier(self) -> None:
        """Wait until every rank has come here. Collective."""
        ...

    def split(self, color: int, key: int) -> CollectiveOperations:
        """Return the group of the ranks of equal ``color``, by ``key``. Collective."""
        ...

    def close(self) -> None:
        """Release the group's resources; no reduction may be pending. Collective."""
        ...

    def abort(self) -> None:
        """Abort: pending operations and waits end in an error, here or on all ranks."""
        ...
