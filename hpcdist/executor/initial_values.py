"""Values that a block reads before it writes them: fed, or initialized in the scope."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.base.nearest import did_you_mean
from hpcdist.executor.analysis import reads, writes
from hpcdist.executor.memory import meta_of
from hpcdist.executor.scope import Scope
from hpcdist.graph.block import Block
from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, program_of
from hpcdist.graph.registry import Meta
from hpcdist.graph.variable import Parameter
from hpcdist.transpiler.sharded_updates import not_here, owners_of


def known_metas(
    block: Block,
    scope: Scope,
    ops: Sequence[Operator],
    feeds: Mapping[str, Meta],
    fetches: Sequence[str],
    keeps: Callable[[str], bool],
) -> dict[str, Meta]:
    """Return the metas known before the operators run: of feeds, and of values in a scope.

    ``keeps(name)`` tells whether a value outlives the run. GraphError for one that is read, or to
    be fetched, and is not initialized.
    """
    metas = dict(feeds)
    written: set[str] = set()
    for op in ops:
        for name in reads(op):
            if name in metas or name in written or not keeps(name):
                continue
            if op.type == "listen_and_serv" and value_in(scope, name) is None:
                continue  # a gradient that trainers will bring
            metas[name] = meta_of(_initialized(block, scope, name))
        written.update(writes(op))
    for name in fetches:
        if name not in written and name not in metas:
            if block.find_var(name) is None:
                hint = did_you_mean(name, block.program.global_block().vars)
                raise GraphError(f"cannot fetch {name!r}: the program has no such variable{hint}")
            metas[name] = meta_of(_initialized(block, scope, name))
    return metas


def value_in(scope: Scope, name: str) -> Any:
    """Return the value of a variable of the scope; None without one."""
    variable = scope.find_var(name)
    return None if variable is None else variable.value


def _initialized(block: Block, scope: Scope, name: str) -> Any:
    table = block.find_var(name.removesuffix(grad_name("")))
    if isinstance(table, Parameter) and table.is_distributed:
        raise GraphError(
            f"{name!r} is not an array: rows of the distributed table {table.name!r} are "
            "created one by one, on servers if there are any; look up the rows of some ids "
            f"with embedding(is_sparse=True, is_distributed=True, param_attr={table.name!r})"
        )
    value = value_in(scope, name)
    program = program_of(block)
    if value is None and name in not_here(program):
        owner = owners_of(program)[name]
        raise GraphError(
            f"variable {name!r} is held by trainer {owner} alone (sharding, or a stage of a "
            "pipeline), so fetch it there; checkpoint.save saves all of it"
        )
    if value is None:
        raise GraphError(
            f"variable {name!r} is not initialized: run the startup program first, which minimize "
            "adds to (exe.run(fluid.default_startup_program()))"
        )
    return value


def refuse_unstarted(program: Program, scope: Scope, started: Collection[str]) -> None:
    """Raise GraphError where the startup of a Program was not run, or before all was added to it.

    For ranks that run another Program in its place, which does not read all that it reads, nor
    has their startup given a value to all: startups that ran have written the names ``started``.
    """
    block = program.global_block()
    used = {name for op in block.ops for name in reads(op)}.difference(started)
    for op in program.startup.global_block().ops if program.startup is not None else ():
        for name in used.intersection(writes(op)):
            variable = block.find_var(name)
            if not (isinstance(variable, Parameter) and variable.is_distributed):
                _initialized(block, scope, name)
