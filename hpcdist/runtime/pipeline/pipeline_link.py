"""A rank's connections in a pipeline: to neighbouring stages, and to the replicas of its stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import CommError, HpcdistError, PlanError
from hpcdist.comm.base import Transport
from hpcdist.executor.backend import Backend
from hpcdist.executor.control import Binding
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.printing import exact_text
from hpcdist.graph.program import Program, program_of
from hpcdist.graph.registry import Call, Meta
from hpcdist.ops.communication.pipeline import PIPELINE_OPS
from hpcdist.runtime.collective.collective_link import CollectiveLink
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.job.substitution import ANOTHER
from hpcdist.runtime.pipeline.meeting import Meeting
from hpcdist.runtime.pipeline.rank_stage import RankStage, rank_stage
from hpcdist.runtime.pipeline.transfers import Transfers
from hpcdist.transpiler.pipeline_program import Stage, stage_startup


@dataclass(frozen=True)
class _Connected:
    """A rank's stage, with the connections that it needs."""

    stage: RankStage
    replicas: CollectiveLink  # of this stage
    transfers: Transfers  # from and to other stages


class PipelineLink(Link):
    """The connection of one rank of a pipeline to all others, for one Program that trains."""

    def __init__(
        self,
        everyone: CollectiveLink,
        trainers: Transport,
        endpoints: tuple[str, ...],
        deadline_s: float,
    ) -> None:
        """``everyone`` connects all ranks, which have these ``endpoints``."""
        self._everyone = everyone
        self.trainers = trainers
        self._endpoints = endpoints
        self.deadline_s = deadline_s
        self.meeting = Meeting(trainers, deadline_s)
        self._connections: _Connected | None = None  # once a Program was transpiled
        self._layouts: WeakKeyDictionary[Scope, int] = WeakKeyDictionary()  # of the last step
        self._completed: set[tuple[int, str]] = set()  # by scope: held here until the next step

    # -- which Program -----------------------------------------------------------------------
    def substitute(self, program: Program) -> Program:
        staged = isinstance(program.distribution, Stage)
        if not staged and (program.trains or program.main is not None):
            raise PlanError(f"rank {self.trainers.rank}: {ANOTHER}")
        return program

    def transpiled(
        self, mains: Sequence[Program], startup: Program
    ) -> tuple[list[Program], Program]:
        """Return one step of this rank's stage, and what initializes it. Collective."""
        trainers, rank = self.trainers, self.trainers.rank
        if self._connections is not None:
            raise PlanError(f"rank {rank}: {ANOTHER}")
        (main,) = mains
        self.meeting.agree(exact_text(main) + str(main.pipeline), "the other ranks' programs")
        stage = rank_stage(main, self._endpoints, rank)
        alike = trainers.split(stage.stage, stage.replica)
        replicas = CollectiveLink(alike, stage.group.endpoints, self.deadline_s)
        beside = trainers.split(stage.replica, stage.stage)
        transfers = Transfers(beside, stage.ranks_of_replica, self.deadline_s)
        self._connections = _Connected(stage, replicas, transfers)
        return [stage.any_program()], stage_startup(startup, stage.plan, stage.group)

    @property
    def _connected(self) -> _Connected:
        assert self._connections is not None, "a stage is run once the Program was transpiled"
        return self._connections

    @property
    def stage(self) -> RankStage:
        """What this rank computes."""
        return self._connected.stage

    def refuse_uneven(self) -> None:
        raise HpcdistError(
            "even_batches(how='join'): every rank of a pipeline is fed whole batches, and none can "
            "be missing: use 'pad' or 'cut'"
        )

    def begin_stage(self, program: Program, scope: Scope) -> None:
        """Before this stage trains for the first time: let its replicas begin alike."""
        self._connected.replicas.begin(program, scope)

    # -- what other stages keep --------------------------------------------------------------
    def complete(self, names: Sequence[str], scope: Scope) -> None:
        """Hold all of these variables here, also those that other stages keep. Collective.

        Until the next step that trains.
        """
        key, stage = id(scope), self.stage
        keeper = stage.plan.keeper
        stage_values = sorted(keeper.keys() & set(names))
        if all((key, name) in self._completed for name in stage_values):
            return
        block = stage.main.global_block()
        kept_here = [n for n in stage_values if keeper[n] == stage.stage and not stage.replica]
        arrays = {n: on_host(_value(scope, n)) for n in kept_here}
        body = b"".join(np.ascontiguousarray(arrays[n]).tobytes() for n in kept_here)
        awaited = f"the other stages' {', '.join(stage_values[:3])}"
        doing = f"asks for {awaited}"
        gathered = self.meeting.exchange(
            "\n".join(["keep", *stage_values]), body + b".", awaited, doing
        )
        if b"" in gathered:
            raise CommError(
                f"rank {self.trainers.rank} {doing}, but the script of rank {gathered.index(b'')} "
                "has ended: all ranks of a pipeline must run the same programs, and save together"
            )
        starts = dict.fromkeys(range(stage.plan.stages), 0)
        for name in stage_values:
            source, var = keeper[name], block.var(name)
            size = int(np.prod(var.shape, dtype=np.int64))
            array = np.frombuffer(gathered[source], var.dtype, size, starts[source])
            starts[source] += array.nbytes
            if source != stage.stage:
                scope.var_or_new(name).take(array.reshape(var.shape))
        self._completed.update((key, name) for name in stage_values)

    def forget(self, scope: Scope) -> None:
        """Drop what other stages keep: the step that begins moves it."""
        self._completed.clear()
        if self._layouts.get(scope) == scope.layout:
            return
        for name, stage in self.stage.plan.keeper.items():
            variable = scope.find_var(name)
            if stage != self.stage.stage and variable is not None and variable.value is not None:
                variable.hold(None)
        self._layouts[scope] = scope.layout

    # -- compiling ---------------------------------------------------------------------------
    def _link_of(self, ops: Sequence[Operator]) -> CollectiveLink:
        staged = isinstance(program_of(ops[0]).distribution, Stage)
        return self._connected.replicas if staged else self._everyone

    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Backend
    ) -> list[list[str]]:
        others = [op for op in ops if op.type not in PIPELINE_OPS]
        return self._link_of(others).contiguous(others, metas, backend) if others else []

    def memory(self, nbytes: int, backend: Backend) -> Any:
        return self._connected.replicas.memory(nbytes, backend)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        transfers = self._connected.transfers
        moving = {id(op): transfers.bind(op, binding) for op in ops if op.type in PIPELINE_OPS}
        others = [op for op in ops if id(op) not in moving]
        linked = iter(self._link_of(others).bind(others, binding) if others else [])
        return [moving[id(op)] if id(op) in moving else next(linked) for op in ops]

    # -- the end -----------------------------------------------------------------------------
    def close(self) -> None:
        self._connected.replicas.close()
        self._everyone.close()

    def end(self) -> None:
        self._connected.transfers.end()
        self._connected.replicas.end()
        self._everyone.end()


def _value(scope: Scope, name: str) -> Any:
    variable = scope.find_var(name)
    if variable is None or variable.value is None:
        raise PlanError(f"variable {name!r} is not initialized: run the startup program first")
    return variable.value
