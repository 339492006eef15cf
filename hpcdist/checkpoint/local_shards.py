"""Which variables this process stores, and which rows of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.divided import Combined, name_of_own
from hpcdist.checkpoint.layout import path_of
from hpcdist.checkpoint.metadata import COUNTER, OPTIMIZER, OTHER, PARAMETER, RATE, Piece
from hpcdist.executor.merging import merged_gradients
from hpcdist.executor.scope import Scope
from hpcdist.graph.distribution import VarDistributed
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import Program, default_main_program
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.ps.table import SparseTable
from hpcdist.transpiler.compressed import compressed_updates
from hpcdist.transpiler.group import group_of
from hpcdist.transpiler.plan import trainer_plan
from hpcdist.transpiler.pserver import ServerBlock, ServerPlan, server_plan
from hpcdist.transpiler.table_metadata import tables_looked_up

SNAPSHOT = "@SNAPSHOT"  # local SGD's names for what trainers started from
TEMPORARY = re.compile(r"(.+\.)?tmp_\d+")  # the names of what layers compute
_NOT_STATE = {"Param", "Grad", "LearningRate", "ParamOut", "Beta1Tensor", "Beta2Tensor"}


@dataclass(frozen=True)
class LocalPiece:
    """A variable ``local`` of this process, which is ``piece`` of the whole."""

    local: str
    piece: Piece
    combined: Combined | None = None  # of several saved values, instead of `piece`'s
    overlaps: bool = False  # only as far as both reach is taken of another shape


def array_of(scope: Scope, name: str) -> Any:
    """Return the array of a variable, on whichever device; None if it has none."""
    variable = scope.find_var(name)
    value = None if variable is None else variable.value
    return value if hasattr(value, "dtype") and hasattr(value, "shape") else None


def tables_of(program: Program, scope: Scope) -> list[SparseTable]:
    """Return the distributed tables that this process holds rows of, by name."""
    tables = {}
    for var in program.list_vars():
        variable = scope.find_var(var.name)
        if variable is not None and isinstance(variable.value, SparseTable):
            tables[var.name] = variable.value
    return [tables[name] for name in sorted(tables)]


def persistables(program: Program) -> Iterator[Variable]:
    """Yield the variables of a Program that outlive a run and have values to be saved."""
    for var in program.list_vars():
        if var.persistable and var.type in (VarType.LOD_TENSOR, VarType.SELECTED_ROWS):
            yield var


def program_of_job(chosen: Program | None) -> Program:
    """Return the Program whose variables are saved; CheckpointError if none is given or meant."""
    program = chosen if chosen is not None else default_main_program()
    if chosen is None and next(persistables(program), None) is None:
        raise CheckpointError(
            "main_program: expected the Program that trains, got none, and the default main "
            "program keeps no variables"
        )
    return program


def roles_of(program: Program) -> dict[str, str]:
    """Return the roles of a Program's variables by name; `OTHER` are left out."""
    roles = {}
    for block in program.blocks:
        for op in block.ops:
            if op.type == "increment":
                roles.update(dict.fromkeys(op.output("Out"), COUNTER))
            if not op.input("Param"):
                continue
            for slots in (op.inputs, op.outputs):
                for slot, names in slots.items():
                    if slot not in _NOT_STATE:
                        roles.update(dict.fromkeys(names, OPTIMIZER))
            roles.update(dict.fromkeys(op.input("LearningRate"), RATE))
            roles.update(dict.fromkeys(op.input("Param"), PARAMETER))
    # Where the loss is scaled, sums of gradients may overflow: no update comes of these.
    if not any(op.type == "check_finite_and_unscale" for op in program.global_block().ops):
        roles.update(dict.fromkeys(merged_gradients(program), OPTIMIZER))
    for var in program.list_vars():
        if isinstance(var, Parameter):
            roles[var.name] = PARAMETER
        elif var.name.startswith("@"):
            roles[var.name] = COUNTER
    return roles


def individual(program: Program) -> set[str]:
    """Return the variables of which every trainer has a separate value.

    Such as moving averages, which follow the rows that each trainer sees, and averages of these;
    gradients that are merged over steps, and what compression has not sent of them; with GEO and
    local SGD, where trainers update by themselves, also parameters and optimizer state.
    """
    plan, group = trainer_plan(program), group_of(program)
    updates = (plan is not None and plan.mode.geo) or (
        group is not None and group.mode == "local_sgd"
    )
    roles = (OpRole.FORWARD, OpRole.OPTIMIZE) if updates else (OpRole.FORWARD,)
    written = {
        name
        for op in program.global_block().ops
        if op.role & ~OpRole.LOSS in roles
        for name in op.output_arg_names
        if not name.endswith(SNAPSHOT)
    }
    names = {var.name for var in persistables(program)}
    written |= _follow(program, written & names)
    written |= merged_gradients(program)
    for op in compressed_updates(program):
        written |= {*op.input("Velocity"), *op.input("Residual")}
    return names & written


def _follow(program: Program, names: set[str]) -> set[str]:
    """Return the variables computed from these after the updates, as averages over steps are."""
    computed: set[str] = set()
    for op in program.global_block().ops:
        read = (names | computed).intersection(op.input_arg_names)
        if read and op.role & OpRole.OPTIMIZE and not op.input("Grad"):
            computed.update(op.output_arg_names)
    return computed


def individually(variable: LocalPiece, trainer: int) -> LocalPiece:
    """Return a variable as this trainer's own; without a number it is what all begin with."""
    name = name_of_own(variable.piece.name, trainer)
    return LocalPiece(variable.local, replace(variable.piece, name=name, path=path_of(name)))


def state_of_tables(program: Program) -> set[str]:
    """Return the accumulators that distributed tables hold with their rows: they have no arrays."""
    tables, block = tables_looked_up(program), program.global_block()
    return {
        name
        for op in block.ops
        if op.input("Param") and op.input("Param")[0] in tables
        for slot, names in op.inputs.items()
        if slot not in _NOT_STATE
        for name in names
        if block.var(name).shape == block.var(op.input("Param")[0]).shape
    }


def whole_variables(program: Program, scope: Scope) -> list[LocalPiece]:
    """Return the persistable variables of a process that holds all of each, as it holds them."""
    roles = roles_of(program)
    pieces: dict[str, LocalPiece] = {}
    for var in persistables(program):
        array = array_of(scope, var.name)
        if array is not None and var.name not in pieces:
            pieces[var.name] = unsliced(var.name, roles.get(var.name, OTHER), array)
    return list(pieces.values())


def unsliced(name: str, role: str, array: Any) -> LocalPiece:
    """Return a variable that this process holds all of."""
    shape = tuple(array.shape) or (1,)
    piece = Piece(name, role, array.dtype.name, shape, 0, shape[0], path_of(name))
    return LocalPiece(name, piece)


def server_variables(program: Program, scope: Scope) -> list[LocalPiece]:
    """Return a server's state: its rows of parameters and accumulators, and its counters.

    What all servers have alike (learning rates, counters) is only server 0's, or the trainers'.
    """
    plan = _plan(program)
    blocks = _blocks_by_state(program, plan)
    pieces: dict[str, LocalPiece] = {}
    for record in _records(plan):
        array = array_of(scope, record.slice.name)
        if array is not None:
            block = blocks.get(record.slice.name)
            pieces[record.slice.name] = LocalPiece(
                record.slice.name, _piece_of(record, block, array)
            )
    if plan.index == 0 and not plan.mode.dense_summed:  # else trainers have the same
        for variable in alike_on_servers(program, scope):
            pieces.setdefault(variable.local, variable)
    return list(pieces.values())


def pieces_of_server(program: Program, scope: Scope) -> list[LocalPiece]:
    """Return all that a server holds, and has to restore."""
    variables = {variable.local: variable for variable in server_variables(program, scope)}
    for variable in alike_on_servers(program, scope):
        variables.setdefault(variable.local, variable)
    return list(variables.values())


def alike_on_servers(program: Program, scope: Scope) -> list[LocalPiece]:
    """Return the variables that every server has a copy of, though only server 0 saves them."""
    plan = _plan(program)
    left_out = (
        _not_state(plan)
        | _recreated(program, plan)
        | {record.slice.name for record in _records(plan)}
    )
    left_out |= {name for name in recomputed(program) if TEMPORARY.fullmatch(name)}
    roles = roles_of(program)
    arrays = {v.name: array_of(scope, v.name) for v in persistables(program)}
    return [
        unsliced(name, roles.get(name, OTHER), array)
        for name, array in arrays.items()
        if array is not None and name not in left_out
    ]


def recomputed(program: Program) -> set[str]:
    """Return the variables that a server's schedules write before they read: no need to restore."""
    read: set[str] = set()
    written: set[str] = set()
    for schedule in _plan(program).schedules:
        computed: set[str] = set()
        waiting = list(reversed(program.block(schedule).ops)) if schedule >= 0 else []
        while waiting:
            op = waiting.pop()
            read |= set(op.input_arg_names) - computed
            computed |= set(op.output_arg_names)
            if "sub_block" in op.attrs:
                waiting += reversed(program.block(op.attrs["sub_block"]).ops)
        written |= computed
    return written - read


def backups_of(program: Program) -> dict[str, tuple[str, ...]]:
    """Return, with DC-ASGD, the copies that trainers have read last, by parameter block."""
    plan = _plan(program)
    return {block.name: block.backups for block in plan.blocks if block.backups}


def _plan(program: Program) -> ServerPlan:
    plan = server_plan(program)
    if plan is None:
        raise CheckpointError(
            "this is not a server's program: run what get_pserver_program(endpoint) returns"
        )
    return plan


def _records(plan: ServerPlan) -> list[VarDistributed]:
    return [] if plan.records is None else plan.records.get_distributed_vars_by_ep(plan.endpoint)


def _not_state(plan: ServerPlan) -> set[str]:
    """Return the variables that last one step only: gradients, and copies for DC-ASGD."""
    names: set[str] = set()
    for block in plan.blocks:
        names.update((block.gradient, *block.received, *block.backups))
    for table in plan.tables:
        names.update((table.gradient, *table.received, table.ids, table.rows))
    return names


def _recreated(program: Program, plan: ServerPlan) -> set[str]:
    """Return the values that clip and regularizers compute in every step, before the updates."""
    names: set[str] = set()
    for block in plan.blocks:
        ops = program.block(block.block).ops
        moving = [op for op in ops if op.input("Param")]
        persistent = {
            name for op in moving for name in op.input_arg_names if name not in op.input("Grad")
        }
        names.update(n for op in ops if op not in moving for n in op.output_arg_names)
        names -= persistent
    return names


def _blocks_by_state(program: Program, plan: ServerPlan) -> dict[str, ServerBlock]:
    """Return the parameter block that each accumulator belongs to."""
    blocks = {}
    for block in plan.blocks:
        for op in program.block(block.block).ops:
            if block.name in op.input("Param"):
                for slot, names in op.inputs.items():
                    if slot not in _NOT_STATE:
                        blocks.update(dict.fromkeys(names, block))
    return blocks


def _piece_of(record: VarDistributed, block: ServerBlock | None, array: Any) -> Piece:
    """Return the part of the whole variable that a server's variable is."""
    role = OPTIMIZER if record.vtype == "Optimizer" else PARAMETER
    whole_shape = tuple(record.origin.shape)
    path = path_of(record.slice.name)
    dtype = np.dtype(array.dtype.name).name
    if record.is_slice:
        begin = record.offset // max(1, int(np.prod(whole_shape[1:])))
        end = begin + array.shape[0]
        return Piece(record.origin.name, role, dtype, whole_shape, begin, end, path)
    if role == OPTIMIZER and block is not None and block.name != block.parameter:
        begin, end = block.begin, block.end
        return Piece(record.origin.name, role, dtype, whole_shape, begin, end, path, copy=True)
    return Piece(record.origin.name, role, dtype, whole_shape, 0, whole_shape[0], path)
