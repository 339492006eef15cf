"""A server's persistent requests of the step path: gradients in, parameters out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from hpcdist.base.errors import RankFailure
from hpcdist.comm.base import Array, Request, Transport
from hpcdist.ps.messages import GRADIENT_TAG, PARAMETER_TAG, Hello
from hpcdist.ps.packets import PacketBuffer, aligned_bytes, layout
from hpcdist.ps.wire import finish_sends


class StepExchange:
    """What every trainer sends in a step, and what it is answered.

    Gradients of trainer k arrive in row k of one arena: ``gradients[name]`` is [trainers, *shape],
    ``rows[packet]`` is [trainers, bytes].
    Answers leave from the parameters themselves, so these must not change while an answer is under
    way; with ``own_answers`` every trainer has a copy that its answer leaves from, and a slow one
    keeps nobody waiting.
    """

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int],
        expected: Hello,
        arrays: Mapping[str, Array],
        *,
        own_answers: bool,
        describe: Callable[[], str],
        deadline_s: float,
    ) -> None:
        self._transport = transport
        self._ranks = ranks
        self._expected = expected
        self._own_answers = own_answers
        self._describe = describe
        self._deadline_s = deadline_s
        offsets, nbytes = layout(expected.gradients)
        arena = aligned_bytes((len(ranks), nbytes))
        self.rows = [
            arena[:, begin : begin + packet.nbytes]
            for packet, begin in zip(expected.gradients, offsets, strict=True)
        ]
        self.gradients: dict[str, Array] = {}
        for packet, rows in zip(expected.gradients, self.rows, strict=True):
            self.gradients.update(packet.views(rows))
        self._live = [PacketBuffer(packet, arrays) for packet in expected.parameters]
        self._staged = {i for i, buffer in enumerate(self._live) if not buffer.in_place}
        self._copies: list[Array] = []  # by packet: [trainers, bytes]
        self._receives: list[list[Request]] = []  # by packet, then trainer
        self._sends: list[list[Request]] = []
        self._start_all: list[Callable[[], None]] = []
        self._finish_all: list[Callable[[], object]] = []

    def open(self) -> list[Request]:
        """Make all requests; return the receives, trainer by trainer. None is posted yet."""
        transport = self._transport
        for packet, rows, live in zip(self._expected.gradients, self.rows, self._live, strict=True):
            copies = aligned_bytes((len(self._ranks), live.bytes.nbytes))
            self._copies.append(copies)
            self._receives.append(
                [
                    transport.recv_init(rows[k], rank, GRADIENT_TAG + packet.tag)
                    for k, rank in enumerate(self._ranks)
                ]
            )
            self._sends.append(
                [
                    transport.send_init(
                        copies[k] if self._own_answers else live.bytes,
                        rank,
                        PARAMETER_TAG + packet.tag,
                    )
                    for k, rank in enumerate(self._ranks)
                ]
            )
        self._start_all = [
            transport.starter(receives + sends)
            for receives, sends in zip(self._receives, self._sends, strict=True)
        ]
        self._finish_all = [
            transport.waiter_all(sends, self._describe, self._deadline_s) for sends in self._sends
        ]
        return [request for column in zip(*self._receives, strict=True) for request in column]

    def admit(self, trainers: Sequence[int]) -> None:
        """Take the first gradients of these trainers."""
        for packet in range(len(self._receives)):
            self.receiver(packet, trainers)()

    def settler(self, packet: int) -> Callable[[], object]:
        """Return the wait until the last answers have left, before their parameters change.

        Where answers leave from the parameters, they have been received, or their trainers would
        not have sent again; this only lets the transport close the requests.
        """
        return functools.partial(self._finish, self._sends[packet], self._finish_all[packet])

    def answerer(self, packet: int) -> Callable[[], object]:
        """Return the call that answers every trainer, and takes its next gradients."""
        start = self._start_all[packet]
        if packet not in self._staged:
            return start
        gather = self._live[packet].gather

        def answer() -> None:
            gather()
            start()

        return answer

    def receiver(self, packet: int, trainers: Sequence[int]) -> Callable[[], object]:
        """Return the call that takes the next gradients of these trainers."""
        return self._transport.starter([self._receives[packet][k] for k in trainers])

    def sender(self, packet: int, trainers: Sequence[int]) -> Callable[[], object]:
        """Return the call that answers these trainers with the parameters as they are then."""
        sends = [self._sends[packet][k] for k in trainers]
        start, live = self._transport.starter(sends), self._live[packet]
        staged, copies = packet in self._staged, [self._copies[packet][k] for k in trainers]
        gone = self._transport.waiter_all(sends, self._describe, self._deadline_s)

        def send() -> None:
            if staged:
                live.gather()
            if self._own_answers:
                self._finish(sends, gone)
                for copy in copies:
                    copy[:] = live.bytes
            start()

        return send

    def settle(self) -> None:
        """Wait until all answers have left: then parameters may be changed in place."""
        for sends, finish in zip(self._sends, self._finish_all):
            self._finish(sends, finish)

    def close(self) -> None:
        """Wait until all answers have left, and free the requests of the sends."""
        self.settle()
        for sends in self._sends:
            self._transport.release(sends)

    def _finish(self, sends: Sequence[Request], finish: Callable[[], object]) -> None:
        try:
            finish()
        except RankFailure:  # the living still get theirs
            finish_sends(self._transport, sends, self._describe, self._deadline_s)
