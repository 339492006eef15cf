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
        self._finish_all = [self._waiter(sends) for sends in self._sends]
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
        return self._finish_all[packet]

    def answerer(self, packet: int, trainers: Sequence[int]) -> Callable[[], object]:
        """Return the call that answers these trainers, and takes their next gradients."""
        return self._answer(packet, trainers, [self._receives[packet][k] for k in trainers])

    def receiver(self, packet: int, trainers: Sequence[int]) -> Callable[[], object]:
        """Return the call that takes the next gradients of these trainers."""
        return self._transport.starter([self._receives[packet][k] for k in trainers])

    def sender(self, packet: int, trainers: Sequence[int]) -> Callable[[], object]:
        """Return the call that answers these trainers with the parameters as they are then."""
        return self._answer(packet, trainers, [])

    def _answer(
        self, packet: int, trainers: Sequence[int], receives: list[Request]
    ) -> Callable[[], object]:
        """Return the call that answers these trainers, and starts these receives with that."""
        sends, live = [self._sends[packet][k] for k in trainers], self._live[packet]
        start = self._transport.starter(receives + sends)
        before: list[Callable[[], object]] = [live.gather] if packet in self._staged else []
        if self._own_answers:
            copies = [self._copies[packet][k] for k in trainers]
            before += [self._waiter(sends)]
            before += [functools.partial(copy.__setitem__, ..., live.bytes) for copy in copies]
        if not before:
            return start

        def answer() -> None:
            for call in before:
                call()
            start()

        return answer

    def settle(self) -> None:
        """Wait until all answers have left: then parameters may be changed in place."""
        for finish in self._finish_all:
            finish()

    def close(self) -> None:
        """Wait until all answers have left, and free the requests of the sends."""
        self.settle()
        for sends in self._sends:
            self._transport.release(sends)

    def _waiter(self, sends: Sequence[Request]) -> Callable[[], object]:
        """Return the wait until these answers have left."""
        transport, describe, deadline_s = self._transport, self._describe, self._deadline_s
        finish = transport.waiter_all(sends, describe, deadline_s)
        if not transport.tolerant:
            return finish

        def wait() -> None:
            try:
                finish()
            except RankFailure:  # the living still get theirs
                finish_sends(transport, sends, describe, deadline_s)

        return wait
