"""The plan of a pipeline: what each stage computes, keeps and sends. Pure.

A stage computes its part of the forward pass, the backward pass of that part, and the updates of
the parameters it reads. Values that several stages need for the update, such as a global norm, are
computed on all of them, from exchanged parts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX
from hpcdist.graph.op_role import ROLE_VAR_ATTR
from hpcdist.graph.operator import Operator
from hpcdist.graph.pipeline import PipelineCut
from hpcdist.graph.program import Program
from hpcdist.transpiler.pipeline_cut import (
    Phase,
    phase_of,
    refuse_other_order,
    refuse_uncuttable,
    stages_by_cuts,
    stages_by_devices,
)

ALL = -1  # in place of a stage: every one
JOINT = 1024  # elements: larger values are not told to all stages for an update


@dataclass(frozen=True)
class Transfer:
    """A value that one stage sends to another: for each micro-batch, or ``once`` in the update."""

    name: str
    source: int
    target: int
    once: bool


@dataclass(frozen=True)
class PipelinePlan:
    """Stages of a Program. ``ops[i]`` are phase and stage of operator i of block 0.

    ``keeper``: the stage of each persistable variable, those of `ALL` left out. ``computed``: the
    stage of each value that is computed for each micro-batch. ``transfers`` are numbered, as tags.
    ``gradients``: of each gradient that an update reads, the parameter.
    """

    stages: int
    ops: tuple[tuple[Phase, int], ...]
    keeper: Mapping[str, int]
    computed: Mapping[str, int]
    updated: Mapping[str, int]
    transfers: tuple[Transfer, ...]
    gradients: Mapping[str, str]


def make_pipeline_plan(program: Program, cut: PipelineCut, several_parts: bool) -> PipelinePlan:
    """Cut a Program that trains. PlanError says what cannot be cut.

    ``several_parts``: its batches are divided, into micro-batches or among replicas.
    """
    block = program.global_block()
    phases = [phase_of(op) for op in block.ops]
    refuse_uncuttable(block, phases, several_parts)
    refuse_other_order(block, phases)
    forward = [op for op, phase in zip(block.ops, phases) if phase is Phase.FORWARD]
    if cut.cuts is None:
        stages, by_forward = stages_by_devices(forward)
    else:
        stages, by_forward = len(cut.cuts) + 1, stages_by_cuts(forward, cut.cuts)
    for stage in range(stages):
        if stage not in by_forward.values():
            raise PlanError(
                f"pipeline: stage {stage} of {stages} has no operators: each entry of cut_list "
                "must name something that is computed after the entry before it"
            )
    return _Planner(block, phases, stages, by_forward).plan()


class _Planner:
    """Finds the stages of all operators, one after the other."""

    def __init__(
        self, block: Block, phases: Sequence[Phase], stages: int, forward: Mapping[int, int]
    ) -> None:
        self._block = block
        self._phases = phases
        self._stages = stages
        self._of_op = dict(forward)
        self._computed: dict[str, int] = {}  # for each micro-batch
        self._updated: dict[str, int] = {}  # once in a step
        self._keeper: dict[str, int] = {}
        self._transfers: dict[Transfer, None] = {}
        backward = self._ops(Phase.BACKWARD)
        self._backward_values = {name for op in backward for name in op.output_arg_names}

    def _ops(self, *phases: Phase) -> list[Operator]:
        return [op for op, phase in zip(self._block.ops, self._phases) if phase in phases]

    def plan(self) -> PipelinePlan:
        """Return the plan of which stage computes, keeps and sends each value."""
        micro = self._ops(Phase.FORWARD, Phase.BACKWARD)
        for op in self._ops(Phase.FORWARD):
            self._note(op, self._of_op[id(op)])
        self._keep_values_read(self._ops(Phase.FORWARD))
        for op in self._ops(Phase.BACKWARD):
            self._note(op, self._backward_stage(op))
        self._keep_values_read(micro)
        for op in micro:
            self._transfer_inputs(op)
        self._refuse_idle_stages()
        for op in self._ops(Phase.SCHEDULE):
            self._refuse_read(op, self._computed.keys())
            self._of_op[id(op)] = ALL
            self._updated.update(dict.fromkeys(op.output_arg_names, ALL))
        self._update_stages(self._ops(Phase.UPDATE))
        for op in self._ops(Phase.UPDATE):
            self._check_update(op)
        gradients = self._gradients()
        stages = [self._of_op[id(op)] for op in self._block.ops]
        return PipelinePlan(
            self._stages,
            tuple(zip(self._phases, stages)),
            {name: stage for name, stage in self._keeper.items() if stage != ALL},
            self._computed,
            self._updated,
            tuple(self._transfers),
            gradients,
        )

    def _note(self, op: Operator, stage: int) -> None:
        self._of_op[id(op)] = stage
        for name in op.output_arg_names:
            if name == EMPTY:
                continue
            if self._block.is_persistable(name):
                self._keeper.setdefault(name, stage)
            elif self._computed.setdefault(name, stage) != stage:
                raise PlanError(
                    f"pipeline: {name!r} is written in stages {self._computed[name]} and {stage}: "
                    "cut where nothing is overwritten"
                )

    def _backward_stage(self, op: Operator) -> int:
        """Return the stage of the forward operator that this is the gradient of.

        It reads values of it, or gradients of values of it.
        """
        inputs = [self._stage_of(name) for name in op.input_arg_names]
        stages = [stage for stage in inputs if stage is not None]
        if not stages:
            stages = [s for n in op.output_arg_names if (s := self._stage_of(n)) is not None]
        if not stages:
            raise PlanError(f"pipeline: {op.place} {op}: which stage it belongs to is not known")
        return max(stages)

    def _stage_of(self, name: str) -> int | None:
        origin = name.split(GRAD_SUFFIX)[0]
        for candidate in (origin, name):
            stage = self._computed.get(candidate, self._keeper.get(candidate))
            if stage is not None and stage != ALL:
                return stage
        return None

    def _keep_values_read(self, ops: Sequence[Operator]) -> None:
        """Note which stage keeps a persistable variable that operators of the passes read."""
        updated = {n for op in self._ops(Phase.UPDATE) for n in op.output_arg_names}
        readers: dict[str, set[int]] = {}
        for op in ops:
            for name in (*op.input_arg_names, *op.output_arg_names):
                if self._block.is_persistable(name):
                    readers.setdefault(name, set()).add(self._of_op[id(op)])
        for name, stages in readers.items():
            if len(stages) == 1:
                self._keeper[name] = min(stages)
            elif name in updated:
                raise PlanError(
                    f"pipeline: stages {sorted(stages)} share {name!r}, but each stage keeps its "
                    "own parameters: cut so that one stage has all operators that read it, or "
                    "give each stage a separate parameter"
                )
            else:
                self._keeper[name] = ALL

    def _transfer_inputs(self, op: Operator) -> None:
        target = self._of_op[id(op)]
        for name in op.input_arg_names:
            source = self._computed.get(name)
            if source is None or source == target:
                continue
            if target > source and name in self._backward_values:
                raise PlanError(
                    f"pipeline: {op.place} {op} of stage {target} reads {name!r} of stage "
                    f"{source}: gradients go from a stage to earlier ones only"
                )
            self._transfer(Transfer(name, source, target, once=False))

    def _refuse_idle_stages(self) -> None:
        needed = {t.source for t in self._transfers if t.source < t.target}
        for stage in range(self._stages - 1):
            if stage not in needed:
                raise PlanError(
                    f"pipeline: stage {stage} of {self._stages} computes nothing that later ones "
                    "read: cut the network where it goes on to the loss"
                )

    def _transfer(self, transfer: Transfer) -> None:
        writers = [op for op in self._block.ops if transfer.name in op.output_arg_names]
        if len(writers) > 1:
            raise PlanError(
                f"pipeline: {transfer.name!r}, which stage {transfer.target} reads of stage "
                f"{transfer.source}, is written more than once: {writers[-1].place} "
                f"{writers[-1]}"
            )
        self._transfers[transfer] = None

    # -- the update ------------------------------------------------------------------------------
    def _update_stages(self, ops: Sequence[Operator]) -> None:
        """Note the stage of each operator of the update: of what it reads, `ALL` if of several."""
        schedule = [n for op in self._ops(Phase.SCHEDULE) for n in _names(op)]
        changed = {n for op in ops for n in op.output_arg_names} - set(schedule)
        read = [n for op in ops for n in _names(op) if self._block.is_persistable(n)]
        for name in [*filter(self._block.is_persistable, schedule), *read]:
            if name not in changed:  # what only the startup program or a schedule moves
                self._keeper.setdefault(name, ALL)
        before = -1
        while before != len(self._keeper):  # state may be read before what tells whose it is
            before = len(self._keeper)
            for op in ops:
                stages = self._read_from(op)
                stage = min(stages) if len(stages) == 1 else ALL
                self._of_op[id(op)] = stage
                for name in op.output_arg_names:
                    if not self._block.is_persistable(name):
                        self._updated[name] = stage
                    elif stage != ALL:
                        self._keeper.setdefault(name, stage)
        for name in read:
            self._keeper.setdefault(name, ALL)

    def _read_from(self, op: Operator) -> set[int]:
        sources = [self._source(name) for name in op.input_arg_names]
        sources += [self._keeper.get(name) for name in op.output_arg_names]
        return {source for source in sources if source is not None and source != ALL}

    def _source(self, name: str) -> int | None:
        for stages in (self._updated, self._keeper, self._computed):
            if name in stages:
                return stages[name]
        return None

    def _check_update(self, op: Operator) -> None:
        """Refuse what stages would do differently, and have joint operators read from them all."""
        stage = self._of_op[id(op)]
        self._refuse_read(op, self._computed.keys() - self._backward_values)
        for name in op.output_arg_names:
            if self._block.is_persistable(name) and self._keeper[name] != stage:
                raise PlanError(
                    f"pipeline: {op.place} {op} changes {name!r} by values of several stages: "
                    "only numbers that are computed anew in each step can be"
                )
        for name in op.input_arg_names if stage == ALL else ():
            source = self._source(name)
            if source is None or source == ALL:
                continue
            var = self._block.var(name)
            large = -1 in var.shape or math.prod(var.shape) > JOINT
            if large or var.persistable or var.type != "LOD_TENSOR":
                raise PlanError(
                    f"pipeline: {op.place} {op} reads values of several stages, such as {name!r} "
                    f"{list(var.shape)}: stages tell each other what they compute for an "
                    f"update, of at most {JOINT} elements"
                )
            for target in range(self._stages):
                if target != source:
                    self._transfer(Transfer(name, source, target, once=True))

    def _refuse_read(self, op: Operator, values: Collection[str]) -> None:
        for name in op.input_arg_names:
            if name in values:
                raise PlanError(
                    f"pipeline: {op.place} {op} reads {name!r}, a value of the forward pass, which "
                    "micro-batches have apart: an update and a learning rate may depend on "
                    "gradients and on what is kept only"
                )

    def _gradients(self) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for op in self._ops(Phase.BACKWARD):
            names = list(op.attrs.get(ROLE_VAR_ATTR) or ())
            pairs.update(zip(names[1::2], names[::2]))
        read = {n for op in self._ops(Phase.UPDATE) for n in op.input_arg_names}
        parameters = {name: pairs.get(name) for name in self._computed if name in read}
        for name, parameter in parameters.items():
            if parameter is None:
                raise PlanError(
                    f"pipeline: the update reads {name!r}, which is no gradient of a parameter"
                )
        return {name: parameter for name, parameter in parameters.items() if parameter is not None}


def _names(op: Operator) -> list[str]:
    return [n for n in (*op.input_arg_names, *op.output_arg_names) if n != EMPTY]
