"""The packets of a step: gradients out, parameters in, straight from and to arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcdist.base.errors import CommError
from hpcdist.base.trace import events
from hpcdist.base.trace.events import Cause, waits_for_cause
from hpcdist.base.trace.recorder import recorder
from hpcdist.comm.base import Array, Request, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import deadline_error, naming_ranks
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

    def post_receives(self) -> None:
        """Post the receives of this step's parameters; their old values must not be in use."""
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
        gradients = self._gradients[index]
        if not gradients.in_place:
            gradients.gather()
        self._start_sends[index]()
        if noted:
            self._note(events.EventKind.SENT, index, gradients, begin)

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
        """Return the replies of this step that have not arrived."""
        return f"{self._name}, step {self.step + 1}: waiting for {self._names_of(self._receives)}"

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
        self._start_sends = [transport.starter([send]) for send in self._sends]
        if self._receives:
            self._start_receives = transport.starter(self._receives)
        deadline_s = self._deadline_s
        sent = transport.waiter_all(self._sends, self._unsent, deadline_s)
        self._finish_sends = naming_ranks(sent, lambda: self._silent(self._sends))
        ended = transport.waiter_all(self._exchange, self.awaited, deadline_s)
        self._finish_exchange = naming_ranks(ended, lambda: self._silent(self._receives))
        self._scattered = [buffer for buffer in self._parameters if not buffer.in_place]
        self._sent = [False] * len(self._packets)

    def sent_to(self, endpoint: str) -> dict[int, int]:
        """Return how often each packet has been sent to a server, by its tag."""
        return {
            packet.tag: self.step + sent
            for plan, packet, sent in zip(self._owners, self._packets, self._sent, strict=True)
            if plan.endpoint == endpoint
        }

    def take_last_answers(self) -> None:
        """Wait for the answers to what was sent of a step that goes no further; release all."""
        begun = [i for i, sent in enumerate(self._sent) if sent]
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

    @waits_for_cause(Cause.SENDS)
    def _unsent(self) -> str:
        return f"{self._name}, step {self.step + 1}: sending {self._names_of(self._sends)}"

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
        names = [
            str(packet) for packet, sent in zip(self._packets, self._sent, strict=True) if not sent
        ]
        return f"not sent: {'; '.join(names)}" if names else ""

    def wait_receives(self) -> None:
        """End the step: wait for the parameters that answer the packets sent, all of them."""
        if not self._posted or not all(self._sent):
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
        self._posted = False
        self._sent = [False] * len(self._sent)
        self.step += 1
