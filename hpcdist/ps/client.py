"""A trainer's end: gradient packets out, parameters in, straight from and to arrays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcdist.comm.base import Array, Request, Transport, writable
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import DEADLINE_S, deadline_error, waits_for_ranks
from hpcdist.errors import CheckpointError, CommError, DeadlineError, RankFailure
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.death_consensus import Witness, parse_witness
from hpcdist.ps.messages import (
    GRADIENT_TAG,
    PARAMETER_TAG,
    REPLY_TAG,
    REQUEST_TAG,
    VALUE_TAG,
    VERDICT_TAG,
    Hello,
    MessageKind,
    hello_payload,
    specs_payload,
)
from hpcdist.ps.packets import Packet, PacketBuffer, VarSpec
from hpcdist.ps.sparse_rpc import RowClient, RowRequest
from hpcdist.ps.table_rpc import TableClient
from hpcdist.ps.wire import post_message, receive_message
from hpcdist.trace import events
from hpcdist.trace.events import Cause, waits_for_cause
from hpcdist.trace.recorder import recorder


@dataclass(frozen=True)
class ServerPackets:
    """What one trainer exchanges with one server; ``parameters[i]`` answers ``gradients[i]``."""

    endpoint: str
    gradients: tuple[Packet, ...]
    parameters: tuple[Packet, ...]
    tables: tuple[VarSpec, ...] = ()  # sparse gradients, pushed by name
    row_tables: tuple[TableSpec, ...] = ()  # distributed tables, of which `tables` moves the rows


@dataclass(frozen=True)
class ServerArrays(ServerPackets):
    """What one trainer exchanges with one server in every step, and where it lies.

    The arrays, by variable name, are C-contiguous and keep their memory; if they lie as the packets
    say, nothing is copied.
    """

    gradient_arrays: Mapping[str, Array] = field(kw_only=True)
    parameter_arrays: Mapping[str, Array] = field(kw_only=True)


class PsClient:
    """The servers as one trainer sees them; every wait is bounded by ``deadline_s``.

    One thread, or two that hold ``turn`` whenever they use it; rows may be exchanged without.

    A step is ``post_receives``, ``send_packet`` for each packet as its gradients become ready,
    ``wait_sends`` (after it the gradients may be overwritten; may be left out) and
    ``wait_receives`` (after it the parameters are those of the next step). Where several Programs
    train in turns, there is a client `beside` the first for each other one.
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
        self._transport = transport
        self._cluster = cluster
        self._trainer = trainer_id
        self._fingerprint = fingerprint
        self._sync_mode = sync_mode
        self._deadline_s = deadline_s
        self._name = f"trainer {trainer_id} (rank {transport.rank})"
        self._closed = False
        self._agreed: Sequence[ServerPackets] = ()  # by all with the servers
        self._beside: list[PsClient] = []
        self._rows = RowClient(transport, cluster, trainer_id, deadline_s)
        self._pushed: set[tuple[str, str]] = set()  # (endpoint, gradient) in this step
        self.tables = TableClient(transport, cluster, trainer_id, deadline_s)
        self.step = 0
        self.turn = threading.RLock()
        # All below are by packet index, over the plans in the order of their servers.
        self._plans: tuple[ServerArrays, ...] = ()
        self._owners: list[ServerArrays] = []
        self._packets: list[Packet] = []
        self._gradients: list[PacketBuffer] = []
        self._parameters: list[PacketBuffer] = []
        self._sends: list[Request] = []
        self._receives: list[Request] = []
        self._start_sends: list[Callable[[], None]] = []
        self._start_receives: Callable[[], None] = lambda: None
        self._finish_sends: Callable[[], object] = lambda: None
        self._finish_exchange: Callable[[], object] = lambda: None
        self._exchange: list[Request] = []
        self._scattered: list[PacketBuffer] = []
        self._sent: list[bool] = []
        self._posted = False
        self._posted_at = 0.0  # seconds of the monotonic clock

    @property
    def packets(self) -> tuple[Packet, ...]:
        """The gradient packets in the order that ``send_packet`` counts them."""
        return tuple(self._packets)

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
        self._take(plans)

    def beside(self, plans: Sequence[ServerArrays]) -> PsClient:
        """Return what exchanges the packets of another Program; it closes with this one."""
        other = PsClient(
            self._transport,
            self._cluster,
            self._trainer,
            fingerprint=self._fingerprint,
            sync_mode=self._sync_mode,
            deadline_s=self._deadline_s,
        )
        other._take(plans)
        self._beside.append(other)
        return other

    def _take(self, plans: Sequence[ServerArrays]) -> None:
        self._plans = tuple(plans)
        transport = self._transport
        for plan in plans:
            rank = self._cluster.rank_of_endpoint(plan.endpoint)
            for gradient, parameter in zip(plan.gradients, plan.parameters, strict=True):
                outgoing = PacketBuffer(gradient, plan.gradient_arrays)
                incoming = PacketBuffer(parameter, plan.parameter_arrays)
                self._owners.append(plan)
                self._packets.append(gradient)
                self._gradients.append(outgoing)
                self._parameters.append(incoming)
                tag = GRADIENT_TAG + gradient.tag
                self._sends.append(transport.send_init(outgoing.bytes, rank, tag))
                tag = PARAMETER_TAG + parameter.tag
                self._receives.append(transport.recv_init(incoming.bytes, rank, tag))
        self._exchange = self._sends + self._receives
        self._start_sends = [transport.starter([send]) for send in self._sends]
        if self._receives:
            self._start_receives = transport.starter(self._receives)
        deadline_s = self._deadline_s
        self._finish_sends = transport.waiter_all(self._sends, self._unsent, deadline_s)
        self._finish_exchange = transport.waiter_all(self._exchange, self.awaited, deadline_s)
        self._scattered = [buffer for buffer in self._parameters if not buffer.in_place]
        self._sent = [False] * len(self._packets)

    def post_receives(self) -> None:
        """Let this step's parameters come in, from now on: their old values must be done with."""
        self._start_receives()
        self._posted = True
        self._posted_at = time.monotonic()

    def send_packet(self, index: int) -> None:
        """Start sending packet ``index``; all its gradients must be there and stay as they are."""
        if self._sent[index]:
            raise CommError(f"{self._name}: {self._packets[index]} sent twice in one step")
        self._sent[index] = True
        noted = not self.step + 1 & recorder.mask
        begin = time.monotonic_ns() if noted else 0
        self._gradients[index].gather()
        self._start_sends[index]()
        if noted:
            self._note(events.EventKind.SENT, index, self._gradients[index], begin)

    def wait_sends(self) -> None:
        """Wait until the gradients sent in this step may be overwritten."""
        self._finish_sends()

    def answered(self) -> bool:
        """Return whether `wait_receives` would not wait; this also lets messages move on.

        Raises DeadlineError when the answers should have come long ago.
        """
        if self._transport.test_all(self._exchange):
            return True
        if time.monotonic() - self._posted_at > self._deadline_s:
            raise deadline_error(self.awaited, self._deadline_s)
        return False

    @waits_for_cause(Cause.PARAMETERS)
    def awaited(self) -> str:
        """Tell which answers of this step have not come."""
        return f"{self._name}, step {self.step + 1}: waiting for {self._whole(self._receives)}"

    def wait_receives(self) -> None:
        """End the step: wait for the parameters that answer the packets sent, all of them."""
        if not self._posted or not all(self._sent):
            raise CommError(
                f"{self._name}, step {self.step + 1}: cannot end the step, "
                f"{self._unstarted() or 'receives are not posted'}"
            )
        try:
            self._finish_exchange()
        except DeadlineError as error:
            slow = {self._owners[i].endpoint for i in self._unended(self._receives)}
            error.missing = tuple(sorted(map(self._cluster.rank_of_endpoint, slow)))
            raise
        if not self.step + 1 & recorder.mask:
            for index, buffer in enumerate(self._parameters):
                self._note(events.EventKind.RECEIVED, index, buffer, time.monotonic_ns())
        self._rows.finish()
        self.tables.finish()
        self._pushed.clear()
        for buffer in self._scattered:
            buffer.scatter()
        self._posted = False
        self._sent = [False] * len(self._sent)
        self.step += 1

    def pull_rows(self, requests: Sequence[RowRequest]) -> None:
        """Fetch rows of tables as they are after all updates of the steps before this one."""
        with self.turn:
            self._rows.pull(requests, self.step)

    def push_rows(self, endpoint: str, gradient: str, rows: Array, values: Array) -> None:
        """Start sending one of the server's sparse gradients: int64 [n] rows, [n, width] values."""
        self._rows.push(endpoint, gradient, rows, values, self.step)
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

        Works before ``connect`` and between steps; values are of whole steps only.
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
        with waits_for_ranks([server]):
            transport.wait_all(requests, describe, deadline_s)
            header, payload = receive_message(transport, server, REPLY_TAG, describe, deadline_s)
        if header.kind is not MessageKind.VALUE:
            transport.release(values)
            raise CommError(f"{describe()}: {payload}")
        transport.wait_all(values, describe, self._deadline_s)

    def ask(self, what: Any) -> list[Any]:
        """Ask every server about checkpoints; return their answers, in the order of the servers.

        They answer between steps, however long that takes. Works before ``connect``. Raises
        CheckpointError that names the server that could not do it.
        """
        transport, name = self._transport, self._name
        answers: list[Any] = []
        refusals: list[Any] = []
        asked = [
            r for e in self._cluster.endpoints for r in self._post(e, MessageKind.CHECKPOINT, what)
        ]

        @waits_for_cause(Cause.CHECKPOINT)
        def describe() -> str:
            return f"{name}, after step {self.step}: waiting for servers to save or load"

        transport.wait_all(asked, describe, None)
        for server in self._cluster.servers:
            header, answer = receive_message(transport, server, REPLY_TAG, describe, None)
            (answers if header.kind is MessageKind.VALUE else refusals).append(answer)
        if refusals:
            raise CheckpointError(str(refusals[0]))
        return answers

    def agree_on_deaths(self, witness: Witness) -> Witness:
        """Tell server 0 what this trainer knows of deaths; return what all that are left know.

        Every trainer that has not left must come here. May be called while another wait goes on.
        """
        endpoint = self._cluster.endpoints[0]

        def describe() -> str:
            dead = ", ".join(map(str, sorted(witness.dead)))
            return f"{self._name} agreeing with all others to go on without trainers {dead}"

        asked = self._post(endpoint, MessageKind.DIED, witness.payload())
        self._transport.wait_all(asked, describe, self._deadline_s)
        server = self._cluster.rank_of_endpoint(endpoint)
        _, verdict = receive_message(
            self._transport, server, VERDICT_TAG, describe, self._deadline_s
        )
        return parse_witness(verdict)

    def close(self) -> None:
        """Leave the servers; a step of which packets were sent is ended first, as far as it went.

        The other trainers go on without this one. Calling it again does nothing.
        """
        if self._closed:
            return
        self._closed = True
        clients = (self, *self._beside)
        for client in clients:
            client._finish_sending()
        farewells: list[Request] = []
        for endpoint in self._cluster.endpoints:
            sent = {t: n for client in clients for t, n in client._sent_to(endpoint).items()}
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
            client._take_last_answers()

    # -- inside --

    def _finish_sending(self) -> None:
        """End what has been sent of a step that goes no further."""
        if any(self._sent) and not self._posted:
            self.post_receives()
        self.wait_sends()
        self._rows.finish()
        self.tables.close()

    def _sent_to(self, endpoint: str) -> dict[int, int]:
        """Return how often each packet has been sent to a server, by its tag."""
        return {
            packet.tag: self.step + sent
            for plan, packet, sent in zip(self._owners, self._packets, self._sent, strict=True)
            if plan.endpoint == endpoint
        }

    def _take_last_answers(self) -> None:
        begun = [i for i, sent in enumerate(self._sent) if sent]
        answers = [self._receives[i] for i in begun]
        self._transport.wait_all(answers, self.awaited, self._deadline_s)
        for i in begun:
            self._parameters[i].scatter()
        self._transport.release(self._exchange)

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
        self._transport.wait_all(requests, self._greeting, self._deadline_s)
        for plan in plans:
            server = self._cluster.rank_of_endpoint(plan.endpoint)
            header, payload = receive_message(
                self._transport,
                server,
                REPLY_TAG,
                self._greeting,
                self._deadline_s,
            )
            if header.kind is not MessageKind.HELLO_OK:
                raise CommError(str(payload))

    def _post(self, endpoint: str, kind: MessageKind, payload: Any) -> list[Request]:
        server = self._cluster.rank_of_endpoint(endpoint)
        return post_message(
            self._transport, server, REQUEST_TAG, kind, self._trainer, self.step, payload
        )

    def _note(
        self, kind: events.EventKind, index: int, buffer: PacketBuffer, begin_ns: int
    ) -> None:
        """Note that packet ``index`` has left, or has come, in this step."""
        server = self._cluster.rank_of_endpoint(self._owners[index].endpoint)
        name, end = recorder.name(str(buffer.packet)), time.monotonic_ns()
        recorder.record(kind, name, begin_ns, end, buffer.packet.nbytes, server, self.step)

    # -- words --

    @waits_for_cause(Cause.START)
    def _greeting(self) -> str:
        servers = ", ".join(self._cluster.endpoints)
        return f"{self._name} waiting for servers {servers} and all trainers to start"

    @waits_for_cause(Cause.SENDS)
    def _unsent(self) -> str:
        return f"{self._name}, step {self.step + 1}: sending {self._whole(self._sends)}"

    def _whole(self, requests: Sequence[Request]) -> str:
        """Name the packets whose requests have not ended, by server."""
        words = []
        received = requests is self._receives
        for i in self._unended(requests):
            packet = (self._parameters if received else self._gradients)[i].packet
            way = "from" if received else "to"
            words.append(f"{packet} {way} server {self._owners[i].endpoint}")
        return "; ".join(words) or ", ".join(self._cluster.endpoints)

    def _unended(self, requests: Sequence[Request]) -> list[int]:
        """Return the packets whose requests have not ended, or have failed."""
        unended = []
        for i, request in enumerate(requests):
            try:
                if not self._transport.test_all([request]):
                    unended.append(i)
            except RankFailure:
                unended.append(i)
        return unended

    def _unstarted(self) -> str:
        names = [
            str(packet) for packet, sent in zip(self._packets, self._sent, strict=True) if not sent
        ]
        return f"not sent: {'; '.join(names)}" if names else ""
