"""What scripts without a Program have on servers, as one of their trainers sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpcdist.base import settings
from hpcdist.comm.base import Array
from hpcdist.comm.progress import waits_for_ranks
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.client import PsClient
from hpcdist.ps.facts import Facts, rate_name
from hpcdist.ps.messages import ASSIGN, REPLY_TAG, REQUEST_TAG, MessageKind
from hpcdist.ps.wire import post_message, receive_message, unended
from hpcdist.runtime.job.job import Job
from hpcdist.runtime.pserver.connection import ServerConnection, StepProtocol

if TYPE_CHECKING:
    from hpcdist.runtime.pserver.trainer_servers import TrainerServers

FOLLOWS = "another_model_follows"  # the variable by which trainer 0 tells a server


class DeclaredOnServers:
    """The tables that a trainer has on servers, and its connection to these."""

    _connection: ServerConnection

    def __init__(self, job: Job, facts: Facts) -> None:
        """Plan who keeps what; `connect` connects."""
        self._plan = facts.plan(job.cluster, job.role.index)
        self.specs: tuple[TableSpec, ...] = self._plan.specs
        self.job, self.facts = job, facts

    def connect(self, arrays: Mapping[str, Array] | None = None) -> None:
        """Connect to the servers; ``arrays``: blocks and gradients. Every trainer calls this."""
        arrays = arrays or {}
        self._connection = self.job.adopt(self._plan, StepProtocol).connection
        self._connection.connect(self._plan, arrays.__getitem__, list(arrays.values()))

    @property
    def client(self) -> PsClient:
        """What talks to the servers."""
        return self._connection.current()

    def end_step(self) -> None:
        """End a step whose rows have been pushed: exchange the packets, if there are any."""
        client = self.client
        if not client.packets:
            return  # rows asked for next are answered when all trainers' have been applied
        client.exchanger(range(len(client.packets)))()
        self._connection.step[0] += 1

    # -- checkpoints --
    @property
    def lockstep(self) -> bool:
        """Whether trainers take each step together."""
        return self._plan.mode.lockstep

    def settle(self) -> None:
        """Send what is not yet exchanged; return when the servers have all of it."""
        self._servers.settle(self._plan)

    def catch_up(self) -> None:
        """With GEO: take over what other trainers had not yet exchanged."""
        self._servers.catch_up()

    def resume(self) -> None:
        """Forget rows asked for ahead; with GEO, note what the servers have loaded."""
        self.client.tables.restored += 1
        self._servers.protocols[self._plan.turn].resume()

    @property
    def _servers(self) -> TrainerServers:
        assert self.job.servers is not None, "the job has servers"
        return self.job.servers

    # -- the end --
    def leave(self) -> None:
        """Clear the servers, and wait for what they shall keep next. Collective.

        Trainer 0 comes back when they do; the others must wait for it.
        """
        job = self.job
        if job.role.index == 0:
            self.client.ask({"do": ASSIGN, "values": {FOLLOWS: 1.0}})
        job.leave_servers()
        if job.role.index == 0:
            for rank in job.cluster.servers:
                receive_message(
                    job.transport,
                    rank,
                    REPLY_TAG,
                    partial("server (rank {}) to drop a model".format, rank),
                    deadline_s(),
                )

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set the learning rates by which servers update rows from now on. Trainer 0 calls this."""
        values = {rate_name(number): rate for number, rate in enumerate(rates)}
        self.client.ask({"do": ASSIGN, "values": values})


def tell_servers(job: Job, facts: Facts) -> None:
    """Send the servers what to keep, from trainer 0. Every trainer calls this."""
    if job.role.index == 0:
        told, sent = [], []  # the server of each message
        for rank in job.cluster.servers:
            messages = post_message(
                job.transport, rank, REQUEST_TAG, MessageKind.KEEP, 0, 0, facts.payload()
            )
            sent += messages
            told += [rank] * len(messages)

        def missing() -> list[int]:
            return sorted({told[i] for i in unended(job.transport, sent)})

        with waits_for_ranks(missing):
            job.transport.wait_all(
                sent, lambda: f"telling servers (rank {missing()}) what to keep", deadline_s()
            )


def deadline_s() -> float:
    """Return how long a rank may keep others waiting."""
    return settings.RPC_DEADLINE.read() / 1000
