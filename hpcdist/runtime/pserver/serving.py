"""How a server applies packets: those of all trainers together, or each separately."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import CommError
from hpcdist.base.trace.position import here
from hpcdist.executor.control import Binding
from hpcdist.executor.loop_runs import join_loops
from hpcdist.graph.registry import Call
from hpcdist.ps.async_shards import AsyncShards
from hpcdist.ps.packets import Packet
from hpcdist.ps.server import PsServer
from hpcdist.ps.shards import Shards, SyncShards
from hpcdist.runtime.pserver.exchange_plan import STALENESS, STEP
from hpcdist.runtime.pserver.optimize_block import Apply, OptimizeBlock, bind_back_up
from hpcdist.runtime.pserver.update_watch import UpdateWatch
from hpcdist.transpiler.pserver import ServerPlan


class Serving:
    """Synchronous: packets of all trainers are merged; the schedule runs when a step begins.

    ``turns``: which of the Programs that train in turns has each packet; each has its schedule.
    """

    arrays: Mapping[str, Any] = {}  # what trainers are answered with beside variables

    def __init__(
        self,
        trainers: int,
        packets: int,
        schedules: Sequence[Call | None],
        turns: Sequence[int] = (),
    ) -> None:
        self._steps = SyncShards(trainers, packets, turns)
        self.shards: Shards = self._steps
        self._schedules = schedules
        self._updates: Sequence[Sequence[Apply]] = ()
        self._watch: UpdateWatch | None = None

    def bind(
        self,
        server: PsServer,
        updates: Sequence[Sequence[Apply]],
        packets: Sequence[Packet],
        watch: UpdateWatch,
    ) -> None:
        """Take what applies each packet; the first of them are dense ``packets``."""
        self._updates, self._watch = updates, watch

    def on_read(self, trainer: int) -> None:
        """Note that a trainer reads its first values."""

    def begin_step(self, step: int) -> None:
        """Do what comes before the first update of a step."""
        here.step = step + 1
        schedule = self._schedules[self._steps.turn]
        if schedule is not None:
            schedule()

    def bound(self, packet: int, contributors: tuple[int, ...]) -> list[Call]:
        """Return the calls that merge and apply a packet of these trainers, in every step."""
        looks = [] if self._watch is None else self._watch.looks(packet, contributors, self.step_of)
        updates = [update(contributors) for update in self._updates[packet]]
        return [*looks, *join_loops(updates)[0]]

    def step_of(self, trainer: int) -> int:
        """Return the step in which a trainer's packets are applied now."""
        return here.step

    def after_load(self) -> None:
        """Go on from a checkpoint: the next step begins with the schedule."""


class AsynchronousServing(Serving):
    """A packet is applied when it arrives; exchanges are numbered, and answered with the staleness.

    Each trainer's steps are counted in a separate variable, which the schedule adds up; it runs
    again after each whole exchange of a trainer.
    """

    def __init__(
        self,
        plan: ServerPlan,
        packets: int,
        schedule: Call | None,
        blocks: Sequence[OptimizeBlock],
        binding: Binding,
    ) -> None:
        trainers = plan.plan.trainers
        super().__init__(trainers, packets, [schedule])
        self._schedule = schedule
        self._async_shards = AsyncShards(trainers, packets, plan.mode.max_staleness)
        self.shards = self._async_shards
        self.arrays = {STALENESS: np.zeros(2, np.int64)}
        self._back_up = bind_back_up(blocks, binding)
        self._packets = packets
        self._counters = [binding.scope.var(name) for name in plan.plan.counters]
        self._arrived = [0] * trainers  # packets
        self._expected = [0] * trainers  # the number of the next exchange
        self._step_packet = -1
        self._numbers: Any = None  # (exchange, steps merged in it) of each trainer

    def on_read(self, trainer: int) -> None:
        self._async_shards.begins(trainer)
        self._back_up(trainer)

    def bind(
        self,
        server: PsServer,
        updates: Sequence[Sequence[Apply]],
        packets: Sequence[Packet],
        watch: UpdateWatch,
    ) -> None:
        super().bind(server, updates, packets, watch)
        self._numbers = server.gradients[STEP.name]
        (self._step_packet,) = (i for i, packet in enumerate(packets) if STEP in packet.variables)
        self.after_load()

    def begin_step(self, step: int) -> None:
        """Nothing: every trainer has steps of its own."""

    def step_of(self, trainer: int) -> int:
        return self._arrived[trainer] // self._packets + 1

    def bound(self, packet: int, contributors: tuple[int, ...]) -> list[Call]:
        (trainer,) = contributors
        calls: list[Call] = [*super().bound(packet, contributors)]
        if packet == self._step_packet:
            calls.insert(0, functools.partial(self._check_number, trainer))
        return [*calls, functools.partial(self._count, trainer)]

    def _count(self, trainer: int) -> None:
        self._arrived[trainer] += 1
        if self._schedule and self._counters and self._arrived[trainer] % self._packets == 0:
            self._counters[trainer].value += self._numbers[trainer][1]
            self.after_load()

    def after_load(self) -> None:
        if self._schedule is not None:
            self._schedule()

    def _check_number(self, trainer: int) -> None:
        """Check that numbers come without a gap or a repeat: no update is lost or applied twice."""
        number = self._numbers[trainer][0]
        if number != self._expected[trainer]:
            raise CommError(
                f"trainer {trainer} sent its step {number}, "
                f"expected step {self._expected[trainer]}: an update was lost or came twice"
            )
        self._expected[trainer] += 1
        self.arrays[STALENESS][0] = self._async_shards.staleness[trainer]
