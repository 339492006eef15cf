"""Distributed tables as a startup Program describes them: made, found in the scope, checked."""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ps.planned_tables import PlannedTable, make_table
from hpcdist.ps.table import SparseTable


def bind_make(op: Operator, binding: Binding, owner: int, owners: int) -> Call:
    """Return the call that puts a new table into the scope: one of the ``owners`` of its rows."""
    table: PlannedTable = op.attrs["table"]
    variable = binding.scope.var(table.parameter)
    return lambda: variable.hold(make_table(table, owner, owners))


def server_table(binding: Binding, name: str) -> SparseTable:
    """Return a table from the scope; GraphError if the startup Program has not made it."""
    variable = binding.scope.find_var(name)
    if variable is None or not isinstance(variable.value, SparseTable):
        raise GraphError(
            f"table {name!r} is not initialized: run the startup program first "
            "(exe.run(fluid.default_startup_program()))"
        )
    return variable.value
