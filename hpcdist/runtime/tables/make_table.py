"""Distributed tables as a startup Program describes them: made, found in the scope, checked."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

from hpcdist.base import settings
from hpcdist.base.errors import GraphError
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ps.batch import TableSpec
from hpcdist.ps.policy_table import PolicyTable
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from hpcdist.runtime.tables.given_rows import GivenRows, load_given
from hpcdist.transpiler.plan import Plan
from hpcdist.transpiler.table_metadata import ProgramTable


def bind_make(op: Operator, binding: Binding, owner: int, owners: int) -> Call:
    """Return the call that puts a new table into the scope: one of the ``owners`` of its rows."""
    table: ProgramTable = op.attrs["table"]
    variable = binding.scope.var(table.parameter)
    return lambda: variable.hold(make_table(table, owner, owners))


def make_table(table: ProgramTable, owner: int, owners: int) -> SparseTable:
    """Return the table that a startup Program describes, with those given rows that it owns.

    Its rows begin alike on all servers: the seed follows from the Program's, or the job's, and
    from the table's name.
    """
    fill = table.fill
    assert fill is not None, "the startup Program has been read"
    seed = fill.seed or settings.SEED.read()
    facts = (
        table.parameter,
        table.width,
        _optimizer(table),
        _initializer(fill.type, dict(fill.attrs)),
        zlib.crc32(f"{seed}/{table.parameter}".encode()),
        table.dict_size,
    )
    if table.policy is None or table.policy.is_storage:
        made = SparseTable(*facts, storage=table.policy.storage if table.policy else None)
    else:
        made = PolicyTable(*facts, policy=table.policy)
        made.check_servers(owners)
    if fill.given is not None:
        assert isinstance(fill.given, GivenRows)
        load_given(made, fill.given, owner, owners)
    return made


def _optimizer(table: ProgramTable) -> RowOptimizer:
    fields = RowOptimizer.__dataclass_fields__
    attrs = {name: value for name, value in table.attrs if name in fields}
    if table.optimizer == "adagrad" and table.first:
        attrs["initial_moment"] = table.first[0]
    elif any(table.first):
        raise GraphError(
            f"table {table.parameter!r}: accumulators of {table.optimizer} begin with 0, "
            f"got {table.first}"
        )
    return RowOptimizer(table.optimizer, **attrs)


def _initializer(type: str, attrs: Mapping[str, float]) -> RowInitializer:
    if type == "fill_constant":
        return RowInitializer("constant", attrs["value"])
    if type == "uniform_random":
        return RowInitializer("uniform", attrs["min"], attrs["max"])
    kind = "normal" if type == "gaussian_random" else "truncated_normal"
    return RowInitializer(kind, attrs["mean"], attrs["std"])


def server_table(binding: Binding, name: str) -> SparseTable:
    """Return a table from the scope; GraphError if the startup Program has not made it."""
    variable = binding.scope.find_var(name)
    if variable is None or not isinstance(variable.value, SparseTable):
        raise GraphError(
            f"table {name!r} is not initialized: run the startup program first "
            "(exe.run(fluid.default_startup_program()))"
        )
    return variable.value


def spec_of(table: ProgramTable) -> TableSpec:
    """Return a table as trainers and servers know it."""
    shows = 2 if table.policy is not None and table.policy.shows else 0
    return TableSpec(table.parameter, table.width + shows, table.dict_size, table.padding)


def specs_of(plan: Plan) -> tuple[TableSpec, ...]:
    """Return the distributed tables that the servers of a trainer hold."""
    return tuple(map(spec_of, plan.tables))


def check_moves(sparse_table: SparseTable, table: ProgramTable) -> None:
    """Refuse a table whose startup Program did not know what moves it, such as a copy of one."""
    initial, moved = (
        replace(o, initial_moment=0.0) for o in (sparse_table.optimizer, _optimizer(table))
    )
    if initial != moved:
        raise GraphError(
            f"table {sparse_table.name!r} was made for {initial.kind}, but this program updates "
            f"it by {moved.kind}, or with other hyperparameters: run the startup program that this "
            "one was built with, not a copy"
        )
