"""What a rank runs in place of a Program, by its role. Pure."""

from __future__ import annotations

from hpcdist.graph.program import Program
from hpcdist.ps.planned_tables import PlannedTable
from hpcdist.transpiler.adaptive_local_sgd import adaptive
from hpcdist.transpiler.data_parallel import data_parallel
from hpcdist.transpiler.gathered_rows import with_norms
from hpcdist.transpiler.group import group_of, required_group
from hpcdist.transpiler.plan import ProgramPlan, trainer_plan
from hpcdist.transpiler.pserver import server_plan
from hpcdist.transpiler.sharded_updates import sharded
from hpcdist.transpiler.table_metadata import (
    is_distributed_lookup,
    read_tables,
    untrained_tables,
    with_startup,
)
from hpcdist.transpiler.table_steps import lone_steps, trainer_steps
from hpcdist.transpiler.trainer import reading_program


def on_trainer(program: Program, plan: ProgramPlan | None) -> Program:
    """Return a trainer's Program with servers, once it trains by ``plan``: it pulls and pushes.

    A Program that neither trains nor was transpiled, such as a test, looks rows up on the servers.
    """
    if plan is None:
        return program
    if trainer_plan(program) is None and not program.trains:
        program = reading_program(program, plan)
    return trainer_steps(program, plan)


def on_server(program: Program) -> Program:
    """Return a server's Program: a startup makes the tables that the server holds a part of."""
    if any(op.type == "listen_and_serv" for op in program.global_block().ops):
        return program
    plan = server_plan(program)
    trained = [] if plan is None else [routed.table for routed in plan.tables]
    tables = trained or untrained_tables(program)
    return lone_steps(program, tables) if tables else program


def in_group(program: Program, *, tables_here: bool = True) -> Program:
    """Return a trainer's Program that sums gradients: in nccl2 mode as ParallelExecutor did.

    Rows of distributed tables are divided among the trainers, unless servers have them.
    """
    group = group_of(program)
    if group is not None and len(group.endpoints) > 1 and program.trains:
        read_tables(program)  # refuses tables whose rows cannot be shared out
    if group is not None and group.mode == "nccl2" and program.trains:
        program = data_parallel(program).program
    if group is not None and group.adapts_to:
        program = adaptive(program, group)
    if group is not None and group.sharded:
        program = sharded(program, required_group(program))
    if group is not None and program.trains:
        program = with_norms(program)
    return with_tables(program, here=tables_here)


def with_tables(program: Program, *, here: bool = True) -> Program:
    """Return a Program with tables of its own, made ``here``; itself if it has none."""
    tables = _tables_of(program)
    return lone_steps(program, tables, here=here) if tables or _looks_up(program) else program


def _tables_of(program: Program) -> tuple[PlannedTable, ...]:
    """Return the tables that a Program trains, or that a startup Program fills."""
    if program.trains:
        return _trained(program)
    filled = untrained_tables(program)
    mains = [main for main in (*program.mains, program.main) if main and main.trains]
    trained = {table.parameter: table for main in mains if filled for table in _trained(main)}
    names = trained.keys()
    return (
        *with_startup(tuple(trained.values()), program),
        *(table for table in filled if table.parameter not in names),
    )


def _trained(program: Program) -> tuple[PlannedTable, ...]:
    return read_tables(program) if _looks_up(program) else ()


def _looks_up(program: Program) -> bool:
    ops = program.global_block().ops
    return any(is_distributed_lookup(op) and op.attrs["is_sparse"] for op in ops)
