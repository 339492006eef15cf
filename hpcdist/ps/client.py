"""A trainer's connection to the servers: the handshake, reads, requests, the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcdist.base.errors import CheckpointError, CommError
from hpcdist.base.trace.events import Cause, waits_for_cause
from hpcdist.comm.base import Array, Request, Transport, writable
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import DEADLINE_S, waits_for_ranks
from hpcdist.ps.death_consensus import Witness, parse_witness
from hpcdist.ps.messages import (
    REPLY_TAG,
    REQUEST_TAG,
    VALUE_TAG,
    VERDICT_TAG,
    Header,
    Hello,
    MessageKind,
    hello_payload,
    specs_payload,
)
from hpcdist.ps.packet_exchange import PacketExchange, ServerArrays, ServerPackets
from hpcdist.ps.packets import VarSpec
from hpcdist.ps.sparse_rpc import RowClient, RowRequest, SentRows
from hpcdist.ps.table_rpc import TableClient
from hpcdist.ps.wire import post_message, receive_message


class PsClient(PacketExchange):
    """The servers as one trainer sees them; every wait is bounded by ``deadline_s``.

    One thread, or two that hold ``turn`` whenever they use it; rows may be exchanged without.

    Where several Programs train in turns, there is a client `beside` the first for each other one.
    """

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        trainer_id: int,
        *,
        fingerprint: str,
        sync_mode: bool = True,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        super().__init__(transport, cluster, trainer_id, deadline_s)
        self._trainer = trainer_id
        self._fingerprint = fingerprint
        self._sync_mode = sync_mode
        self._closed = False
        self._agreed: Sequence[ServerPackets] = ()  # by all with the servers
        self._beside: list[PsClient] = []
        self._rows = RowClient(transport, cluster, trainer_id, deadline_s)
        self._pushed: set[tuple[str, str]] = set()  # (endpoint, gradient) in this step
        self.tables = TableClient(transport, cluster, trainer_id, deadline_s)
        self.turn = threading.RLock()

    @property
    def connected(self) -> bool:
        """Whether ``connect`` has agreed with the servers."""
        return bool(self._plans)

    def connect(
        self, plans: Sequence[ServerArrays], agreed: Sequence[ServerPackets] | None = None
    ) -> None:
        """Agree with every server on the packets of a step; every trainer must call this.

        Packets are numbered over ``plans``, one for each server, in the order given. ``agreed`` are
        those of all Programs, where several train in turns. Raises CommError if a trainer announces
        something else: in synchronous mode the same on all.
        """
        if self.connected:
            raise CommError(f"{self._name} is connected already")
        endpoints = [plan.endpoint for plan in plans]
        if sorted(endpoints) != sorted(self._cluster.endpoints):
            raise CommError(
                f"{self._name}: expected one plan for each of the servers "
                f"{self._cluster.endpoints}, got {tuple(endpoints)}"
            )
        self._agreed = plans if agreed is None else agreed
        self._greet(self._agreed)
        self.prepare(plans)

    def beside(self, plans: Sequence[ServerArrays]) -> PsClient:
        """Return the client of another Program's packets; it closes with this one."""
        client = PsClient(
            self._transport,
            self._cluster,
            self._trainer,
            fingerprint=self._fingerprint,
            sync_mode=self._sync_mode,
            deadline_s=self._deadline_s,
        )
        client.prepare(plans)
        self._beside.append(client)
        return client

    def _finish_rows(self) -> None:
        if self._pushed:
            self._rows.finish()
            self._pushed.clear()
        if self.tables.sending:
            self.tables.finish()

    def pull_rows(self, requests: Sequence[RowRequest]) -> None:
        """Fetch rows of tables as they are after all updates of the steps before this one."""
        with self.turn:
            self._rows.pull(requests, self.step)

    def push_rows(
        self,
        endpoint: str,
        gradient: str,
        rows: Array,
        values: Array,
        *,
        beside_rows: bool = False,
    ) -> None:
        """Start sending one of the server's sparse gradients: int64 [n] rows, [n, width] values.

        ``beside_rows``: whether this trainer's gradient has rows, here or on another server.
        """
        self._rows.push(endpoint, gradient, SentRows(rows, values, beside_rows), self.step)
        self._pushed.add((endpoint, gradient))

    def changed_rows(
        self, endpoint: str, table: str, gradient: str, like: Array
    ) -> tuple[Array, Array]:
        """Return (int64 [n] rows, [n, width] values) pushed to since this trainer last asked.

        For servers that track them; ``like`` is an array of the server's part of the table.
        """
        return self._rows.changed(endpoint, table, gradient, like, self.step)

    def read(self, endpoint: str, arrays: Mapping[str, Array]) -> None:
        """Overwrite each array with the server's present value of the variable of that name.

        Works before ``connect`` and between steps; values are of complete steps only.
        """
        if not arrays:
            return
        transport, server = self._transport, self._cluster.rank_of_endpoint(endpoint)
        specs = [VarSpec(n, writable(a).shape, a.dtype.name) for n, a in arrays.items()]
        values = [transport.irecv(array, server, VALUE_TAG) for array in arrays.values()]
        names = ", ".join(arrays)

        @waits_for_cause(Cause.PARAMETERS)
        def describe() -> str:
            return f"{self._name}, after step {self.step}: reading {names} from server {endpoint}"

        requests = self._post(endpoint, MessageKind.READ, specs_payload(specs))
        deadline_s = self._deadline_s
        with waits_for_ranks(lambda: [server]):
            transport.wait_all(requests, describe, deadline_s)
            header, payload = receive_message(transport, server, REPLY_TAG, describe, deadline_s)
        if header.kind is not MessageKind.VALUE:
            transport.release(values)
            raise CommError(f"{describe()}: {payload}")
        transport.wait_all(values, describe, self._deadline_s)

    def ask(self, payload: object) -> list[Any]:
        """Ask every server about checkpoints; return their answers, in the order of the servers.

        They answer between steps, however long that takes. Works before ``connect``. Raises
        CheckpointError that names the server that could not do it.
        """
        name = self._name
        answers: list[Any] = []
        refusals: list[Any] = []
        requests = [
            r
            for e in self._cluster.endpoints
            for r in self._post(e, MessageKind.CHECKPOINT, payload)
        ]

        @waits_for_cause(Cause.CHECKPOINT)
        def describe() -> str:
            return f"{name}, after step {self.step}: waiting for servers to save or load"

        for header, answer in self._replies(requests, describe, None):
            (answers if header.kind is MessageKind.VALUE else refusals).append(answer)
        if refusals:
            raise CheckpointError(str(refusals[0]))
        return answers

    def agree_on_deaths(self, witness: Witness) -> Witness:
        """Send server 0 this trainer's known deaths; return those known to any survivor.

        Every trainer that has not left must come here. May be called while another wait continues.
        """
        endpoint = self._cluster.endpoints[0]

        def describe() -> str:
            dead = ", ".join(map(str, sorted(witness.dead)))
            return f"{self._name} agreeing with all others to go on without trainers {dead}"

        requests = self._post(endpoint, MessageKind.DIED, witness.payload())
        self._transport.wait_all(requests, describe, self._deadline_s)
        server = self._cluster.rank_of_endpoint(endpoint)
        _, verdict = receive_message(
            self._transport, server, VERDICT_TAG, describe, self._deadline_s
        )
        return parse_witness(verdict)

    def close(self) -> None:
        """Leave the servers; a step of which packets were sent is ended first, as far as it went.

        The other trainers continue without this one. Calling it again does nothing.
        """
        if self._closed:
            return
        self._closed = True
        clients = (self, *self._beside)
        for client in clients:
            client._finish_sending()
        farewells: list[Request] = []
        for endpoint in self._cluster.endpoints:
            sent = {t: n for client in clients for t, n in client.sent_to(endpoint).items()}
            counts = [
                sent.get(packet.tag, 0)
                for plan in self._agreed
                if plan.endpoint == endpoint
                for packet in plan.gradients
            ]
            counts += [
                self.step + ((endpoint, table.name) in self._pushed)
                for plan in self._plans
                if plan.endpoint == endpoint
                for table in plan.tables
            ]
            counts += [
                self.tables.pushes
                for plan in self._plans
                if plan.endpoint == endpoint and plan.row_tables
            ]
            farewells += self._post(endpoint, MessageKind.CLOSE, counts)
        self._transport.wait_all(farewells, self.awaited, self._deadline_s)
        for client in clients:
            client.take_last_answers()

    # -- inside --

    def _finish_sending(self) -> None:
        """End what has been sent of a step that goes no further."""
        if self._lacks & self._receives_bit and self._lacks != self._whole:
            self.post_receives()
        self.wait_sends()
        self._rows.finish()
        self.tables.close()

    def _greet(self, plans: Sequence[ServerPackets]) -> None:
        requests: list[Request] = []
        for plan in plans:
            hello = Hello(
                len(self._cluster.trainers),
                self._sync_mode,
                self._fingerprint,
                plan.gradients,
                plan.parameters,
                plan.tables,
                plan.row_tables,
            )
            requests += self._post(plan.endpoint, MessageKind.HELLO, hello_payload(hello))
        cluster, me = self._cluster, self._transport.rank
        with waits_for_ranks(lambda: [r for r in (*cluster.servers, *cluster.trainers) if r != me]):
            for header, payload in self._replies(requests, self._greeting, self._deadline_s):
                if header.kind is not MessageKind.HELLO_OK:
                    raise CommError(str(payload))

    def _replies(
        self,
        requests: Sequence[Request],
        describe: Callable[[], str],
        deadline_s: float | None,
    ) -> Iterator[tuple[Header, Any]]:
        """Yield what each server answers; only then wait until the requests have left.

        A server goes on when its reply has been taken. Trainers that wait for all servers to take
        their requests, and servers for trainers to take their replies, could wait in a circle: so
        replies are taken first, by all trainers in the same order.
        """
        for server in self._cluster.servers:
            yield receive_message(self._transport, server, REPLY_TAG, describe, deadline_s)
        self._transport.wait_all(requests, describe, deadline_s)

    def _post(self, endpoint: str, kind: MessageKind, payload: object) -> list[Request]:
        if self._closed and kind is not MessageKind.CLOSE:  # nobody would answer
            raise CommError(
                f"{self._name}, after step {self.step}: it has left the servers (exe.close(), or "
                "fleet.stop_worker()); save, load and train before that"
            )
        server = self._cluster.rank_of_endpoint(endpoint)
        return post_message(
            self._transport, server, REQUEST_TAG, kind, self._trainer, self.step, payload
        )

    # -- words --

    @waits_for_cause(Cause.START)
    def _greeting(self) -> str:
        servers = ", ".join(self._cluster.endpoints)
        return f"{self._name} waiting for servers {servers} and all trainers to start"
