"""The servers as one trainer uses them: its connection, and what it exchanges through it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.ps.client import PsClient
from hpcdist.ps.plan import Plan
from hpcdist.runtime.pserver.connection import Adopted, ServerConnection, StepProtocol
from hpcdist.runtime.pserver.exchange_plan import STALENESS


class TrainerServers:
    """A trainer's connection to all servers, and the protocols of its steps, by turn."""

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        trainer_id: int,
        deadline_s: float,
        learn: Callable[[Plan], None],
    ) -> None:
        """``learn`` is told the plan by which this trainer trains."""
        self.learn = learn
        self._connect = functools.partial(
            ServerConnection, transport, cluster, trainer_id, deadline_s
        )
        self.connection = self._connect()
        self.protocols: dict[int, StepProtocol] = {}

    def adopt(self, plan: Plan, protocol: Callable[[Plan, ServerConnection], Adopted]) -> Adopted:
        """Return the protocol of a plan's steps, whose messages travel without a Program."""
        self.learn(plan)
        adopted = protocol(plan, self.connection)
        self.protocols[plan.turn] = adopted
        return adopted

    def client(self) -> PsClient:
        """Return the current client of the servers: before the first step it can only ask."""
        return self.connection.current()

    @property
    def staleness(self) -> int:
        """How many updates of others the last step's gradients had missed, at most; 0 if sync."""
        return max((int(array[0]) for array in self.connection.staleness.values()), default=0)

    def settle(self, plan: Plan | None) -> None:
        """Send what is queued or not yet exchanged; return when servers have all of ``plan``'s."""
        for protocol in self.protocols.values():
            protocol.settle()
        client = self.connection.client
        if client is not None and plan is not None and not plan.mode.synchronous:
            for endpoint in plan.endpoints:  # rows are not answered; what is asked after them is
                client.read(endpoint, {STALENESS: np.empty(2, np.int64)})

    def catch_up(self) -> None:
        """With GEO: take over what other trainers had not yet exchanged."""
        for protocol in self.protocols.values():
            protocol.catch_up()

    def close(self) -> None:
        """Leave the servers: they continue without this trainer, and end after the last one.

        What is queued or not yet exchanged is sent first.
        """
        for protocol in self.protocols.values():
            protocol.flush()
        self.client().close()

    def leave(self) -> None:
        """Leave servers that go on to serve something else, and be connected anew for that."""
        self.close()
        self.connection = self._connect()
        self.protocols.clear()
