"""What servers cannot do in place of one process: refused before anything is transpiled. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from hpcdist.base.errors import PlanError
from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.base.warned import warn
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Parameter
from hpcdist.ops.optimize.sparse_gradients import misses_rows
from hpcdist.transpiler.dependences import Access, access_of, swapped
from hpcdist.transpiler.mean_gradient import SUMMED, is_local
from hpcdist.transpiler.program_roles import (
    ELEMENTWISE,
    ON_SERVERS,
    ParameterUpdate,
    ProgramRoles,
    nested,
)


def refuse_unserved(program: Program, roles: ProgramRoles) -> None:
    """Refuse optimizers that servers cannot run, and updates that read what only trainers have."""
    block = program.global_block()
    for update in roles.updates:
        op = block.ops[update.optimizer]
        kind = op.type
        var = block.var(update.parameter)
        of_rows = isinstance(var, Parameter) and var.is_distributed
        if kind not in OPTIMIZERS and not of_rows:
            raise PlanError(  # begins in Fluid's words
                f"Not supported optimizer for distributed training: {kind}, of which parameter "
                "servers have no rule; train without servers (no --pservers), or use another one"
            )
        declared = OPTIMIZERS.get(kind)
        given = declared is not None and any(map(op.input, declared.given.values()))
        if declared is not None and (given or not all(map(op.input, declared.state))):
            raise PlanError(
                f"{op.place} {op}: servers take its attributes as numbers, got slots "
                f"{sorted(op.inputs)}, expected {', '.join(declared.state)} and none of "
                f"{', '.join(declared.given.values())}; train without servers (no --pservers)"
            )
    _refuse_counting_on_trainers(block, roles)
    served = {*roles.schedule, *(i for update in roles.updates for i in update.ops)}
    trainers = [op for i, op in enumerate(block.ops) if i not in served]
    moved = {name for op in nested(trainers) for name in op.output_arg_names}
    _refuse_moving_parameters(block, roles)
    schedule = [block.ops[i] for i in roles.schedule]
    on_servers = {name for op in nested(schedule) for name in op.output_arg_names}
    for op in schedule:
        _refuse_trainer_values(op, on_servers, moved)
    on_servers.update(
        n for op in block.ops if op.attrs.get(ON_SERVERS) for n in op.output_arg_names
    )
    for update in roles.updates:
        updated = {update.parameter, update.gradient}
        for i in update.on_server:
            _refuse_trainer_values(block.ops[i], on_servers | updated, moved)
            updated.update(block.ops[i].output_arg_names)


def refuse_missed_rows(mains: Sequence[Program]) -> None:
    """Refuse updates that miss rows as Fluid's do: on ranks they would miss others.

    Raises PlanError where HPCDIST_SPARSE_ROWS=fluid asks for that and a Program has such an update.
    """
    for op in nested([op for main in mains for op in main.global_block().ops]):
        if not misses_rows(op.type):
            continue
        (parameter,), (gradient,) = op.input("Param"), op.input("Grad")
        var = op.block.find_var(gradient)
        if var is not None and var.type == VarType.SELECTED_ROWS:
            raise PlanError(
                f"{op.place} {op} would miss rows of {parameter!r}, as in Fluid 1.8.5: which ones "
                "depends on the order of ids, so on ranks others than in one process; unset "
                "HPCDIST_SPARSE_ROWS=fluid (all rows are used then, in one process too), or use "
                "is_sparse=False"
            )


def _refuse_moving_parameters(block: Block, roles: ProgramRoles) -> None:
    """Refuse other operators than updates that write a parameter: servers would go on without."""
    served = {update.parameter for update in roles.updates}
    allowed = {*roles.averages, *(i for update in roles.updates for i in update.ops)}
    for i, op in enumerate(block.ops):
        written = {name for inner in nested([op]) for name in inner.output_arg_names} & served
        if written and i not in allowed:
            raise PlanError(
                f"{op.place} {op} writes parameter {min(written)!r}, which the parameter servers "
                "hold and update: they would continue with another value; let an optimizer, or "
                "its regularization, move it, or train without servers (no --pservers)"
            )


def _refuse_counting_on_trainers(block: Block, roles: ProgramRoles) -> None:
    """Refuse forward operators that read a count of steps: it is kept where the schedule runs."""
    schedule = [block.ops[i] for i in roles.schedule]
    counters = {
        n for op in nested(schedule) for n in op.output_arg_names if block.is_persistable(n)
    }
    copied = {i for update in roles.updates for i in update.copies}
    for i, op in enumerate(block.ops):
        read = counters.intersection(op.input_arg_names)
        forward = op.role & ~OpRole.LOSS == OpRole.FORWARD
        if read and forward and i not in {*roles.following, *copied}:
            raise PlanError(
                f"{op.place} {op} reads {min(read)!r}, which the learning rate's schedule moves: "
                "that runs on the parameter servers, so trainers would read its first value; count "
                "with layers.autoincreased_step_counter under another name, or train without "
                "servers (no --pservers)"
            )


def _refuse_trainer_values(op: Operator, on_servers: set[str], moved: set[str]) -> None:
    """Refuse an operator for servers that reads what is neither ``on_servers`` nor kept there."""
    inner = {name for i in nested([op]) for name in i.output_arg_names}
    for name in dict.fromkeys(name for i in nested([op]) for name in i.input_arg_names):
        var = op.block.find_var(name)
        if name in on_servers or name in inner or var is None:
            continue
        if var.is_data:
            reason = "is fed"
        elif isinstance(var, Parameter):
            reason = "is another parameter, maybe on another server"
        elif name in moved or not var.persistable:
            reason = "trainers compute"
        else:
            continue
        raise PlanError(
            f"{op.place} {op} would run on parameter servers, but reads {name!r}, which {reason}: "
            "they have a parameter, its gradient, constants, what element-wise operators make of "
            "these, and learning rates of layers.learning_rate_scheduler; change this, or train "
            "without servers (no --pservers)"
        )


def refuse_uncut(block: Block, update: ParameterUpdate) -> None:
    """Refuse what follows the optimizer of a parameter and cannot be computed on a part of it."""
    shape, ops = block.var(update.parameter).shape, [block.ops[i] for i in update.on_server]
    moved = {update.parameter, update.gradient, *(n for op in ops for n in op.output_arg_names)}
    for i in update.on_server:
        op = block.ops[i]
        reason = ""
        if i > update.optimizer and op.type not in ELEMENTWISE:
            reason = "computes with all of it"
        if op.type == "fill_constant" and block.var(op.output("Out")[0]).shape == shape:
            reason = "fills as many rows as the parameter has"
        for name in op.input_arg_names:
            var = block.find_var(name)
            if name not in moved and var is not None and var.shape == shape:
                reason = f"reads {name!r}, which is not cut with it"
        if reason:
            raise PlanError(
                f"{op.place} {op}: servers hold parts of {update.parameter!r}, but this {reason}; "
                "use one server, config.slice_var_up = False, or no servers"
            )


def warn_of_norms_of_parts(op: Operator, parameter: str) -> None:
    """Say that an optimizer takes norms of what each server has of a parameter, as in Fluid.

    Of a plain script's servers these are summed.
    """
    if op.type == "lars_momentum" and SUMMED not in op.attrs:
        warn(
            f"{op.place} {op}: each server takes the norms over its own part of {parameter!r}, as "
            "in Fluid, so results depend on the number of servers; set config.slice_var_up = "
            "False, or let hpcdist transpile: then norms are over all of it, as in one process"
        )


# -- the order of a step ---------------------------------------------------------------------------
class _Phase(IntEnum):
    """When an operator runs in a step with servers."""

    SCHEDULE = 0  # on servers, before all updates
    TRAINERS = 1  # forward, backward, clip: until gradients are sent
    UPDATE = 2
    FOLLOWING = 3  # on trainers that have received parameters


_ADVICE = (
    "let every `minimize` come before what reads the parameters that it moves, or take the "
    "gradients of all optimizers first (`backward`) and update then (`apply_gradients`), or train "
    "without servers (no --pservers)"
)


def refuse_other_order(program: Program, roles: ProgramRoles) -> None:
    """Refuse a Program whose step, as trainers and servers divide it, is not that of one process.

    Trainers send gradients and receive parameters once in a step. So no gradient may depend on what
    an update of this step has moved, and updates, which servers run in any order, share nothing.
    """
    block = program.global_block()
    ops = block.ops
    accesses = [access_of(op) for op in ops]
    updating = {i for update in roles.updates for i in update.ops}
    for i, name in roles.late.items():
        for update in roles.updates:
            if update.gradient in accesses[i].writes:
                raise PlanError(
                    f"{ops[i].place} {ops[i]}: the gradient of {update.parameter!r} depends on "
                    f"{name!r} as an update of the same step leaves it, but servers update once "
                    f"in a step, by gradients that trainers have computed before: {_ADVICE}"
                )
    _refuse_shared_state(ops, accesses, roles)
    _refuse_reading_state(block, accesses, roles)
    phases = [_Phase.TRAINERS] * len(ops)
    for positions, phase in (
        (updating, _Phase.UPDATE),
        (roles.schedule, _Phase.SCHEDULE),
        (roles.following, _Phase.FOLLOWING),
    ):
        for i in positions:
            phases[i] = phase
    pair = swapped(accesses, phases)
    if pair is not None:
        raise PlanError(
            f"{pair.among(ops)}; with servers it would come before: schedules of the learning rate "
            "run first in a step, then forward and backward, then updates; change the order, or "
            "train without servers (no --pservers)"
        )


def _refuse_shared_state(
    ops: Sequence[Operator], accesses: Sequence[Access], roles: ProgramRoles
) -> None:
    """Refuse what an update moves and another one, or a schedule, uses: they run elsewhere."""
    moved: dict[str, str] = {}  # by variable: the parameter whose update moves it
    for update in roles.updates:
        for i in update.ops:
            if is_local(ops[i]):
                moved.update(dict.fromkeys(accesses[i].writes, update.parameter))
    users = [(i, update.parameter) for update in roles.updates for i in update.on_server]
    users += [(i, "") for i in roles.schedule]
    for i, parameter in sorted(users):
        for name in sorted(accesses[i].reads | accesses[i].writes):
            if moved.get(name, parameter) != parameter:
                raise PlanError(
                    f"{ops[i].place} {ops[i]} uses {name!r}, which the update of {moved[name]!r} "
                    "moves: servers run updates apart, each where its parameter is; give each "
                    "update a variable of its own, or train without servers (no --pservers)"
                )


def _refuse_reading_state(block: Block, accesses: Sequence[Access], roles: ProgramRoles) -> None:
    """Refuse what trainers compute of values that updates move: they receive parameters only."""
    received = {update.parameter for update in roles.updates}
    updating = {i for update in roles.updates for i in update.ops}
    moved = {name for i in updating for name in accesses[i].writes} - received
    at_servers = set(filter(block.is_persistable, moved))
    for i, (op, access) in enumerate(zip(block.ops, accesses)):
        if i in updating:
            at_servers |= access.writes - received
        elif i not in roles.schedule:
            if kept := sorted(access.reads & at_servers):
                raise PlanError(
                    f"{op.place} {op} reads {kept[0]!r}, which updates move: they run on the "
                    "parameter servers, and trainers receive nothing of them but parameters; "
                    "leave it out, or train without servers (no --pservers)"
                )
            at_servers -= access.writes
