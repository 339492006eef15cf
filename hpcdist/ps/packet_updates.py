"""The step path of a server: packets that are due are applied, and then answered."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpcdist.ps.packet_log import PacketLog
from hpcdist.ps.persistent_requests import StepExchange
from hpcdist.ps.shards import DuePacket, Shards
from hpcdist.ps.whole_steps import WholeSteps
from hpcdist.trace.recorder import recorder

OnStepBegin = Callable[[int], None]  # (step): before the first update of a step
OnPacket = Callable[[int, tuple[int, ...]], None]  # (packet index, contributors): update it


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
        self.on_step_begin: OnStepBegin = lambda step: None
        self.on_packet: OnPacket = lambda packet, contributors: None

    def arrived(self, trainer: int, packet: int) -> DuePacket | None:
        """Note that a trainer's packet has come; return the update that is due by it, if one is."""
        if recorder.on:
            self._log.arrived(trainer, packet)
        return self._shards.arrived(trainer, packet)

    def carry_out(self, update: DuePacket) -> None:
        """Apply an update, or all of its step, and answer the trainers."""
        if self._whole_steps is None:
            if update.begins_step:
                self.on_step_begin(self._shards.step)
            self._apply(update)
            self._answer(update)
            return
        due = self._whole_steps.add(update)
        if any(one.begins_step for one in due):
            self.on_step_begin(self._shards.step)
        for one in due:
            self._apply(one)
        for one in due:
            self._answer(one)

    def reached(self, packet: int, trainer: int, step: int) -> bool:
        """Return whether a packet is as a trainer must see it in ``step``."""
        pending = self._whole_steps is not None and self._whole_steps.holds(packet)
        return not pending and self._shards.reached(trainer, packet, step)

    def _apply(self, update: DuePacket) -> None:
        packet, contributors = update.packet, update.contributors
        if packet < self._dense and contributors:
            self._exchange.settle(packet)
        if packet >= self._dense or contributors:
            begin = time.monotonic_ns()
            self.on_packet(packet, contributors)
            if recorder.on and contributors:
                self._log.applied(packet, contributors, begin)

    def _answer(self, update: DuePacket) -> None:
        """Send parameters that have been updated, and take the next gradients."""
        packet, contributors, _, answers = update
        exchange = self._exchange
        if packet < self._dense and contributors:
            if len(contributors) == self._trainers and not self._own_answers:
                exchange.answer_all(packet)
                return
            exchange.receive(packet, contributors)
        for answered, trainers in answers:
            if answered < self._dense:
                exchange.answer(answered, trainers)
