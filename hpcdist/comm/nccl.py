"""Groups of GPUs over NCCL, one rank each; the id of a group travels over the host transport."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpcdist.base import settings
from hpcdist.base.device import tell_later
from hpcdist.base.errors import CommError
from hpcdist.comm.collective import Buffer, RankGroup, Reduction
from hpcdist.comm.device import Enqueue, Stream, on_device
from hpcdist.comm.host_collective import AloneReduction, agreed, part_of, sum_of
from hpcdist.comm.nccl_communicator import (
    FAILURES,
    all_well,
    broadcast_id,
    new_communicator,
    prepared,
)
from hpcdist.comm.reduction_phases import cuts, shares
from hpcdist.comm.watchdog import WATCHDOG


class NcclCollective:
    """One NCCL communicator, with a separate stream; all arrays are cupy's."""

    def __init__(self, group: RankGroup, device_id: int) -> None:
        """Make the communicator. Collective; all ranks raise the same error if it fails on one.

        ``group`` carries the id, and all that concerns the host; this communicator owns it.
        """
        self.group = group
        self.rank, self.size = group.rank, group.size
        self._device_id = device_id
        self.cupy, self.nccl = prepared(group, device_id, settings.NCCL_SHARED_GPU.read() == "1")
        self.stream = Stream(self.cupy)
        self._comm: Any = self._connected()
        self._failed = ""
        self._closed = False
        self._ending = threading.Lock()

    def _connected(self) -> Any:
        """Return the NCCL communicator; its creation waits for all ranks and cannot be polled."""
        token = broadcast_id(self.group, self.nccl)
        outcome: list[Any] = []

        def connect() -> None:
            try:
                self.use_device()
                outcome.append(new_communicator(self.nccl, self.size, token, self.rank))
            except Exception as error:
                outcome.append(error)

        threading.Thread(target=connect, daemon=True).start()
        self.group.transport.waiter(
            lambda: bool(outcome),
            self.group.lacking(lambda: "an NCCL communicator"),
            self.group.deadline_s,
        )()
        problem = f"{outcome[0]}" if isinstance(outcome[0], Exception) else ""
        all_well(self.group, problem, "make an NCCL communicator")
        return outcome[0]

    def empty(self, nbytes: int) -> Buffer:
        """Return uninitialized bytes on this rank's GPU."""
        return self.cupy.empty(nbytes, self.cupy.uint8)

    def allreduce_init(
        self, array: Buffer, *, ordered: bool = False, describe: Callable[[], str] | None = None
    ) -> Reduction:
        """Make the reduction of an array on this rank's GPU, in place. Collective.

        With ``ordered`` the sum runs in rank order. CommError on all ranks unless all have arrays
        of one shape and dtype, on their GPUs, of a type that NCCL adds.
        """
        agreed(self.group, on_device(self.cupy, array), ordered)
        kind = self.kind(array)
        if self.size == 1:
            return AloneReduction()
        operation = describe or partial(sum_of, array)
        if ordered:
            return NcclReduction([self], _RankOrder(self, array, kind), operation)

        def enqueue(stream: Any) -> None:
            ptr = array.data.ptr  # of an array that lives as long as its sum
            self.comm.allReduce(ptr, ptr, array.size, kind, self.nccl.NCCL_SUM, stream.ptr)

        return NcclReduction([self], enqueue, operation)

    def broadcast(self, array: Buffer, root: int = 0) -> None:
        """Overwrite an array on the GPU with the root's, and wait for it. Collective."""
        kind, ptr = self.kind(array, numbers=False), array.data.ptr
        count = array.nbytes
        self.group.checked_root(root)
        self.run(
            lambda stream: self.comm.broadcast(ptr, ptr, count, kind, root, stream.ptr),
            f"the data of rank {root}",
        )

    def allgather(self, array: Buffer, out: Buffer) -> None:
        """Write all ranks' arrays, in rank order, into ``out``, and wait for it. Collective.

        ``out`` is on the GPU, of the same dtype, and ``size`` times as large, or CommError.
        """
        self.group.check_gathered(array, on_device(self.cupy, out))
        kind, count = self.kind(array, numbers=False), array.nbytes
        source, target = array.data.ptr, out.data.ptr
        self.run(
            lambda stream: self.comm.allGather(source, target, count, kind, stream.ptr),
            "the others' arrays",
        )

    def reduce(self, array: Buffer, root: int = 0) -> None:
        """Replace the root's array on the GPU by the sum over all ranks. Collective."""
        kind, ptr, count = self.kind(array), array.data.ptr, array.size
        self.group.checked_root(root)
        add = self.nccl.NCCL_SUM
        self.run(
            lambda stream: self.comm.reduce(ptr, ptr, count, kind, add, root, stream.ptr),
            "arrays to add",
        )

    def barrier(self) -> None:
        """Wait until every rank has come here, on the host; kernels may still run. Collective."""
        self.group.transport.barrier(self.group.deadline_s)

    def split(self, color: int, key: int) -> NcclCollective:
        """Return the group of ranks of equal ``color``, by ``key``, on their GPUs. Collective."""
        part = part_of(self.group, self.group.transport.split(color, key))
        return NcclCollective(part, self._device_id)

    def close(self) -> None:
        """Destroy the communicator, once its work has ended. Collective."""
        if self._comm is not None:
            self.group.transport.waiter(
                lambda: bool(self.stream.stream.done),
                self.group.lacking(lambda: "the last sums"),
                self.group.deadline_s,
            )()
            self.check()
            self._comm.destroy()
            self._comm, self._closed = None, True

    def abort(self) -> None:
        """End all work of this communicator here: the others find an error, or their deadline."""
        self.give_up("it was aborted")

    def give_up(self, why: str) -> None:
        """Abort, and tell whoever comes next why; any thread may."""
        with self._ending:
            comm, self._comm = self._comm, None
            if comm is not None:
                self._failed = why
                comm.abort()

    def use_device(self) -> None:
        """Select this rank's GPU for CUDA calls of this thread."""
        self.cupy.cuda.Device(self._device_id).use()

    # -- for reductions ----------------------------------------------------------------------
    @property
    def comm(self) -> Any:
        """The NCCL communicator; CommError once it is closed or given up."""
        if self._comm is None:
            why = self._failed or "it is closed"
            raise CommError(f"rank {self.name}: its NCCL communicator cannot be used: {why}")
        return self._comm

    def check(self) -> None:
        """Raise CommError, and give the communicator up, if NCCL has noticed an error.

        Nothing is wrong with work that had ended when the communicator was closed.
        """
        if self._closed:
            return
        try:
            with self._ending:  # which frees it
                self.comm.check_async_error()
        except FAILURES as error:
            self.give_up(f"{error}")
            raise CommError(
                f"rank {self.name}: NCCL failed: {error}; NCCL_DEBUG=INFO tells more"
            ) from error

    def kind(self, array: Buffer, numbers: bool = True) -> int:
        """Return NCCL's name of an array's type, or of bytes."""
        name = on_device(self.cupy, array).dtype.name if numbers else "uint8"
        number = getattr(self.nccl, f"NCCL_{name.upper()}", None)
        if number is None:
            raise CommError(f"cannot add up an array of {name}, expected floats or ints")
        kind: int = number
        return kind

    def run(self, enqueue: Enqueue, operation: str) -> None:
        """Do something once, and wait for its end."""
        once = NcclReduction([self], enqueue, lambda: operation)
        once.start()
        once.settle()

    @property
    def name(self) -> int:
        """This rank's number in errors."""
        return self.group.names[self.rank]


class NcclReduction(Reduction):
    """Work of a communicator on its stream, while kernels run on theirs.

    Kernels wait for it, the host does not: it is asked for before the next one, and before a value
    is given out. A watchdog notices what does not end while the host is stuck in a call of CUDA's.
    """

    unaided = True  # it continues though nobody tests it

    def __init__(
        self, owners: Sequence[NcclCollective], enqueue: Enqueue, operation: Callable[[], str]
    ) -> None:
        """``owners`` are the communicators that work together, on the stream of the first."""
        self._owners = owners
        self._job = owners[0].stream.job(enqueue)
        self._under_way = False
        group = owners[0].group
        self._lacking = group.lacking(operation)
        self._deadline_s = group.deadline_s
        self._wait = group.transport.waiter(self._ended, self._lacking, group.deadline_s)

    def start(self) -> None:
        self.settle()  # so the host is at most one step ahead
        try:
            self._job.start()
        except CommError:
            raise
        except FAILURES as error:
            raise CommError(f"rank {self._owners[0].name}: NCCL failed: {error}") from error
        self._under_way = True
        WATCHDOG.watch(self._watched, self._late, self._deadline_s)

    def test(self) -> bool:
        return not self._under_way or self._ended()

    def wait(self) -> None:
        """Make later kernels wait; the host does not wait, see `settle`."""
        if self._under_way:
            self._job.join()
            tell_later(self)

    def settle(self) -> None:
        """Wait on the host; DeadlineError or CommError if there is no end."""
        if not self._under_way:
            return
        try:
            self._wait()
        except CommError as error:
            # Its kernels still spin on the GPU, for ranks that do not come.
            self.give_up(str(error))
            raise
        self.look()
        self._under_way = False

    def look(self) -> None:
        """Raise CommError if a communicator that it uses has failed or been given up."""
        for owner in self._owners:
            owner.check()

    def give_up(self, why: str) -> None:
        """Abort the communicators; whoever uses them is told why."""
        for owner in self._owners:
            owner.give_up(why)

    def ended(self) -> bool:
        """Return whether the GPU has ended it, or the communicators have been given up."""
        return self._job.ended()

    def _watched(self) -> bool:
        self._owners[0].use_device()  # or the thread would take memory of GPU 0
        return self.ended()

    def _ended(self) -> bool:
        if self._job.ended():
            return True
        self.look()
        return False

    def _late(self) -> None:
        self.give_up(f"{self._lacking()}: nothing came within {self._deadline_s:g} s")


class _RankOrder:
    """A sum in rank order: every rank adds up one share, and hands it to all others."""

    def __init__(self, owner: NcclCollective, array: Buffer, kind: int) -> None:
        self._owner = owner
        self._kind = kind
        self._cupy = owner.cupy
        self._shares = shares(array.reshape(-1), cuts(array.size, owner.size, owner.size))
        self._own = self._shares[owner.rank]
        self._peers = owner.group.others
        self._rows = self._cupy.empty((owner.size, self._own.size), array.dtype)
        self._total = self._cupy.empty(self._own.size, array.dtype)

    def __call__(self, stream: Any) -> None:
        """Put the sum on a stream."""
        rows, total = self._rows, self._total
        self._exchange(stream, lambda peer: self._shares[peer], lambda peer: rows[peer])
        with stream:
            rows[self._owner.rank] = self._own
            self._cupy.add(rows[0], rows[1], out=total)
            for row in range(2, self._owner.size):
                self._cupy.add(total, rows[row], out=total)
            self._own[...] = total
        self._exchange(stream, lambda peer: self._own, lambda peer: self._shares[peer])

    def _exchange(
        self, stream: Any, sent: Callable[[int], Any], received: Callable[[int], Any]
    ) -> None:
        comm, nccl = self._owner.comm, self._owner.nccl
        nccl.groupStart()
        for peer in self._peers:
            out, into = sent(peer), received(peer)
            if out.size:
                comm.send(out.data.ptr, out.size, self._kind, peer, stream.ptr)
            if into.size:
                comm.recv(into.data.ptr, into.size, self._kind, peer, stream.ptr)
        nccl.groupEnd()
