"""The common part of both exchanges of rows: `sparse_rpc` by index, `table_rpc` by id.

They differ in their messages: rows by index travel one table at a time, rows by id all tables of a
server together, in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hpcdist.base.trace.events import Cause, waits_for_cause
from hpcdist.comm.base import Array, Request, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import waits_for_ranks
from hpcdist.ps.wire import unended

Messages: TypeAlias = list[tuple[int, Request]]  # each with its server's rank


class RowExchangeClient:
    """A trainer's side: what it has sent, and the wait for it."""

    def __init__(
        self, transport: Transport, cluster: Cluster, trainer_id: int, deadline_s: float
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._trainer = trainer_id
        self._deadline_s = deadline_s
        self.sending: Messages = []  # what is pushed, and may not have been taken

    def finish(self) -> None:
        """Wait until everything pushed has been taken."""
        if self.sending:
            self._await(
                self.sending,
                Cause.SENDS,
                lambda: f"trainer {self._trainer}: sending gradients of tables",
            )
            self.sending.clear()

    def _await(self, messages: Messages, cause: Cause, describe: Callable[[], str]) -> None:
        """Wait until all messages have come or gone; errors name the servers that are missing."""
        requests = [request for _, request in messages]

        def missing() -> list[int]:
            return sorted({messages[i][0] for i in unended(self._transport, requests)})

        with waits_for_ranks(missing):
            self._transport.wait_all(requests, waits_for_cause(cause)(describe), self._deadline_s)


class RowExchangeServer:
    """A server's side: requests for rows, which it answers when its tables are ready for them."""

    def __init__(self, transport: Transport, ranks: Sequence[int], deadline_s: float) -> None:
        self._transport = transport
        self._ranks = ranks  # of the trainers
        self._deadline_s = deadline_s
        # (trainer, step, what answers it): requests for rows that have not been answered
        self._pulls: list[tuple[int, int, Callable[[], None]]] = []

    def answer(self, up_to_date: Callable[[int, int], bool]) -> None:
        """Answer the requests that ``up_to_date(trainer, step)`` says the tables are ready for."""
        waiting = []
        for trainer, step, reply in self._pulls:
            if up_to_date(trainer, step):
                reply()
            else:
                waiting.append((trainer, step, reply))
        self._pulls = waiting

    def forget(self, trainer: int) -> None:
        """Answer a trainer no more: it has died."""
        self._pulls = [pull for pull in self._pulls if pull[0] != trainer]

    def _receive(self, trainer: int, tag: int, arrays: Sequence[Array], awaited: str) -> None:
        rank = self._ranks[trainer]
        self._transport.wait_all(
            [self._transport.irecv(array, rank, tag) for array in arrays],
            waits_for_cause(Cause.GRADIENTS)(
                lambda: f"waiting for {awaited} from trainer {trainer} (rank {rank})"
            ),
            self._deadline_s,
        )
