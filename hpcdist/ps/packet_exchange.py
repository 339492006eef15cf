"""The packets of a step: gradients out, parameters in, straight from and to arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcdist.base.errors import CommError
from hpcdist.base.trace import events
from hpcdist.base.trace.events import Cause
from hpcdist.base.trace.recorder import recorder
from hpcdist.comm.base import Array, Request, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import deadline_error
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.messages import GRADIENT_TAG, PARAMETER_TAG
from hpcdist.ps.packets import Packet, PacketBuffer, VarSpec
from hpcdist.ps.wire import unended


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


class PacketExchange:
    """The dense packets of one Program, from one trainer to all servers and back.

    A step is ``post_receives``, ``send_packet`` for each packet as its gradients become ready,
    ``wait_sends`` (after it the gradients may be overwritten; may be left out) and
    ``wait_receives`` (after it the parameters are those of the next step).
    `exchanger` makes one call of its end.
    """

    def __init__(
        self, transport: Transport, cluster: Cluster, trainer_id: int, deadline_s: float
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._deadline_s = deadline_s
        self._name = f"trainer {trainer_id} (rank {transport.rank})"
        self.step = 0
        # All below are by packet index, over the plans in the order of their servers.
        self._plans: tuple[ServerArrays, ...] = ()
        self._owners: list[ServerArrays] = []
        self._packets: list[Packet] = []
        self._gradients: list[PacketBuffer] = []
        self._parameters: list[PacketBuffer] = []
        self._sends: list[Request] = []
        self._receives: list[Request] = []
        self._start_sends: list[Callable[[], None]] = []  # copying first what lies elsewhere
        self._start_receives: Callable[[], None] = _nothing
        self._finish_sends: Callable[[], object] = _nothing
        self._finish_exchange: Callable[[], object] = _nothing
        self._exchange: list[Request] = []
        self._scattered: list[PacketBuffer] = []
        # What a step still lacks, as bits: packets to be sent, and above them the receives. Kept in
        # one number, since this runs in every step, and after a wait all memory is cold.
        self._whole = self._lacks = self._receives_bit = 1
        self._looked_at: float | None = None  # since when, on the monotonic clock
        self._moves_rows = False
        self.awaited = _Awaited(self, Cause.PARAMETERS)

    @property
    def packets(self) -> tuple[Packet, ...]:
        """The gradient packets in the order that ``send_packet`` counts them."""
        return tuple(self._packets)

    def post_receives(self) -> None:
        """Post the receives of this step's parameters; their old values must not be in use."""
        self._start_receives()
        self._lacks &= ~self._receives_bit

    def send_packet(self, index: int) -> None:
        """Start sending packet ``index``; all its gradients must be there and stay as they are."""
        lacks, bit = self._lacks, 1 << index
        if not lacks & bit:
            raise CommError(f"{self._name}: {self._packets[index]} sent twice in one step")
        self._lacks = lacks ^ bit
        if self.step + 1 & recorder.mask:
            self._start_sends[index]()
            return
        begin = time.monotonic_ns()
        self._start_sends[index]()
        self._note(events.EventKind.SENT, index, self._gradients[index], begin)

    def exchanger(self, last: Sequence[int]) -> Callable[[], None]:
        """Return the call that sends these packets, the last of a step, and ends it.

        It does what `send_packet` of each, `post_receives` and `wait_receives` do, and starts all
        messages at once.
        """
        requests = self._receives + [self._sends[index] for index in last]
        start = self._transport.starter(requests) if requests else _nothing
        lacks, whole = self._receives_bit | sum(1 << index for index in last), self._whole
        finish, copied = self._finish_exchange, not all(b.in_place for b in self._gradients)
        if copied or self._scattered or self._moves_rows:
            lacks = -1  # never: there is more to do than to start messages, and to wait

        def exchange() -> None:
            if self._lacks == lacks and self.step + 1 & recorder.mask:
                self._lacks = 0
                start()
                finish()
                self._lacks = whole
                self.step += 1
                return
            for index in last:
                self.send_packet(index)
            self.post_receives()
            self.wait_receives()

        return exchange

    def wait_sends(self) -> None:
        """Wait until the gradients sent in this step may be overwritten."""
        self._finish_sends()

    def answered(self) -> bool:
        """Return whether `wait_receives` would not wait; this also lets messages move on.

        Raises DeadlineError when the answers should have come long ago.
        """
        if self._transport.test_all(self._exchange):
            return True
        now = time.monotonic()
        if self._looked_at is None:
            self._looked_at = now
        if now - self._looked_at > self._deadline_s:
            raise deadline_error(self.awaited, self._deadline_s)
        return False

    def prepare(self, plans: Sequence[ServerArrays]) -> None:
        """Make the messages of a step: a gradient and a parameter packet for each of ``plans``."""
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
        self._start_sends = [
            start if buffer.in_place else _after(buffer.gather, start)
            for buffer, start in zip(self._gradients, [transport.starter([s]) for s in self._sends])
        ]
        if self._receives:
            self._start_receives = transport.starter(self._receives)
        deadline_s, unsent = self._deadline_s, _Awaited(self, Cause.SENDS)
        self._finish_sends = transport.waiter_all(self._sends, unsent, deadline_s)
        self._finish_exchange = transport.waiter_all(self._exchange, self.awaited, deadline_s)
        self._scattered = [buffer for buffer in self._parameters if not buffer.in_place]
        self._receives_bit = 1 << len(self._packets)
        self._whole = self._lacks = 2 * self._receives_bit - 1
        self._moves_rows = any(plan.tables or plan.row_tables for plan in plans)

    def sent_to(self, endpoint: str) -> dict[int, int]:
        """Return how often each packet has been sent to a server, by its tag."""
        return {
            packet.tag: self.step + self._has_sent(index)
            for index, (plan, packet) in enumerate(zip(self._owners, self._packets, strict=True))
            if plan.endpoint == endpoint
        }

    def take_last_answers(self) -> None:
        """Wait for the answers to what was sent of a step that goes no further; release all."""
        begun = [*filter(self._has_sent, range(len(self._packets)))]
        answers = [self._receives[i] for i in begun]
        self._transport.wait_all(answers, self.awaited, self._deadline_s)
        for i in begun:
            self._parameters[i].scatter()
        self._transport.release(self._exchange)

    def _note(
        self, kind: events.EventKind, index: int, buffer: PacketBuffer, begin_ns: int
    ) -> None:
        """Note that packet ``index`` has left, or has come, in this step."""
        server = self._cluster.rank_of_endpoint(self._owners[index].endpoint)
        packet = buffer.packet
        recorder.message(kind, str(packet), begin_ns, packet.nbytes, server, self.step)

    def _has_sent(self, index: int) -> bool:
        """Return whether a packet has been sent in this step."""
        return not self._lacks >> index & 1

    def _names_of(self, requests: Sequence[Request]) -> str:
        """Name the packets whose requests have not ended, by server."""
        words = []
        received = requests is self._receives
        for i in unended(self._transport, requests):
            packet = (self._parameters if received else self._gradients)[i].packet
            way = "from" if received else "to"
            words.append(f"{packet} {way} server {self._owners[i].endpoint}")
        return "; ".join(words) or ", ".join(self._cluster.endpoints)

    def _silent(self, requests: Sequence[Request]) -> list[int]:
        """Return the ranks of the servers whose packets have not come, or have not gone."""
        slow = {self._owners[i].endpoint for i in unended(self._transport, requests)}
        return sorted(map(self._cluster.rank_of_endpoint, slow))

    def _unstarted(self) -> str:
        names = [str(p) for i, p in enumerate(self._packets) if not self._has_sent(i)]
        return f"not sent: {'; '.join(names)}" if names else ""

    def wait_receives(self) -> None:
        """End the step: wait for the parameters that answer the packets sent, all of them."""
        if self._lacks:
            raise CommError(
                f"{self._name}, step {self.step + 1}: cannot end the step, "
                f"{self._unstarted() or 'receives are not posted'}"
            )
        self._finish_exchange()
        if not self.step + 1 & recorder.mask:
            for index, buffer in enumerate(self._parameters):
                self._note(events.EventKind.RECEIVED, index, buffer, time.monotonic_ns())
        for buffer in self._scattered:
            buffer.scatter()
        self._lacks, self._looked_at = self._whole, None
        self.step += 1
        if self._moves_rows:
            self._finish_rows()

    def _finish_rows(self) -> None:
        """Wait until rows that were pushed beside the packets may be overwritten."""


def _nothing() -> None:
    """Do nothing."""


def _after(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    """Return one call that makes these two."""

    def both() -> None:
        first()
        then()

    return both


@dataclass(frozen=True)
class _Awaited:
    """Describes what a step still waits for: packets that have not left, or their answers."""

    exchange: PacketExchange
    cause: Cause

    def __call__(self) -> str:
        exchange = self.exchange
        waits = "sending" if self.cause is Cause.SENDS else "waiting for"
        words = exchange._names_of(self._requests)
        return f"{exchange._name}, step {exchange.step + 1}: {waits} {words}"

    def missing_ranks(self) -> tuple[int, ...]:
        return tuple(self.exchange._silent(self._requests))

    @property
    def _requests(self) -> list[Request]:
        exchange = self.exchange
        return exchange._sends if self.cause is Cause.SENDS else exchange._receives
