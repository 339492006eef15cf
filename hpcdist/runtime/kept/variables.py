"""Which variables a process keeps of a Program, and their roles."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.kept import SNAPSHOT, LocalPiece, unsliced
from hpcdist.checkpoint.metadata import COUNTER, OPTIMIZER, OTHER, PARAMETER, RATE
from hpcdist.executor.merging import merged_gradients
from hpcdist.executor.scope import Scope
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import OpRole
from hpcdist.graph.program import Program, default_main_program
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.ps.table import SparseTable
from hpcdist.transpiler.compressed import compressed_updates
from hpcdist.transpiler.group import group_of
from hpcdist.transpiler.plan import trainer_plan
from hpcdist.transpiler.table_metadata import tables_looked_up

NOT_STATE = {"Param", "Grad", "LearningRate", "ParamOut", "Beta1Tensor", "Beta2Tensor"}


def tables_of(program: Program, scope: Scope) -> list[SparseTable]:
    """Return the distributed tables that this process holds rows of, by name."""
    tables = {}
    for var in program.list_vars():
        variable = scope.find_var(var.name)
        if variable is not None and isinstance(variable.value, SparseTable):
            tables[var.name] = variable.value
    return [tables[name] for name in sorted(tables)]


def is_table(scope: Scope, name: str) -> bool:
    """Return whether a variable is, in this scope, a table of rows that are found by id."""
    variable = scope.find_var(name)
    return variable is not None and isinstance(variable.value, SparseTable)


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
                    if slot not in NOT_STATE:
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


def state_of_tables(program: Program) -> set[str]:
    """Return the accumulators that distributed tables hold with their rows: they have no arrays."""
    tables, block = tables_looked_up(program), program.global_block()
    return {
        name
        for op in block.ops
        if op.input("Param") and op.input("Param")[0] in tables
        for slot, names in op.inputs.items()
        if slot not in NOT_STATE
        for name in names
        if block.var(name).shape == block.var(op.input("Param")[0]).shape
    }


def whole_variables(program: Program, scope: Scope) -> list[LocalPiece]:
    """Return the persistable variables of a process that holds all of each, as it holds them."""
    roles = roles_of(program)
    pieces: dict[str, LocalPiece] = {}
    for var in persistables(program):
        array = scope.array_of(var.name)
        if array is not None and var.name not in pieces:
            pieces[var.name] = unsliced(var.name, roles.get(var.name, OTHER), array)
    return list(pieces.values())
