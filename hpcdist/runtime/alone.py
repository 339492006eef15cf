"""A process that trains alone: its distributed tables are here, used as on a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdist.executor import control
from hpcdist.executor.control import Binding, Feed, Fetched
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta
from hpcdist.graph.roles import Role
from hpcdist.ps.batch import TableSpec
from hpcdist.runtime.tables import (
    Call,
    LocalTables,
    bind_make,
    bind_steps,
    held_table,
)
from hpcdist.transpiler.collective import RING_OPS
from hpcdist.transpiler.table_steps import lone_steps
from hpcdist.transpiler.tables import (
    Table,
    is_distributed_lookup,
    read_tables,
    untrained_tables,
    with_startup,
)


class Alone:
    """The Control of a process without a job: it runs operators of tables, and no others."""

    def __init__(self) -> None:
        self._resolved: dict[int, tuple[Program, int, Program]] = {}

    def turn(self, program: Program, feed: Feed, scope: Scope) -> tuple[Program, Feed]:
        """Return what to run in place of a Program: itself, if it has no distributed tables."""
        known = self._resolved.get(id(program))
        if known is None or known[1] != program.version:
            known = (program, program.version, _with_tables(program))
            self._resolved[id(program)] = known
        return known[2], feed

    def begin(self, program: Program, scope: Scope) -> None:
        """There is nobody to agree with."""

    def shared_fetch(self, program: Program) -> Callable[[Fetched], list[Any]] | None:
        """Nothing is shared."""
        return None

    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Any
    ) -> list[list[str]]:
        """Nothing travels."""
        return []

    def memory(self, nbytes: int, backend: Any) -> Any:
        """Return memory as the backend gives it."""
        return backend.bytes(nbytes)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        """Return what the operators of tables do; HpcdistError for one that needs other ranks."""
        for op in ops:
            control.required(op)
        calls = {id(op): bind_make(op, binding) for op in ops if op.type == "make_table"}
        steps = [op for op in ops if op.type != "make_table"]
        names = sorted({name for op in steps for name in op.attrs["tables"]})
        tables = [held_table(binding, name) for name in names]
        rates = {
            name: binding.arrays[rate]
            for op in steps
            for name, rate in zip(op.attrs["tables"], op.input("LearningRate"))
        }
        local = LocalTables(tables, rates)
        specs = [TableSpec(table.name, table.dim, table.dict_size) for table in tables]
        calls |= bind_steps(steps, binding, specs, 1, lambda: local)
        return [calls[id(op)] for op in ops]

    def peers(self) -> None:
        """There are none."""

    def close(self) -> None:
        """Nobody waits."""


def _with_tables(program: Program) -> Program:
    program = _without_rings(program)
    tables = _tables_of(program)
    return lone_steps(program, tables) if tables or _looks_up(program) else program


def _without_rings(program: Program) -> Program:
    """Return a program that was transpiled for one trainer without its communicators."""
    if program._group is None or len(program._group.endpoints) > 1:
        return program
    new = program.clone()
    block = new.global_block()
    block.ops = [op for op in block.ops if op.type not in RING_OPS]
    return new


def _tables_of(program: Program) -> tuple[Table, ...]:
    """Return the tables that a Program trains, or that a startup Program fills."""
    if any(op.role & Role.OPTIMIZE for op in program.global_block().ops):
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
