"""What the rank of a stage runs: a step with all of its micro-batches, in 1F1B order. Pure.

One forward, one backward (PipeDream-flush: Narayanan et al., 2021): a stage begins with as many
forward passes as there are stages after it, and then makes a backward pass for each forward pass.
So it keeps at most as many micro-batches as there are stages from it to the last. Each micro-batch
has separate variables; their gradients are added in the order of the micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.graph.block import Block
from hpcdist.graph.names import EMPTY
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.pipeline import of_micro_batch
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta
from hpcdist.transpiler.grad_allreduce import sum_over_trainers
from hpcdist.transpiler.group import Group
from hpcdist.transpiler.pipeline_cut import Phase
from hpcdist.transpiler.pipeline_plan import ALL, PipelinePlan, Transfer


@dataclass(frozen=True, kw_only=True)
class Stage(Group):
    """The replicas of one stage, and which of the ``stages`` it is.

    ``owners`` says which stage keeps a variable; rank ``replica * stages + stage`` runs it.
    """

    stage: int
    stages: int

    @property
    def holder(self) -> int:
        return self.stage


def schedule(stage: int, stages: int, micro_batches: int) -> list[tuple[Phase, int]]:
    """Return the passes of a stage in their order: forward and backward, with the micro-batch."""
    ahead = min(micro_batches, stages - stage - 1)
    order = [(Phase.FORWARD, m) for m in range(ahead)]
    for m in range(micro_batches):
        if m + ahead < micro_batches:
            order.append((Phase.FORWARD, m + ahead))
        order.append((Phase.BACKWARD, m))
    return order


def stage_startup(startup: Program, plan: PipelinePlan, group: Stage) -> Program:
    """Return a startup program that initializes what this stage keeps."""
    new = startup.clone()
    new.initialize_as(startup)
    new.distribution = group
    block = new.global_block()
    elsewhere = {name for name, stage in plan.keeper.items() if stage != group.stage}
    block.ops = [op for op in block.ops if not elsewhere & {*op.output_arg_names}]
    return new


def stage_program(
    program: Program, plan: PipelinePlan, group: Stage, parts: Sequence[Mapping[str, Meta]]
) -> Program:
    """Return one step of a stage. ``parts`` say the shapes of all values of each micro-batch."""
    new = program.clone()
    new.distribution = group
    new.pipeline = None
    new.memory_saving = None  # the order of the operators is the schedule
    block = new.global_block()
    builder = _StageBuilder(block, plan, group.stage, parts)
    block.ops = []
    builder.build()
    if len(group.endpoints) > 1:
        sum_over_trainers(block, 1)
    return new


class _StageBuilder:
    """Appends the operators of one stage."""

    def __init__(
        self, block: Block, plan: PipelinePlan, stage: int, parts: Sequence[Mapping[str, Meta]]
    ) -> None:
        self._block = block
        self._plan = plan
        self._stage = stage
        self._parts = parts
        self._ops_of_phase: dict[Phase, list[Operator]] = {phase: [] for phase in Phase}
        for op, (phase, of) in zip(block.ops, plan.ops):
            if of in (stage, ALL):
                self._ops_of_phase[phase].append(op)
        self._last = {
            name: op
            for phase in (Phase.FORWARD, Phase.BACKWARD)
            for op in self._ops_of_phase[phase]
            for name in op.output_arg_names
        }
        self._sends: dict[tuple[str, bool], list[tuple[int, Transfer]]] = {}
        self._receives: dict[tuple[str, bool], tuple[int, Transfer]] = {}
        self._received: set[str] = set()
        for tag, transfer in enumerate(plan.transfers):
            key = transfer.name, transfer.once
            if transfer.source == stage:
                self._sends.setdefault(key, []).append((tag, transfer))
            elif transfer.target == stage:
                self._receives[key] = tag, transfer

    def build(self) -> None:
        """Append the schedule, all passes, and the update."""
        for op in self._ops_of_phase[Phase.SCHEDULE]:
            self._block.add_op(op)
        for phase, micro_batch in schedule(self._stage, self._plan.stages, len(self._parts)):
            for op in self._ops_of_phase[phase]:
                self._append_micro(op, micro_batch)
        for name in self._plan.gradients:
            self._send(name, name, -1, OpRole.OPTIMIZE)
        for op in self._ops_of_phase[Phase.UPDATE]:
            for name in op.input_arg_names:
                if (name, True) in self._receives:
                    self._receive(name, name, -1, self._block.var(name).meta)
            self._block.add_op(op)
            for name in op.output_arg_names:
                self._send(name, name, -1, OpRole.OPTIMIZE)

    def _append_micro(self, op: Operator, m: int) -> None:
        names = {n: self._name(n, m) for n in (*op.input_arg_names, *op.output_arg_names)}
        for name in op.input_arg_names:
            if name in self._plan.computed:
                self._receive(name, names[name], m, self._parts[m].get(name))
        copy = op.copied_to(self._block)
        copy.attrs.pop(ROLE_VAR_ATTR, None)
        copy.rename(names)
        self._block.add_op(copy)
        for name in op.output_arg_names:
            if name != EMPTY and self._last[name] is op:
                self._send(name, names[name], m, op.role & ~OpRole.LOSS)
                if name in self._plan.gradients:
                    self._add(name, m)

    def _name(self, name: str, m: int) -> str:
        """Return the name of a value in a micro-batch, and declare it; what is kept has its own."""
        var = self._block.find_var(name)
        if var is None or var.persistable:
            return name
        if name not in self._plan.computed and not var.is_data:
            return name  # of the schedule
        new = of_micro_batch(name, m)
        if new not in self._block.vars:
            copy = var.copied_to(self._block)
            copy.name = new
            self._block.add_var(copy)
        return new

    def _add(self, gradient: str, m: int) -> None:
        """Add the gradient of a micro-batch to those before; the last sum has the plain name."""
        last = len(self._parts) - 1
        part = of_micro_batch(gradient, m)
        role: dict[str, Any] = {ROLE_ATTR: int(OpRole.BACKWARD)}
        if m == last:
            role |= {ROLE_VAR_ATTR: [self._plan.gradients[gradient], gradient]}
        if last == 0:
            self._block.add_op(
                Operator(self._block, "assign", {"X": part}, {"Out": gradient}, role)
            )
        elif m:
            added = gradient if m == last else self._summed(gradient, m)
            before = of_micro_batch(gradient, 0) if m == 1 else self._summed(gradient, m - 1)
            slots = {"X": [before, part]}, {"Out": added}
            self._block.add_op(Operator(self._block, "sum", *slots, role))

    def _summed(self, gradient: str, m: int) -> str:
        name = f"{of_micro_batch(gradient, m)}@SUM"
        if name not in self._block.vars:
            copy = self._block.var(gradient).copied_to(self._block)
            copy.name = name
            self._block.add_var(copy)
        return name

    def _send(self, name: str, local: str, m: int, role: OpRole) -> None:
        for tag, transfer in self._sends.get((name, m < 0), ()):
            attrs = {"peer": transfer.target, "tag": tag, "micro_batch": m, ROLE_ATTR: int(role)}
            self._block.add_op(Operator(self._block, "pipeline_send", {"X": local}, {}, attrs))

    def _receive(self, name: str, local: str, m: int, meta: Meta | None) -> None:
        if (name, m < 0) not in self._receives or local in self._received:
            return
        self._received.add(local)
        tag, transfer = self._receives[name, m < 0]
        assert meta is not None, f"{name} has a shape"
        where = {"peer": transfer.source, "tag": tag, "micro_batch": m}
        role = OpRole.OPTIMIZE if m < 0 else OpRole.FORWARD
        attrs = {"shape": list(meta.shape), "dtype": meta.dtype, **where, ROLE_ATTR: int(role)}
        self._block.add_op(Operator(self._block, "pipeline_recv", {}, {"Out": local}, attrs))
