"""The step path of a server: packets that are due are applied, and then answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcdist.base.trace.recorder import recorder
from hpcdist.ps.packet_log import PacketLog
from hpcdist.ps.persistent_requests import StepExchange
from hpcdist.ps.shards import DuePacket, Shards
from hpcdist.ps.whole_steps import WholeSteps

Call = Callable[[], object]
OnStepBegin = Callable[[int], None]  # (step): before the first update of a step
# (packet index, contributors): the calls that update it, made once and called in many steps
BindPacket = Callable[[int, tuple[int, ...]], Sequence[Call]]


class PacketUpdates:
    """Carries out what ``shards`` decides; the first ``dense`` packets are answered here.

    With ``whole_steps`` the packets of a step are applied when all of them are due, and then
    answered. ``own_answers``: see `StepExchange`.
    """

    def __init__(
        self,
        shards: Shards,
        exchange: StepExchange,
        log: PacketLog,
        *,
        trainers: int,
        dense: int,
        own_answers: bool,
        whole_steps: WholeSteps | None,
    ) -> None:
        self._shards = shards
        self._exchange = exchange
        self._log = log
        self._trainers = trainers
        self._dense = dense
        self._own_answers = own_answers
        self._whole_steps = whole_steps
        self._on_step_begin: OnStepBegin = lambda step: None
        self._bind_packet: BindPacket = lambda packet, contributors: ()
        self._applied: dict[tuple[int, tuple[int, ...]], Call] = {}
        # By the id of an update, with itself: no other one has that id while it is here. To look
        # for an equal one would compare all of it in every step.
        self._carried_out: dict[int, tuple[DuePacket, Call]] = {}

    def bind(self, on_step_begin: OnStepBegin, bind_packet: BindPacket) -> None:
        """Take what is called before a step, and what binds the updates of a packet."""
        self._on_step_begin, self._bind_packet = on_step_begin, bind_packet
        self._applied.clear()
        self._carried_out.clear()

    def taker(self, trainer: int, packet: int) -> Callable[[], bool]:
        """Bind the call for a trainer's packet that has come: it carries out the updates due by it.

        It returns whether anything was.
        """
        counts, note = self._log.arrived[trainer], self._log.note_arrived
        arrived, known, bound = self._shards.arrived, self._carried_out, self._bound

        def take() -> bool:
            counts[packet] = number = counts[packet] + 1
            if not number & recorder.mask:
                note(trainer, packet, number)
            update = arrived(trainer, packet)
            if update is None:
                return False
            _, call = known.get(id(update)) or bound(update)
            call()
            return True

        return take

    def carry_out(self, update: DuePacket) -> None:
        """Apply an update, or all of its step, and answer the trainers."""
        self._bound(update)[1]()

    def _bound(self, update: DuePacket) -> tuple[DuePacket, Call]:
        """Return the call that carries an update out, kept where steps have the same again."""
        if self._whole_steps is not None:
            return update, lambda: self._add_to_step(update)
        packet, contributors, begins, answers = update
        apply, answer = self._apply_of(packet, contributors), self._answer_of(update)
        on_step_begin, shards = self._on_step_begin, self._shards

        def carry_out() -> None:
            if begins:
                on_step_begin(shards.step)
            apply()
            answer()

        if answers == ((packet, contributors),):  # those of other trainers come in many orders
            self._carried_out[id(update)] = update, carry_out
        return update, carry_out

    def _add_to_step(self, update: DuePacket) -> None:
        assert self._whole_steps is not None
        due = self._whole_steps.add(update)
        if any(one.begins_step for one in due):
            self._on_step_begin(self._shards.step)
        for one in due:
            self._apply_of(one.packet, one.contributors)()
        for one in due:
            self._answer_of(one)()

    def reached(self, packet: int, trainer: int, step: int) -> bool:
        """Return whether a packet is as a trainer must see it in ``step``."""
        pending = self._whole_steps is not None and self._whole_steps.holds(packet)
        return not pending and self._shards.reached(trainer, packet, step)

    def _apply_of(self, packet: int, contributors: tuple[int, ...]) -> Call:
        """Return the call that applies a packet of these trainers, made once."""
        known = self._applied.get((packet, contributors))
        if known is None:
            known = self._applied[packet, contributors] = self._bound_apply(packet, contributors)
        return known

    def _bound_apply(self, packet: int, contributors: tuple[int, ...]) -> Call:
        if packet < self._dense and not contributors:
            return _nothing
        calls = list(self._bind_packet(packet, contributors))
        if packet < self._dense and not self._own_answers:
            calls.insert(0, self._exchange.settler(packet))
        return self._log.applying(packet, contributors, calls)

    def _answer_of(self, update: DuePacket) -> Call:
        """Return the call that sends updated parameters, and takes the next gradients."""
        packet, contributors, _, answers = update
        exchange, dense = self._exchange, self._dense
        took = packet < dense and bool(contributors)
        if took and answers == ((packet, contributors),):
            return exchange.answerer(packet, contributors)

        calls = [exchange.receiver(packet, contributors)] if took else []
        calls += [exchange.sender(which, trainers) for which, trainers in answers if which < dense]
        if len(calls) == 1:
            return calls[0]

        def answer() -> None:
            for call in calls:
                call()

        return answer


def _nothing() -> None:
    """Do nothing."""
