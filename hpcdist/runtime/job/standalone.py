"""A process that trains alone: its distributed tables are here, used as on a server."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from hpcdist.comm.process_manager import launched_rank, launched_size
from hpcdist.executor import control
from hpcdist.executor.control import Binding, Feed
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.ps.batch import TableSpec
from hpcdist.runtime.batches.global_moments import bind_moments, is_synchronized
from hpcdist.runtime.tables.pull_push import (
    Call,
    LocalTables,
    bind_make,
    bind_steps,
    held_table,
)
from hpcdist.transpiler.cluster import group_of
from hpcdist.transpiler.grad_allreduce import RING_OPS
from hpcdist.transpiler.table_metadata import (
    Table,
    is_distributed_lookup,
    read_tables,
    untrained_tables,
    with_startup,
)
from hpcdist.transpiler.table_steps import lone_steps


class Standalone(control.Control):
    """The Control of a process without a job: it runs operators of tables, and sync_batch_norm."""

    def __init__(self) -> None:
        self._substitutes: ProgramCache[Program] = ProgramCache()

    def substitute(
        self, program: Program, feed: Feed, scope: Scope, fetches: Sequence[str]
    ) -> tuple[Program, Feed]:
        """Return what to run in place of a Program: itself, if it has no distributed tables."""
        _warn_of_copies()
        return self._substitutes.of(program, lambda: _with_tables(program)), feed

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Return what the operators of tables do; HpcdistError for one that needs other ranks."""
        for op in ops:
            control.required(op)
        calls = {id(op): bind_make(op, binding) for op in ops if op.type == "make_table"}
        calls |= {id(op): bind_moments(op, binding, None) for op in ops if is_synchronized(op)}
        steps = [op for op in ops if id(op) not in calls]
        names = sorted({name for op in steps for name in _names_of(op)})
        tables = [held_table(binding, name) for name in names]
        rates = {
            name: binding.arrays[rate]
            for op in steps
            for name, rate in zip(_names_of(op), op.input("LearningRate"))
        }
        local = LocalTables(tables, rates)
        specs = [TableSpec(table.name, table.dim, table.dict_size) for table in tables]
        calls |= bind_steps(steps, binding, specs, 1, lambda: local)
        return [calls[id(op)] for op in ops]


def _names_of(op: Operator) -> list[str]:
    return list(dict.fromkeys(look_up.table for look_up in op.attrs["lookups"]))


@functools.cache
def _warn_of_copies() -> None:
    """Say, once and on one rank, that several processes were started and each trains alone.

    Tests are run on several ranks for other reasons.
    """
    size = launched_size() or 1
    if size > 1 and not launched_rank() and "pytest" not in sys.modules:
        print(
            f"hpcdist: {size} processes were started, and each trains the whole model by itself; "
            f"to train it on all of them together: mpirun -n {size} python -m hpcdist "
            f"{sys.argv[0]}",
            file=sys.stderr,
            flush=True,
        )


def _with_tables(program: Program) -> Program:
    program = _without_rings(program)
    tables = _tables_of(program)
    return lone_steps(program, tables) if tables or _looks_up(program) else program


def _without_rings(program: Program) -> Program:
    """Return a program that was transpiled for one trainer without its communicators."""
    group = group_of(program)
    if group is None or len(group.endpoints) > 1:
        return program
    new = program.clone()
    block = new.global_block()
    block.ops = [op for op in block.ops if op.type not in RING_OPS]
    return new


def _tables_of(program: Program) -> tuple[Table, ...]:
    """Return the tables that a Program trains, or that a startup Program fills."""
    if program.trains:
        return _trained(program)
    filled = untrained_tables(program)
    if not filled or program.main is None:
        return filled
    trained = with_startup(_trained(program.main), program)
    names = {table.parameter for table in trained}
    return (*trained, *(table for table in filled if table.parameter not in names))


def _trained(program: Program) -> tuple[Table, ...]:
    return read_tables(program) if _looks_up(program) else ()


def _looks_up(program: Program) -> bool:
    ops = program.global_block().ops
    return any(is_distributed_lookup(op) and op.attrs["is_sparse"] for op in ops)
