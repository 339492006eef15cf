"""A trainer's connection to all servers, and the common part of its step protocols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from hpcdist.base.errors import CommError
from hpcdist.base.trace.position import here
from hpcdist.comm.base import Array, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.ps.client import PsClient
from hpcdist.ps.packet_exchange import ServerArrays, ServerPackets
from hpcdist.ps.plan import Plan
from hpcdist.runtime.pserver.exchange_plan import (
    STALENESS,
    STEP,
    ServerExchange,
    exchanges_of,
    exchanges_of_this_turn,
    refuse_unpushed,
)


class ServerConnection:
    """The servers as one trainer sees them; connected for the first Program that trains."""

    def __init__(
        self, transport: Transport, cluster: Cluster, trainer_id: int, deadline_s: float
    ) -> None:
        self.transport = transport
        self._cluster = cluster
        self._trainer_id = trainer_id
        self._deadline_s = deadline_s
        self.reader = self._new_client("", sync_mode=True)  # can only ask
        self.client: PsClient | None = None
        self._exchanges: tuple[ServerExchange, ...] = ()
        # By turn: what exchanges the packets of a Program, and where its arrays lie.
        self._turns: dict[int, tuple[PsClient, list[int]]] = {}
        # Sent where exchanges are numbered: the number of this one, and the steps merged in it.
        self.step = np.array([0, 1], np.int64)
        self.staleness = {e: np.zeros(2, np.int64) for e in cluster.endpoints}
        self.copies: dict[str, Array] = {}  # host copies of device arrays

    def current(self) -> PsClient:
        """Return the current client of the servers: before the first step it can only ask."""
        return self.client or self.reader

    def connect(
        self, plan: Plan, array_of: Callable[[str], Array], trained: Sequence[Array]
    ) -> PsClient:
        """Connect at the first step Program; later ones must train the very same arrays.

        ``array_of`` returns what messages of a block leave from, or come to. CommError if another
        Program than those that take turns, or one in another scope, would train with the same
        servers.
        """
        refuse_unpushed(plan)
        exchanges = exchanges_of(plan)
        addresses = [array.ctypes.data for array in trained]
        connected, agreed = self._turns.get(plan.turn, (None, addresses))
        if (self.client is not None and exchanges != self._exchanges) or addresses != agreed:
            raise CommError(
                f"trainer {self._trainer_id}: a second Program, or a second scope, would train "
                "with the same parameter servers; use one trainer program in one scope"
            )
        if connected is not None:
            return connected
        arrays = [self._arrays(plan, one, array_of) for one in exchanges_of_this_turn(plan)]
        here.doing = "connecting to the parameter servers"
        if self.client is None:
            client = self._new_client(plan.fingerprint or "", sync_mode=plan.mode.synchronous)
            client.connect(arrays, [_packets(plan, exchange) for exchange in exchanges])
            self.client, self._exchanges = client, exchanges
        else:
            client = self.client.beside(arrays)
        here.doing = ""
        self._turns[plan.turn] = client, addresses
        return client

    def _arrays(
        self, plan: Plan, exchange: ServerExchange, array_of: Callable[[str], Array]
    ) -> ServerArrays:
        gradients = {b.key: array_of(b.gradient) for b in exchange.blocks}
        parameters = {b.parameter: array_of(b.parameter) for b in exchange.blocks}
        return ServerArrays(
            exchange.endpoint,
            exchange.gradients,
            exchange.parameters,
            exchange.pushed,
            plan.specs,
            gradient_arrays=gradients | {STEP.name: self.step},
            parameter_arrays=parameters | {STALENESS: self.staleness[exchange.endpoint]},
        )

    def _new_client(self, fingerprint: str, *, sync_mode: bool) -> PsClient:
        return PsClient(
            self.transport,
            self._cluster,
            self._trainer_id,
            fingerprint=fingerprint,
            sync_mode=sync_mode,
            deadline_s=self._deadline_s,
        )


def _packets(plan: Plan, exchange: ServerExchange) -> ServerPackets:
    """Return the packets that trainer and server must agree on."""
    return ServerPackets(
        exchange.endpoint, exchange.gradients, exchange.parameters, exchange.pushed, plan.specs
    )


class StepProtocol:
    """How a trainer exchanges with the servers in steps and between them; by mode."""

    def __init__(self, plan: Plan, connection: ServerConnection) -> None:
        self.plan = plan
        self.connection = connection

    def settle(self) -> None:
        """Send what is queued or not yet exchanged, between two steps."""

    def flush(self) -> None:
        """Send what is queued or not yet exchanged, after the last step."""

    def catch_up(self) -> None:
        """Receive differences that other trainers had not yet exchanged."""

    def resume(self) -> None:
        """Record what the servers have loaded from a checkpoint."""


Adopted = TypeVar("Adopted", bound=StepProtocol)
