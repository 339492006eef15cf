"""Fault-tolerant MPI, which survives dead ranks: Open MPI 5 under ``mpirun --with-ft ulfm``.

Jobs with servers use only the errors and the list of dead ranks: messages among survivors need
nothing else, and survivors agree with the servers on how to continue. Jobs without servers agree
through MPI, and go on with a communicator of the survivors (`UlfmTransport.go_on`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hpcdist.base.errors import CommError, RankFailure
from hpcdist.comm.base import Array, Request, SharedRows
from hpcdist.comm.mpi import Awaited, MpiTransport
from hpcdist.comm.process_manager import survival_requested
from hpcdist.comm.progress import DEADLINE_S, WaitPolicy, as_comm_error, waiter

T = TypeVar("T")
# Tags of messages that take the place of MPI's collectives, which fail when a rank has died.
LENGTH_TAG, DATA_TAG = 900, 901
CAUSE_S = 10.0  # in which MPI tells of a death after another rank has revoked a communicator for it


def offered(comm: Any) -> bool:
    """Return whether mpirun allows surviving dead ranks, and the library supports it."""
    if not survival_requested():
        return False
    try:
        comm.Get_failed()
    except NotImplementedError:
        return False
    return True


class UlfmTransport(MpiTransport):
    """Messages between the ranks of one communicator, some of which may die.

    A send to the dead counts as ended or fails, a receive from them fails; the others' messages are
    not disturbed.
    """

    def __init__(self, comm: Any, policy: WaitPolicy) -> None:
        super().__init__(comm, policy)
        self.tolerant = True
        # Where a message comes from, for each persistent receive by id.
        self._ends: dict[int, tuple[int, int]] = {}
        self._root = self  # of the communicators made from it: all whose deaths matter
        self._top = self  # never revoked: to move messages by

    def failed(self) -> frozenset[int]:
        return frozenset(self._translated(self._comm.Get_failed(), self._comm.Get_group()))

    def recv_init(self, array: Array, peer: int, tag: int) -> Request:
        request = super().recv_init(array, peer, tag)
        self._ends[id(request)] = peer, tag
        return request

    def release(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._ends.pop(id(request), None)
            try:
                super().release([request])
            except self._mpi.Exception:
                if not self.failed():
                    raise

    def test_all(self, requests: Sequence[Request]) -> bool:
        try:
            return super().test_all(requests)
        except self._mpi.Exception as error:
            raise self._explained(error, f"rank {self.rank} looking for messages") from error

    def arrival(self, request: Request) -> int | None:
        try:
            return super().arrival(request)
        except self._mpi.Exception as error:
            raise self._explained(error, f"rank {self.rank} receiving a message") from error

    def iprobe(self, peer: int, tag: int) -> tuple[int, int] | None:
        try:
            return super().iprobe(peer, tag)
        except self._mpi.Exception as error:
            raise self._explained(error, f"rank {self.rank} looking for messages") from error

    def waiter_some(
        self, requests: Sequence[Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], list[int]]:
        statuses: list[Any] = []

        def explained(error: Exception, awaited: str) -> CommError:
            # A failed test does not return the requests that it has ended; their statuses tell.
            came = {(s.Get_source(), s.Get_tag()) for s in statuses if not s.Get_error()}
            ended = [i for i, r in enumerate(requests) if self._ends.get(id(r)) in came]
            return self._explained(error, awaited, tuple(ended))

        poll: Callable[[], Any] = partial(self._mpi.Request.Testsome, requests, statuses)
        return waiter(poll, self.policy, describe, deadline_s, self._mpi.Exception, explained)

    def barrier(self, deadline_s: float | None = DEADLINE_S) -> None:
        """Wait until every rank that lives has come here.

        Each tells all others: the death of one keeps nobody waiting for anybody else.
        """
        self.allgather_living(b"", deadline_s, "a barrier")

    def allgather_living(
        self, data: bytes, deadline_s: float | None, awaited: str
    ) -> list[bytes | None]:
        peers = [k for k in range(self.size) if k != self.rank and k not in self.failed()]
        lengths = np.zeros((self.size, 1), np.int64)
        sent = np.frombuffer(data, np.uint8)
        lengths[self.rank] = len(sent)
        sends = [self.isend(lengths[self.rank], k, LENGTH_TAG) for k in peers]
        sends += [self.isend(sent, k, DATA_TAG) for k in peers if len(sent)]
        heads = [self.irecv(lengths[k], k, LENGTH_TAG) for k in peers]
        heads_ended = self._finish_living(heads, awaited, deadline_s)
        peers = [k for k, ended in zip(peers, heads_ended) if ended]
        buffers = {k: np.zeros(int(lengths[k, 0]), np.uint8) for k in peers}
        bodies = [self.irecv(buffers[k], k, DATA_TAG) for k in peers if len(buffers[k])]
        complete = self._finish_living(bodies, awaited, deadline_s)
        came = dict(zip([k for k in peers if len(buffers[k])], complete))
        self._finish_living(sends, awaited, deadline_s)
        received = {k: buffers[k].tobytes() for k in peers if came.get(k, True)} | {self.rank: data}
        return [received.get(k) for k in range(self.size)]

    def _finish_living(
        self, requests: Sequence[Request], awaited: str, deadline_s: float | None
    ) -> list[bool]:
        """Wait for each request, or the death of its other end; return which have ended well."""
        ended = []
        for request in requests:
            try:
                self._finish([request], awaited, deadline_s)
                ended.append(True)
            except RankFailure:
                if self._comm.Is_revoked():  # then others, who live, have gone elsewhere
                    raise
                ended.append(False)
        return ended

    def peers_in_world(self) -> tuple[int, ...]:
        """Return the other ranks that live, as MPI's world numbers them."""
        dead = self._in_world(self._comm.Get_failed())
        return tuple(rank for rank in super().peers_in_world() if rank not in dead)

    # -- new communicators: nobody waits in these for ranks that have died --

    def on_host(self) -> MpiTransport:
        return self._made(super().on_host, "the ranks of the host")

    def split(self, color: int, key: int) -> MpiTransport:
        return self._made(lambda: super(UlfmTransport, self).split(color, key), "a group")

    def subset(self, ranks: Sequence[int], tag: int) -> MpiTransport:
        return self._made(lambda: super(UlfmTransport, self).subset(ranks, tag), "a group")

    def share(self, nbytes: int) -> SharedRows | None:
        return self._made(lambda: super(UlfmTransport, self).share(nbytes), "shared memory")

    # -- going on without the dead --

    def look_for_deaths(self) -> tuple[int, ...]:
        """Return the dead of this transport, as MPI's world numbers them.

        MPI learns of them inside its calls only; this is one.
        """
        with suppress(self._mpi.Exception):  # it tells of a death, and so does the list
            self._top.native.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG)
        return self._in_world(self._comm.Get_failed())

    def agree(self, vote: bool, awaited: str, deadline_s: float | None) -> bool:
        """Return whether all ranks vote for it, the same on all that live. Collective among them.

        Ranks may die meanwhile; those that have do not count.
        """
        ballot = np.array([vote], np.int32)
        request = self._comm.Iagree(ballot)

        def poll() -> bool:
            try:
                return bool(request.Test())
            except self._mpi.Exception as error:
                if error.Get_error_class() != self._mpi.ERR_PROC_FAILED:
                    raise
                return True  # somebody has died, and the result is agreed upon

        self._waiter(poll, Awaited(self, awaited), deadline_s)()
        return bool(ballot[0])

    def go_on(self, make: Callable[[UlfmTransport], bool], deadline_s: float | None) -> None:
        """Call ``make`` with a transport of the surviving ranks.

        It makes what these need, and returns whether no rank died meanwhile; it is called again
        until it succeeds on all. Collective among all ranks that live: the others are in
        `await_end`.
        """
        self.agree(False, "the others to go on without ranks that have died", deadline_s)
        while not self._attempt(make, deadline_s):
            pass

    def await_end(self) -> None:
        """Wait until all ranks that live have come here, while those that have not may `go_on`."""
        while not self.agree(True, "the others' end", None):
            while not self._attempt(None, None):
                pass

    def revoke(self) -> None:
        # So nothing arrives any more in what a wait has given up.
        for part in self._parts:
            part.revoke()
        self._comm.Revoke()

    def ranks_in_world(self) -> tuple[int, ...]:
        """Return this transport's ranks, as MPI's world numbers them; in the same order."""
        return self._in_world(self._comm.Get_group())

    # -- inside --

    def _part(self, comm: Any) -> UlfmTransport:
        part = UlfmTransport(comm, self.policy)
        part._root, part._top = self._root, self._top
        self._parts.append(part)
        return part

    def _attempt(
        self, make: Callable[[UlfmTransport], bool] | None, deadline_s: float | None
    ) -> bool:
        """Try once to go on; return whether that has succeeded, on all ranks.

        ``make`` is None on a rank that only votes.
        """
        left, is_made = None, True
        try:
            left = self._among_living(make is not None)
        except RankFailure:
            is_made = False
        if not self.agree(is_made, "the others to agree on who is left", deadline_s):
            return False
        is_made = make is None or left is None or make(left)
        return self.agree(is_made, "the others to go on", deadline_s)

    def _among_living(self, takes_part: bool) -> UlfmTransport | None:
        """Return the transport of all living ranks that take part, renumbered in their order.

        None for one that does not. MPI's wait for the others has no deadline, so `agree` comes
        before it. RankFailure if one dies meanwhile, not on all ranks.
        """
        color = 0 if takes_part else self._mpi.UNDEFINED
        try:
            with self._blocking("the ranks that live"):
                comm = self._comm.Shrink().Split(color, self.rank)
        except self._mpi.Exception as error:
            raise self._explained(error, "the ranks that live") from error
        if comm == self._mpi.COMM_NULL:
            return None
        left = UlfmTransport(comm, self.policy)
        left._top = self._top
        return left

    def _made(self, make: Callable[[], T], what: str) -> T:
        try:
            return make()
        except self._mpi.Exception as error:
            raise self._explained(error, f"rank {self.rank} making {what}") from error

    def _explained(self, error: Exception, awaited: str, ended: tuple[int, ...] = ()) -> CommError:
        ranks = self._in_world(self._comm.Get_failed())
        if not ranks and self._comm.Is_revoked():
            late = time.monotonic() + CAUSE_S
            while not (ranks := self._root.look_for_deaths()) and time.monotonic() < late:
                time.sleep(CAUSE_S / 1000)
        return RankFailure(awaited, ranks, ended) if ranks else as_comm_error(error, awaited)

    def _in_world(self, ranks: object) -> tuple[int, ...]:
        return tuple(self._translated(ranks, self._mpi.COMM_WORLD.Get_group()))

    def _translated(self, ranks: object, group: object) -> list[int]:
        return sorted(self._mpi.Group.Translate_ranks(ranks, None, group))
