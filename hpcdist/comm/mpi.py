"""Transport over MPI; the only module that imports mpi4py, and only once a world is asked for."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import CommError, DeadlineError
from hpcdist.base.trace.events import Cause
from hpcdist.comm import process_manager
from hpcdist.comm.base import (
    ANY,
    Array,
    Request,
    SharedRows,
    Transport,
    contiguous,
    rank_of_peer,
    summable,
    writable,
)
from hpcdist.comm.progress import DEADLINE_S, WaitPolicy, as_comm_error, policy_for, waiter
from hpcdist.comm.watchdog import bounded

if TYPE_CHECKING:
    from mpi4py import MPI

MOST_BYTES = 2**31 - 1  # that a count of MPI 3 can tell
BLOCK_BYTES = 2**20  # of larger messages
ROUND_BYTES = 2**26  # of each rank, where all together have more to gather
WINDOW_BYTES = 2**20  # more than MPI itself keeps beside what ranks share
TOO_MANY = "Too many communicators"  # as MPICH says it
SHM = "/dev/shm"  # where both Open MPI and MPICH keep what ranks share


class MpiTransport(Transport):
    """Messages between the ranks of one MPI communicator, which this object owns."""

    def __init__(self, comm: MPI.Comm, policy: WaitPolicy) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self.policy = policy
        self.native: Any = comm
        self.most_tag = int(cast(Any, MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)))
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.concurrent: bool = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.tolerant = False
        self.takes_device_memory: bool = _knows_cuda(MPI.__file__)
        self._parts: list[MpiTransport] = []  # of other communicators, made from this one

    # -- point to point --

    def send_init(self, array: Array, peer: int, tag: int) -> Request:
        return self._comm.Send_init(self._bytes(contiguous(array)), rank_of_peer(self, peer), tag)

    def recv_init(self, array: Array, peer: int, tag: int) -> Request:
        return self._comm.Recv_init(self._bytes(writable(array)), rank_of_peer(self, peer), tag)

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
        return self._comm.Isend(self._bytes(contiguous(array)), rank_of_peer(self, peer), tag)

    def irecv(self, array: Array, peer: int, tag: int) -> Request:
        return self._comm.Irecv(self._bytes(writable(array)), rank_of_peer(self, peer), tag)

    def arrival(self, request: Request) -> int | None:
        status = self._mpi.Status()
        return int(status.Get_elements(self._mpi.BYTE)) if request.Test(status) else None

    def test_all(self, requests: Sequence[Request]) -> bool:
        return bool(self._mpi.Request.Testall(requests))

    def waiter_all(
        self, requests: Sequence[Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], bool]:
        return self._waiter(partial(self._mpi.Request.Testall, requests), describe, deadline_s)

    def waiter_some(
        self, requests: Sequence[Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], list[int]]:
        return self._waiter(partial(self._mpi.Request.Testsome, requests), describe, deadline_s)

    def iprobe(self, peer: int, tag: int) -> tuple[int, int] | None:
        source = self._mpi.ANY_SOURCE if peer == ANY else rank_of_peer(self, peer)
        status = self._mpi.Status()
        if not self._comm.Iprobe(source, tag, status):
            return None
        return status.Get_source(), status.Get_elements(self._mpi.BYTE)

    # -- collectives: non-blocking and polled, so that they too are bounded and leave the core --

    def barrier(self, deadline_s: float | None = DEADLINE_S) -> None:
        self._finish([self._comm.Ibarrier()], "a barrier", deadline_s)

    def allgather_bytes(
        self,
        data: bytes,
        deadline_s: float | None = DEADLINE_S,
        awaited: str = "the others' data",
    ) -> list[bytes]:
        lengths = np.zeros(self.size, np.int64)
        own_length = np.array([len(data)], np.int64)
        request = self._comm.Iallgather(own_length, lengths)
        self._finish([request], awaited, deadline_s)
        payload = np.frombuffer(data, np.uint8)
        received: list[list[bytes]] = [[] for _ in lengths]
        most = MOST_BYTES
        if lengths.sum() > MOST_BYTES:  # in rounds, each of no more than a count can tell
            most = min(MOST_BYTES // self.size, ROUND_BYTES)
        for begin in range(0, int(lengths.max()), most):
            counts = np.clip(lengths - begin, 0, most)
            everyone = np.empty(int(counts.sum()), np.uint8)
            request = self._comm.Iallgatherv(
                payload[begin : begin + most], [everyone, counts.tolist()]
            )
            self._finish([request], awaited, deadline_s)
            ends = np.cumsum(counts)
            for parts, b, e in zip(received, ends - counts, ends, strict=True):
                parts.append(everyone[b:e].tobytes())
        return [parts[0] if len(parts) == 1 else b"".join(parts) for parts in received]

    def broadcast(self, array: Array, root: int = 0) -> None:
        buffer = self._bytes(writable(array))
        self._finish([self._comm.Ibcast(buffer, root)], f"the data of rank {root}")

    def iallreduce(self, array: Array) -> Request:
        if not isinstance(array, np.ndarray) and not self.takes_device_memory:
            raise CommError("this MPI was built without CUDA: it cannot read arrays of a GPU")
        return self._comm.Iallreduce(self._mpi.IN_PLACE, summable(array), self._mpi.SUM)

    def waiter(
        self, poll: Callable[[], bool], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], bool]:
        def checked() -> bool:
            # Open MPI moves messages only inside its calls; other ranks may wait for this one's.
            self._comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)
            return poll()

        return self._waiter(checked, describe, deadline_s)

    def on_host(self) -> MpiTransport:
        with self._making("all ranks to tell their hosts"):
            return self._part(self._comm.Split_type(self._mpi.COMM_TYPE_SHARED))

    def share(self, nbytes: int) -> SharedRows | None:
        # A file system that fills up would end ranks by a signal, in the middle of a step.
        room = shutil.disk_usage(SHM).free if os.path.isdir(SHM) else 0
        deadline_s = settings.RPC_DEADLINE.read() / 1000
        told = self.allgather_bytes(np.int64(room).tobytes(), deadline_s)
        rooms = np.frombuffer(b"".join(told), np.int64)
        if self.size * nbytes + WINDOW_BYTES > rooms.min() // 2:
            return None
        # All rows in one piece, on rank 0's part: MPI may part the pieces of different ranks.
        nbytes_here = self.size * nbytes if self.rank == 0 else 0
        with self._making("all ranks to share memory"):
            window: Any = cast(Any, self._mpi.Win).Allocate_shared(nbytes_here, 1, comm=self._comm)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        rows = np.frombuffer(window.Shared_query(0)[0], np.uint8).reshape(self.size, nbytes)
        rows[self.rank] = 0  # whoever writes first decides in which memory a row lies

        def free() -> None:
            window.Unlock_all()
            window.Free()

        return SharedRows(rows, window.Sync, free)

    def split(self, color: int, key: int) -> MpiTransport:
        with self._making("all ranks to make groups"):
            return self._part(self._comm.Split(color, key))

    def subset(self, ranks: Sequence[int], tag: int) -> MpiTransport:
        group = self._comm.Get_group().Incl(list(ranks))
        with self._making("all ranks of a group to make it"):
            return self._part(cast(Any, self._comm).Create_group(group, tag))

    def free(self) -> None:
        """Free this communicator and those made from it; MPICH has 2,048 in all. Collective.

        For processes that continue after a job has ended well. What nobody has received is received
        here: it would else come to who gets this communicator's number next.
        """
        for part in self._parts:
            part.free()
        self._comm.Barrier()
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
            data = bytearray(status.Get_count(self._mpi.BYTE))
            self._comm.Recv([data, self._mpi.BYTE], status.Get_source(), status.Get_tag())
        self._comm.Free()

    def abort(self, code: int) -> None:
        self._comm.Abort(code)

    # -- inside --

    def _waiter(
        self, poll: Callable[[], Any], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], Any]:
        policy, explained = self.policy, self._explained
        return waiter(poll, policy, describe, deadline_s, self._mpi.Exception, explained)

    def _explained(self, error: Exception, awaited: str) -> CommError:
        """Return an MPI error in plain words, raised while ``awaited`` was waited for."""
        return as_comm_error(error, awaited)

    def _blocking(self, awaited: str) -> AbstractContextManager[None]:
        """Bound a call of MPI's that waits for all ranks."""
        return bounded(Awaited(self, awaited), partial(_abort, self._comm))

    @contextmanager
    def _making(self, awaited: str) -> Iterator[None]:
        """Bound a call of MPI's that makes a communicator; CommError if there are too many."""
        try:
            with self._blocking(awaited):
                yield
        except self._mpi.Exception as error:
            if TOO_MANY not in str(error):
                raise
            raise CommError(
                f"rank {self.rank}, waiting for {awaited}: MPICH has no communicator left, of "
                "2,048 in a process, and a group of torch.distributed takes four: make groups "
                "once and use them again, let go of those that are no longer needed "
                "(dist.destroy_process_group(group)), or install Open MPI"
            ) from None

    def _part(self, comm: MPI.Comm) -> MpiTransport:
        part = type(self)(comm, self.policy)
        self._parts.append(part)
        return part

    def _finish(
        self, requests: Sequence[Request], awaited: str, deadline_s: float | None = DEADLINE_S
    ) -> None:
        self.wait_all(requests, Awaited(self, awaited), deadline_s)

    def peers_in_world(self) -> tuple[int, ...]:
        """Return the other ranks of this communicator, as MPI's world numbers them."""
        peers = [rank for rank in range(self.size) if rank != self.rank]
        world = self._mpi.COMM_WORLD.Get_group()
        ranks = self._mpi.Group.Translate_ranks(self._comm.Get_group(), peers, world)
        return tuple(map(int, ranks))

    def _bytes(self, array: Array) -> Any:
        if array.nbytes <= MOST_BYTES:
            return [array, self._mpi.BYTE]
        return [array, 1, _large(array.nbytes)]


def finalize() -> None:
    """End MPI in this process, while its other threads run. No transport can be used after it."""
    from mpi4py import MPI

    if MPI.Is_finalized():
        return
    # mpi4py's Finalize holds Python's lock, and with dead ranks MPI may never return from it.
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    for path in sorted({line.split(maxsplit=5)[-1] for line in lines if "/libmpi" in line}):
        if hasattr(library := ctypes.CDLL(path), "MPI_Finalize"):
            library.MPI_Finalize()
            return
    MPI.Finalize()


@cache
def _knows_cuda(mpi4py_library: str) -> bool:
    """Return whether this MPI reads and writes the memory of GPUs, by its own word."""
    try:
        return bool(ctypes.CDLL(mpi4py_library).MPIX_Query_cuda_support())
    except (AttributeError, OSError):  # neither Open MPI nor MPICH
        return False


@cache
def _large(nbytes: int) -> MPI.Datatype:
    """Return one datatype for so many bytes, which an MPI count could not tell."""
    from mpi4py import MPI

    blocks, rest = divmod(nbytes, BLOCK_BYTES)
    block = MPI.BYTE.Create_contiguous(BLOCK_BYTES)
    ends = [0, blocks * BLOCK_BYTES]
    return MPI.Datatype.Create_struct([blocks, rest], ends, [block, MPI.BYTE]).Commit()


def loaded_library() -> str:
    """Return the name and version of the MPI library that this process runs, or ""."""
    module = sys.modules.get("mpi4py.MPI")
    return "" if module is None else short_name(module.Get_library_version())


def short_name(library: str) -> str:
    """Return the first words of what an MPI library says of itself, without its details. Pure.

    >>> short_name("Open MPI v5.0.11, package: Open MPI, ident: 5.0.11")
    'Open MPI v5.0.11'
    >>> short_name("MPICH Version:      4.3.1\\nMPICH ABI:   17:1:5")
    'MPICH 4.3.1'
    """
    return " ".join(library.partition("\n")[0].partition(",")[0].replace(" Version:", "").split())


@dataclass(frozen=True)
class Awaited:
    """Describes a wait for something of all ranks of a communicator: MPI does not say of whom."""

    transport: MpiTransport
    what: str
    cause = Cause.BARRIER

    def __call__(self) -> str:
        return f"rank {self.transport.rank} waiting for {self.what}"

    def missing_ranks(self) -> tuple[int, ...]:
        """Return all other ranks: any of them may be what is waited for."""
        return self.transport.peers_in_world()


def start() -> tuple[MPI.Comm, WaitPolicy]:
    """Start MPI; return a communicator of all ranks, and how they wait. Collective."""
    process_manager.tell_open_mpi()
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.Get_rank()
    cores = bytearray(os.cpu_count() or 1)
    for core in os.sched_getaffinity(0):
        if core < len(cores):
            cores[core] = 1
    local = np.frombuffer(cores, np.uint8)
    anyone = np.zeros_like(local)
    describe, abort = f"rank {rank} waiting for all ranks to start", partial(_abort, MPI.COMM_WORLD)
    # Settings are read later, when all ranks can refuse a wrong one of any.
    with bounded(lambda: describe, abort, DEADLINE_S):
        comm = MPI.COMM_WORLD.Dup()
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        host.Allreduce(local, anyone, MPI.MAX)
    policy = policy_for(host.Get_size(), int(anyone.sum()))
    host.Free()
    return comm, policy


def _abort(comm: MPI.Comm, error: DeadlineError) -> None:
    print(f"hpcdist: {error}", file=sys.__stderr__, flush=True)
    comm.Abort(1)
