"""Fault-tolerant MPI, which survives dead ranks: Open MPI 5 under ``mpirun --with-ft ulfm``.

Only the errors and the list of dead ranks of User Level Failure Mitigation are used; messages among
survivors need nothing else. Survivors agree with the servers on how to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpcdist.comm.base import Array, Request
from hpcdist.comm.mpi import MpiTransport
from hpcdist.comm.process_manager import survival_requested
from hpcdist.comm.progress import DEADLINE_S, WaitPolicy, as_comm_error, waiter
from hpcdist.errors import CommError, RankFailure

# Tags of messages that take the place of MPI's collectives, which fail when a rank has died.
LENGTH_TAG, DATA_TAG = 900, 901


def offered(comm: Any) -> bool:
    """Tell whether mpirun was asked to let a job go on without dead ranks, and the library can."""
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

    def waiter_all(
        self, requests: Sequence[Request], describe: Callable[[], str], deadline_s: float | None
    ) -> Callable[[], bool]:
        poll = partial(self._mpi.Request.Testall, requests)
        return self._waiter(poll, describe, deadline_s, self._explained)

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
        return self._waiter(poll, describe, deadline_s, explained)

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
                ended.append(False)
        return ended

    # -- inside --

    def _waiter(
        self,
        poll: Callable[[], Any],
        describe: Callable[[], str],
        deadline_s: float | None,
        explained: Callable[[Exception, str], CommError],
    ) -> Callable[[], Any]:
        return waiter(poll, self.policy, describe, deadline_s, self._mpi.Exception, explained)

    def _explained(self, error: Exception, awaited: str, ended: tuple[int, ...] = ()) -> CommError:
        failed = self._comm.Get_failed()
        if not failed.Get_size():
            return as_comm_error(error, awaited)
        ranks = self._translated(failed, self._mpi.COMM_WORLD.Get_group())
        return RankFailure(awaited, tuple(ranks), ended)

    def _translated(self, ranks: object, group: object) -> list[int]:
        return sorted(self._mpi.Group.Translate_ranks(ranks, None, group))
