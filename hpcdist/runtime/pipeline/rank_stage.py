"""What one rank of a pipeline computes: its stage, for its micro-batches of every batch. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcdist.base.errors import PlanError
from hpcdist.graph.pipeline import of_micro_batch
from hpcdist.graph.printing import exact_text
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import SAME
from hpcdist.runtime.batches.scatter import batched_names
from hpcdist.runtime.pipeline.micro_batches import MicroBatches
from hpcdist.transpiler.group import PLAIN
from hpcdist.transpiler.pipeline_plan import ALL, PipelinePlan, make_pipeline_plan
from hpcdist.transpiler.pipeline_program import Stage, stage_program


@dataclass(frozen=True)
class RankStage:
    """One rank's part of ``main``: a stage (``group``), of one of its replicas.

    With S stages rank r is stage r % S of replica r // S.
    """

    main: Program
    plan: PipelinePlan
    batches: MicroBatches  # of all replicas
    micro_batches: int  # of each replica
    group: Stage

    @property
    def stage(self) -> int:
        """Which stage this rank computes."""
        return self.group.stage

    @property
    def replica(self) -> int:
        """Of which replica of the stages."""
        return self.group.trainer_id

    @property
    def ranks_of_replica(self) -> tuple[int, ...]:
        """The ranks of all stages of this replica."""
        begin = self.replica * self.plan.stages
        return tuple(range(begin, begin + self.plan.stages))

    @property
    def mine(self) -> slice:
        """Which micro-batches of a batch are this replica's."""
        begin = self.replica * self.micro_batches
        return slice(begin, begin + self.micro_batches)

    def program(self, metas: Sequence[Mapping[str, Meta]]) -> Program:
        """Return one step of this rank. ``metas``: shapes of all values, of each micro-batch."""
        return stage_program(self.batches.program, self.plan, self.group, metas)

    def any_program(self) -> Program:
        """Return one step of this rank for a batch of which nothing is known."""
        variables = self.batches.program.global_block().vars.values()
        return self.program([{var.name: var.meta for var in variables}])

    def once(self, name: str) -> bool:
        """Return whether a value is computed once in a step, and not for each micro-batch."""
        var = self.main.global_block().vars.get(name)
        persists = var is not None and var.persistable
        return persists or name in self.plan.gradients or name in self.plan.updated

    def stage_of(self, name: str) -> int:
        """Return the stage that has a value; `ALL` if each has it."""
        plan = self.plan
        maps = (plan.updated, plan.keeper, plan.computed)
        return next((stages[name] for stages in maps if name in stages), ALL)

    def computes(self, name: str) -> bool:
        """Return whether this rank has a value."""
        return self.stage_of(name) in (self.stage, ALL)

    def local_names(self, name: str) -> list[str]:
        """Return a value's names here: one for each micro-batch, or its own."""
        if self.once(name) or self.stage_of(name) == ALL:
            return [name]
        of = self.batches.of_rows(name)
        count = 1 if of.how is SAME.how else self.micro_batches
        return [of_micro_batch(name, m) for m in range(count)]


def rank_stage(main: Program, endpoints: Sequence[str], rank: int) -> RankStage:
    """Cut ``main`` into stages for the ranks of these endpoints. PlanError if it cannot be."""
    cut, size = main.pipeline, len(endpoints)
    assert cut is not None
    stages = make_pipeline_plan(main, cut, several_parts=False).stages
    if size % stages:
        raise PlanError(
            f"rank {rank}: the program is cut into {stages} stages, which {size} ranks cannot "
            f"share: start {stages} ranks, or {2 * stages}, {3 * stages}, ... for replicas"
        )
    micro_batches = 1  # if there are no rows to divide
    if batched_names(main):
        micro_batches = 2 * stages if cut.micro_batches is None else cut.micro_batches
    batches = MicroBatches(main, size // stages * micro_batches)
    plan = make_pipeline_plan(batches.program, cut, batches.count > 1)
    replica, stage = divmod(rank, stages)
    of_stage = tuple(endpoints[stage::stages])
    group = Stage(
        "grad_allreduce",
        of_stage,
        replica,
        of_stage[replica],
        fusing=PLAIN,
        owners=plan.keeper,
        fingerprint=hashlib.sha256(exact_text(main).encode()).hexdigest(),
        stage=stage,
        stages=stages,
    )
    return RankStage(main, plan, batches, micro_batches, group)
