"""Transport over MPI; the only module that imports mpi4py, and only once a world is asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hpcdist.comm.base import (
    ANY,
    Array,
    Request,
    SharedRows,
    contiguous,
    summable,
    writable,
)
from hpcdist.comm.waiting import DEADLINE_S, WaitPolicy, policy_for, waiter
from hpcdist.errors import CommError

if TYPE_CHECKING:
    from mpi4py import MPI

SHM = "/dev/shm"  # where both Open MPI and MPICH keep what ranks share


class MpiTransport:
    """Messages between the ranks of one MPI communicator, which this object owns."""

    def __init__(self, comm: MPI.Comm, policy: WaitPolicy) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._policy = policy
        self.native: Any = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.concurrent: bool = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.tolerant = False

    @staticmethod
    def world() -> MpiTransport:
        """Return the transport of all ranks; the first call starts MPI. Collective."""
        return _world()

    # -- point to point --

    def send_init(self, array: Array, peer: int, tag: int) -> Request:
        return self._comm.Send_init(self._bytes(contiguous(array)), self._checked(peer), tag)

    def recv_init(self, array: Array, peer: int, tag: int) -> Request:
        return self._comm.Recv_init(self._bytes(writable(array)), self._checked(peer), tag)

    def start(self, requests: list[Request]) -> None:
        self._mpi.Prequest.Startall(requests)

    def starter(self, requests: list[Request]) -> Callable[[], None]:
        if len(requests) == 1:
            start: Callable[[], None] = requests[0].Start
            return start
        return partial(self._mpi.Prequest.Startall, requests)

    def release(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if not request.Test():
                request.Cancel()
                request.Wait()
            if request != self._mpi.REQUEST_NULL:
                request.Free()

    def isend(self, array: Array, peer: int, tag: int) -> Request:
        return self._comm.Isend(self._bytes(contiguous(array)), self._checked(peer), tag)

    def irecv(self, array: Array, peer: int, tag: int) -> Request:
        return self._comm.Irecv(self._bytes(writable(array)), self._checked(peer), tag)

    def test_all(self, requests: Sequence[Request]) -> bool:
        return bool(self._mpi.Request.Testall(requests))

    def test_some(self, requests: Sequence[Request]) -> list[int]:
        return self._mpi.Request.Testsome(requests) or []

    def waiter_all(
        self, requests: Sequence[Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], bool]:
        poll = partial(self._mpi.Request.Testall, requests)
        return waiter(poll, self._policy, describe, deadline_s, self._mpi.Exception)

    def waiter_some(
        self, requests: Sequence[Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], list[int]]:
        poll: Callable[[], Any] = partial(self._mpi.Request.Testsome, requests)
        return waiter(poll, self._policy, describe, deadline_s, self._mpi.Exception)

    def wait_all(
        self,
        requests: Sequence[Request],
        describe: Callable[[], str],
        deadline_s: float | None = DEADLINE_S,
    ) -> None:
        self.waiter_all(requests, describe, deadline_s)()

    def wait_some(
        self,
        requests: Sequence[Request],
        describe: Callable[[], str],
        deadline_s: float | None = DEADLINE_S,
    ) -> list[int]:
        return self.waiter_some(requests, describe, deadline_s)()

    def iprobe(self, peer: int, tag: int) -> tuple[int, int] | None:
        source = self._mpi.ANY_SOURCE if peer == ANY else self._checked(peer)
        status = self._mpi.Status()
        if not self._comm.Iprobe(source, tag, status):
            return None
        return status.Get_source(), status.Get_count(self._mpi.BYTE)

    def failed(self) -> frozenset[int]:
        return frozenset()

    # -- collectives: non-blocking and polled, so that they too are bounded and leave the core --

    def barrier(self, deadline_s: float | None = DEADLINE_S) -> None:
        self._finish([self._comm.Ibarrier()], "a barrier", deadline_s)

    def allgather_bytes(
        self,
        data: bytes,
        deadline_s: float | None = DEADLINE_S,
        what: str = "the others' data",
    ) -> list[bytes]:
        lengths = np.zeros(self.size, np.int64)
        own_length = np.array([len(data)], np.int64)
        request = self._comm.Iallgather(own_length, lengths)
        self._finish([request], what, deadline_s)
        own = np.frombuffer(data, np.uint8)
        everyone = np.zeros(int(lengths.sum()), np.uint8)
        request = self._comm.Iallgatherv(own, [everyone, lengths.tolist()])
        self._finish([request], what, deadline_s)
        ends = np.cumsum(lengths)
        return [everyone[b:e].tobytes() for b, e in zip(ends - lengths, ends, strict=True)]

    def allgather_living(
        self, data: bytes, deadline_s: float | None, what: str
    ) -> list[bytes | None]:
        return [*self.allgather_bytes(data, deadline_s, what)]

    def broadcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        if self.rank == root and data is None:
            raise CommError(f"rank {root} is the root of a broadcast and must give its data")
        own = data if self.rank == root and data is not None else b""
        length = np.array([len(own)], np.int64)
        self.broadcast(length, root)
        buffer = np.zeros(int(length[0]), np.uint8)
        if self.rank == root:
            buffer[:] = np.frombuffer(own, np.uint8)
        self.broadcast(buffer, root)
        return buffer.tobytes()

    def broadcast(self, array: Array, root: int = 0) -> None:
        buffer = self._bytes(writable(array))
        self._finish([self._comm.Ibcast(buffer, root)], f"the data of rank {root}")

    def allreduce(self, array: Array) -> Array:
        own = contiguous(array)
        total = np.empty_like(own)
        everyone = np.empty((self.size, *own.shape), own.dtype) if self.rank == 0 else None
        received = None if everyone is None else self._bytes(everyone)
        self._finish([self._comm.Igather(self._bytes(own), received, 0)], "arrays to add")
        if everyone is not None:
            total[...] = everyone[0]
            for row in everyone[1:]:
                total += row
        self.broadcast(total, 0)
        return total

    def iallreduce(self, array: Array) -> Request:
        return self._comm.Iallreduce(self._mpi.IN_PLACE, summable(array), self._mpi.SUM)

    def waiter(
        self, poll: Callable[[], bool], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], bool]:
        def checked() -> bool:
            # Open MPI moves messages only inside its calls; other ranks may wait for this one's.
            self._comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)
            return poll()

        return waiter(checked, self._policy, describe, deadline_s, self._mpi.Exception)

    def on_host(self) -> MpiTransport:
        return MpiTransport(self._comm.Split_type(self._mpi.COMM_TYPE_SHARED), self._policy)

    def share(self, nbytes: int) -> SharedRows | None:
        # A file system that fills up would end ranks by a signal, in the middle of a step.
        room = shutil.disk_usage(SHM).free if os.path.isdir(SHM) else 0
        rooms = np.frombuffer(b"".join(self.allgather_bytes(np.int64(room).tobytes())), np.int64)
        if self.size * nbytes > rooms.min() // 2:
            return None
        # All rows in one piece, on rank 0's part: MPI may part the pieces of different ranks.
        own = self.size * nbytes if self.rank == 0 else 0
        window: Any = cast(Any, self._mpi.Win).Allocate_shared(own, 1, comm=self._comm)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        rows = np.frombuffer(window.Shared_query(0)[0], np.uint8).reshape(self.size, nbytes)
        rows[self.rank] = 0  # whoever writes first decides in which memory a row lies

        def free() -> None:
            window.Unlock_all()
            window.Free()

        return SharedRows(rows, window.Sync, free)

    def split(self, color: int, key: int) -> MpiTransport:
        return MpiTransport(self._comm.Split(color, key), self._policy)

    def abort(self, code: int) -> None:
        self._comm.Abort(code)

    # -- inside --

    def _finish(
        self, requests: Sequence[Request], what: str, deadline_s: float | None = DEADLINE_S
    ) -> None:
        self.wait_all(requests, lambda: f"rank {self.rank} waiting for {what}", deadline_s)

    def _bytes(self, array: Array) -> Any:
        return [array, self._mpi.BYTE]

    def _checked(self, peer: int) -> int:
        if not 0 <= peer < self.size:
            raise CommError(f"rank {self.rank}: no rank {peer} in a world of {self.size}")
        return peer


@cache
def _world() -> MpiTransport:
    from mpi4py import MPI

    from hpcdist.comm import ulfm

    comm = MPI.COMM_WORLD.Dup()
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores = bytearray(os.cpu_count() or 1)
    for core in os.sched_getaffinity(0):
        if core < len(cores):
            cores[core] = 1
    mine = np.frombuffer(cores, np.uint8)
    anyone = np.zeros_like(mine)
    host.Allreduce(mine, anyone, MPI.MAX)
    policy = policy_for(host.Get_size(), int(anyone.sum()))
    host.Free()
    if ulfm.offered(os.environ, comm):
        return ulfm.UlfmTransport(comm, policy)
    return MpiTransport(comm, policy)
