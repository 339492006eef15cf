"""The plan of a Program's distributed training: its parameters, cut and handed to servers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import PlanError
from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.graph.block import Block
from hpcdist.graph.distribution import ProgramDistribution
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import AFTER_UPDATES, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.printing import exact_text
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.ops.optimize.sparse_gradients import sparse_refusal
from hpcdist.ps.plan import Plan, PlannedParameter, Route, UpdateMode, placed
from hpcdist.ps.planned_tables import PlannedTable
from hpcdist.transpiler.config import DistributeTranspilerConfig, dispatcher_class
from hpcdist.transpiler.counters import step_counter
from hpcdist.transpiler.group import Participants
from hpcdist.transpiler.program_roles import ParameterUpdate, program_roles
from hpcdist.transpiler.scheduled import ScheduledValue, scheduled_values
from hpcdist.transpiler.table_metadata import (
    LOOKUPS,
    TableSteps,
    is_distributed_lookup,
    read_tables,
)
from hpcdist.transpiler.turns import refuse_partial_counts, turns_of
from hpcdist.transpiler.unserved import (
    refuse_other_order,
    refuse_uncut,
    refuse_unserved,
    warn_of_norms_of_parts,
)

# What takes norms over all of a parameter: one server has all of it.
_WHOLE = {type for type, kind in OPTIMIZERS.items() if kind.whole}


@dataclass(frozen=True)
class ProgramPlan(Plan, ProgramDistribution):
    """How a trainer's Programs are distributed.

    ``counter`` is the step counter of a schedule whose steps the trainers count. ``constants`` are
    the (variable, value) that startup fills in beside parameters: learning rates, accumulators.
    ``table_steps`` says what this Program pulls and pushes. ``startup``: this is the plan of a
    Program that initializes the trainer. ``scheduled`` are learning rates and what their schedule
    computes, on the servers.
    """

    current_endpoint: str = ""
    counter: str | None = None
    constants: tuple[tuple[str, float], ...] = ()
    startup: bool = False
    scheduled: tuple[ScheduledValue, ...] = ()
    table_steps: TableSteps = field(default=TableSteps(), compare=False, repr=False)

    def fluid_fields(self) -> dict[str, object]:
        return {
            "_is_distributed": True,
            "_is_chief": self.trainer_id == 0,
            "_endpoints": list(self.endpoints),
            "_ps_endpoint": self.current_endpoint,
            "_distributed_lookup_table": self.tables[0].parameter if self.tables else None,
            "_parameters_on_pservers": self.records,
        }

    @property
    def counters(self) -> tuple[str, ...]:
        """Each trainer's count of its own steps; empty if servers count or nothing is counted."""
        if self.counter is None:
            return ()
        return tuple(f"{self.counter}.trainer_{trainer}" for trainer in range(self.trainers))


def trainer_plan(program: Program) -> ProgramPlan | None:
    """Return the plan of a Program that a trainer with servers runs; None of another."""
    plan = program.distribution
    return plan if isinstance(plan, ProgramPlan) else None


def fingerprint(program: Program, plan: ProgramPlan) -> str:
    """Return a digest that is equal on two ranks if they built the same program and plan."""
    shared = replace(plan, trainer_id=0, current_endpoint="")
    text = f"{exact_text(program)}\n{shared}\n{settings.KERNELS.read()}"
    return hashlib.sha256(text.encode()).hexdigest()


def constants_of(startup: Program) -> tuple[tuple[str, float], ...]:
    """Return the constants that a startup program fills in beside parameters, by variable.

    Ranks that differ in these train differently; parameters all come from the servers.
    """
    block = startup.global_block()
    return tuple(
        sorted(
            (name, float(op.attrs["value"]))
            for op in block.ops
            if op.type == "fill_constant"
            for name in op.output("Out")
            if not isinstance(block.find_var(name), Parameter)
        )
    )


def make_plan(
    program: Program,
    participants: Participants,
    config: DistributeTranspilerConfig,
    mode: UpdateMode,
) -> ProgramPlan:
    """Cut the parameters of a training program and hand their blocks to the servers."""
    roles = program_roles(program)
    if roles.averages and not mode.lockstep:
        wrapper = program.global_block().ops[roles.averages[0]].attrs[AFTER_UPDATES]
        raise PlanError(
            f"{wrapper} needs the parameters after every step, which with servers only synchronous "
            "training has: pass sync_mode=True, or train without servers (no --pservers)"
        )
    turns = turns_of(program, roles)
    if not mode.geo:
        refuse_unserved(program, roles)
    if not (mode.geo or turns):  # in GEO trainers update; turns have been looked at one by one
        refuse_other_order(program, roles)
    block = program.global_block()
    remote = _remote_tables(program)
    servers = len(participants.endpoints) if config.slice_var_up else 1
    tables = _distributed_tables(program, mode)
    routes = []
    for update in roles.updates:
        if update.parameter in {table.parameter for table in tables}:
            continue
        var = block.var(update.parameter)
        sparse = block.var(update.gradient).type == VarType.SELECTED_ROWS
        if sparse and mode.dc_asgd:
            raise PlanError(
                f"config.enable_dc_asgd: the gradient of {var.name!r} is sparse, and its delay "
                "cannot be compensated; use is_sparse=False for this table"
            )
        route = PlannedParameter(
            var.name,
            update.gradient,
            var.shape,
            var.dtype,
            sparse,
            remote=sparse and var.name in remote and not mode.geo,
            moved_whole=sparse and _moves_all(block, update),
        ).cut(
            1 if block.ops[update.optimizer].type in _WHOLE else servers,
            config.min_block_size,
        )
        if route.cut and not mode.geo:
            refuse_uncut(block, update)
            warn_of_norms_of_parts(block.ops[update.optimizer], update.parameter)
        routes.append(route)
    order = list(range(len(routes)))
    if not config.slice_var_up:
        # Without cuts biases and weights would alternate and so be parted on an even number of
        # servers. This is the stream of np.random.seed and np.random.shuffle, as in Fluid.
        np.random.RandomState(program.random_seed).shuffle(order)
    placed_routes = _dispatch(program, routes, order, participants, config)
    homes = {route.parameter: route.endpoints for route in placed_routes}
    refuse_partial_counts(program, [[e for p in turn for e in homes[p]] for turn in turns])
    return ProgramPlan(
        participants.endpoints,
        participants.trainers,
        participants.trainer_id,
        placed_routes,
        tuple(order),
        mode,
        tables,
        turns=turns,
        current_endpoint=participants.current_endpoint,
        counter=None if mode.averaged or mode.geo else step_counter(program, roles.schedule),
        scheduled=scheduled_values(program, roles),
    )


def _dispatch(
    program: Program,
    routes: list[Route],
    order: list[int],
    participants: Participants,
    config: DistributeTranspilerConfig,
) -> tuple[Route, ...]:
    block = program.global_block()
    blocks = [
        Variable(block, piece.name, shape=piece.shape, dtype=routes[i].dtype)
        for i in order
        for piece in routes[i].slices
    ]
    dispatcher = dispatcher_class(config)(list(participants.endpoints))
    dispatcher.reset()
    chosen = list(dispatcher.dispatch(blocks))
    kind = type(dispatcher).__name__
    if len(chosen) != len(blocks):
        raise PlanError(f"{kind}.dispatch gave {len(chosen)} endpoints for {len(blocks)} blocks")
    for var, endpoint in zip(blocks, chosen):
        if endpoint not in participants.endpoints:
            raise PlanError(
                f"{kind}.dispatch gave {endpoint!r} for {var.name}, "
                f"expected one of {', '.join(participants.endpoints)}"
            )
    return placed(routes, order, chosen)


def _moves_all(block: Block, update: ParameterUpdate) -> bool:
    """Return whether what moves a table with a sparse gradient moves rows that were not looked up.

    Momentum goes on in all rows, for example, and so does whatever else is done to the table.
    """
    if len(update.ops) > 1:
        return True
    op = block.ops[update.optimizer]
    moved = OPTIMIZERS[op.type].sparse(op.attrs) if op.type in OPTIMIZERS else None
    if moved is None:
        raise PlanError(f"{op.place} {op}: {sparse_refusal(op.type)}")
    return moved == "all"


def _remote_tables(program: Program) -> set[str]:
    """Return the parameters that trainers read through sparse look-ups only."""
    lookups: set[str] = set()
    elsewhere: set[str] = set()
    for block in program.blocks:
        for op in block.ops:
            if is_remote_lookup(op):
                lookups.update(op.input("W"))
            elif op.role in (OpRole.FORWARD, OpRole.LOSS) or AFTER_UPDATES in op.attrs:
                elsewhere.update(op.input_arg_names)
    return lookups - elsewhere


def is_remote_lookup(op: Operator) -> bool:
    """Return whether an operator looks up rows of a table whose gradient is sparse."""
    return op.type in LOOKUPS and op.attrs.get("is_sparse", False) and not is_distributed_lookup(op)


def _distributed_tables(program: Program, mode: UpdateMode) -> tuple[PlannedTable, ...]:
    tables = read_tables(program)
    if tables and (mode.geo or mode.dc_asgd):
        raise PlanError(
            f"table {tables[0].parameter!r} has is_distributed=True: available in synchronous, "
            "asynchronous and half-asynchronous training, not in GEO mode or with DC-ASGD"
        )
    return tables
