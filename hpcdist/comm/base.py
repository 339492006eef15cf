"""`Transport`: the interface by which ranks exchange bytes; the basis of `comm`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcdist.base.errors import CommError
from hpcdist.comm.progress import DEADLINE_S, WaitPolicy

ANY = -1  # any peer

Array: TypeAlias = NDArray[Any]
Request: TypeAlias = Any  # opaque: made by a transport, given back to the same transport


@dataclass(frozen=True)
class SharedRows:
    """Memory that all ranks of one host see: ``rows`` [size, nbytes] of uint8, row r near rank r.

    What one rank writes before its ``sync()`` another sees after its own, once a flag told it to
    look. ``free()`` is collective, and the last use.
    """

    rows: Array
    sync: Callable[[], None]
    free: Callable[[], None]


class Transport(Protocol):
    """Messages between the ranks ``0..size-1`` of one world.

    A message is the bytes of one contiguous array; its receiver gives an array at least as long.
    Messages from one rank to another with one tag arrive in the order sent. Buffers belong to the
    transport from the start of a request until a wait or test reports its end.
    Every wait is bounded by ``deadline_s`` seconds (None: no bound) and raises DeadlineError that
    tells ``describe()``.
    """

    rank: int  # this rank's number
    size: int  # the number of ranks
    tolerant: bool  # messages among the living continue after a rank has died
    concurrent: bool  # two threads of this rank may use it at once, for different messages
    takes_device_memory: bool = False  # sums may be of arrays in the memory of a GPU
    native: Any  # the communicator as mpi4py, and so HDF5, knows it; None without MPI
    policy: WaitPolicy  # how its waits wait
    most_tag: int  # the greatest tag of a message

    # -- point to point --

    def send_init(self, array: Array, peer: int, tag: int) -> Request:
        """Make a persistent send of ``array``; nothing moves until ``start``."""
        ...

    def recv_init(self, array: Array, peer: int, tag: int) -> Request:
        """Make a persistent receive into ``array``; nothing moves until ``start``."""
        ...

    def starter(self, requests: list[Request]) -> Callable[[], None]:
        """Return a function that starts these persistent requests, all of them inactive then."""
        ...

    def start(self, requests: list[Request]) -> None:
        """Start persistent requests once."""
        self.starter(requests)()

    def waiter_all(
        self, requests: Sequence[Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], object]:
        """Return a function that waits until all of these have ended."""
        ...

    def wait_all(
        self,
        requests: Sequence[Request],
        describe: Callable[[], str],
        deadline_s: float | None = DEADLINE_S,
    ) -> None:
        """Wait once until all of these have ended."""
        self.waiter_all(requests, describe, deadline_s)()

    def waiter_some(
        self, requests: Sequence[Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], list[int]]:
        """Return a function that waits until any has ended, and returns all that then have."""
        ...

    def release(self, requests: Sequence[Request]) -> None:
        """Free requests for good; receives still waiting for a message are cancelled."""
        ...

    def isend(self, array: Array, peer: int, tag: int) -> Request:
        """Send ``array`` once."""
        ...

    def irecv(self, array: Array, peer: int, tag: int) -> Request:
        """Receive once into ``array``."""
        ...

    def arrival(self, request: Request) -> int | None:
        """Return how many bytes one `irecv` has received, None before its end.

        Not to be asked again after that.
        """
        ...

    def test_all(self, requests: Sequence[Request]) -> bool:
        """Return whether all requests have ended; inactive ones count as ended."""
        ...

    def iprobe(self, peer: int, tag: int) -> tuple[int, int] | None:
        """Return (peer, nbytes) of a message that could be received now; ``peer`` may be ANY."""
        ...

    # -- collectives --

    def barrier(self, deadline_s: float | None = DEADLINE_S) -> None:
        """Wait until every rank has come here. Collective."""
        ...

    def allgather_bytes(
        self,
        data: bytes,
        deadline_s: float | None = DEADLINE_S,
        awaited: str = "the others' data",
    ) -> list[bytes]:
        """Return every rank's ``data``, in rank order; errors call it ``awaited``. Collective."""
        ...

    def allgather_living(
        self, data: bytes, deadline_s: float | None, awaited: str
    ) -> list[bytes | None]:
        """Return every rank's ``data``, None for ranks that died before they gave it. Collective.

        Survivors of a rank may or may not have what it gave last.
        """
        return [*self.allgather_bytes(data, deadline_s, awaited)]

    def broadcast_bytes(self, data: bytes | None, root: int = 0) -> bytes:
        """Return the root's ``data``; the other ranks' is ignored. Collective."""
        if self.rank == root and data is None:
            raise CommError(f"rank {root} is the root of a broadcast and must give its data")
        sent = np.frombuffer((data if self.rank == root else None) or b"", np.uint8)
        length = np.array([len(sent)], np.int64)
        self.broadcast(length, root)
        buffer = sent.copy() if self.rank == root else np.empty(int(length[0]), np.uint8)
        self.broadcast(buffer, root)
        return buffer.tobytes()

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Overwrite ``array`` with the root's. Collective."""
        ...

    def iallreduce(self, array: Array) -> Request:
        """Start replacing ``array`` by the sum of all ranks' arrays, in an order that MPI chooses.

        Collective: all ranks start theirs in one order. Numbers only, see ``summable``.
        """
        ...

    def waiter(
        self, poll: Callable[[], bool], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], object]:
        """Return a function that waits until ``poll()`` is true, while messages make progress."""
        ...

    def on_host(self) -> Transport:
        """Return the transport of the ranks that share this one's memory. Collective."""
        ...

    def share(self, nbytes: int) -> SharedRows | None:
        """Return memory that all ranks of this transport, on one host, see; None if there is none.

        Collective; ``nbytes`` is the same on all ranks.
        """
        ...

    def split(self, color: int, key: int) -> Transport:
        """Return the transport of the ranks of equal ``color``, by ``key``. Collective."""
        ...

    def subset(self, ranks: Sequence[int], tag: int) -> Transport:
        """Return the transport of these ranks, renumbered in this order. Collective among them.

        Subsets that are made at the same time have different tags, below 2**15.
        """
        ...

    def failed(self) -> frozenset[int]:
        """Return the ranks known to have died; none where the death of one ends the job.

        Waits that concern the dead then raise RankFailure, and no others do.
        """
        return frozenset()

    def revoke(self) -> None:
        """Where it is tolerant: let all waits here fail, on all ranks, and all that come later."""
        return

    def abort(self, code: int) -> None:
        """End every rank of the job at once; with MPI this does not return."""
        ...


def rank_of_peer(transport: Transport, peer: int) -> int:
    """Return ``peer``, refusing what is no rank of this transport."""
    if not 0 <= peer < transport.size:
        raise CommError(f"rank {transport.rank}: no rank {peer} in a world of {transport.size}")
    return peer


def ranks_that_differ(
    transport: Transport, text: str, deadline_s: float | None, awaited: str
) -> list[int]:
    """Return the ranks whose ``text`` is not this rank's, by its digest. Collective."""
    digest = hashlib.sha256(text.encode()).digest()
    digests = transport.allgather_bytes(digest, deadline_s, awaited)
    return [rank for rank, theirs in enumerate(digests) if theirs != digest]


def contiguous(array: Array) -> Array:
    """Return ``array``, refusing one that is not plain bytes in one piece."""
    if not isinstance(array, np.ndarray):
        raise CommError(f"a message must be a numpy array, got {type(array).__name__}")
    if array.dtype.hasobject:
        raise CommError(f"a message cannot hold python objects, got dtype {array.dtype}")
    if not array.flags.c_contiguous:
        raise CommError(
            f"a message must be C-contiguous, got shape {array.shape} with strides "
            f"{array.strides}; send contiguous rows or a copy"
        )
    return array


def writable(array: Array) -> Array:
    """Return ``array`` as a receive buffer, refusing one that is read-only or not contiguous."""
    if not contiguous(array).flags.writeable:
        raise CommError(f"cannot receive into a read-only array of shape {array.shape}")
    return array


def summable(array: Array) -> Array:
    """Return ``array`` as a buffer to add up, refusing what MPI cannot add: it adds numbers.

    An array of a GPU is one that tells its address there, as cupy's do.
    """
    if hasattr(array, "__cuda_array_interface__"):
        if not array.flags.c_contiguous:
            raise CommError(f"an array to sum must be C-contiguous, got strides {array.strides}")
    else:
        writable(array)
    if array.dtype.char not in "bBhHiIlLqQfd":
        raise CommError(
            f"cannot add up an array of {array.dtype}, expected float32, float64 or int"
        )
    return array
