"""Startup programs: servers initialize their blocks, trainers receive them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block, block_of
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ops.tensor.constant import VALUE_ATTRS
from hpcdist.ps.planned_tables import PlannedTable
from hpcdist.transpiler.dc_asgd import append_backup_init
from hpcdist.transpiler.distributed_table import rows_on_each
from hpcdist.transpiler.plan import ProgramPlan
from hpcdist.transpiler.program_roles import program_roles
from hpcdist.transpiler.pserver import Shard, shards_on
from hpcdist.transpiler.rpc import control_name, rpc_op
from hpcdist.transpiler.trainer import (
    concat_op,
    control_names_used,
    declare_parts,
    optimizer_vars,
)

FULL = "@WHOLE"  # after the name of what a server computes only to initialize its part
RANDOM = ("uniform_random", "gaussian_random", "truncated_gaussian_random")


def trainer_startup(startup: Program, program: Program, plan: ProgramPlan) -> Program:
    """Return the startup program of a trainer: it ends with receiving the servers' values.

    A sparse table is not initialized here: its rows are looked up on the servers.
    """
    new = startup.clone()
    block = new.global_block()
    on_servers = set(optimizer_vars(program, program_roles(program)))
    block.ops = [op for op in block.ops if on_servers.isdisjoint(op.output_arg_names)]
    for name in on_servers & block.vars.keys():
        block.remove_var(name)
    receive_parameters(block, plan, control_names_used(plan))
    for route in plan.routes:
        if route.remote:
            _fake_init(block, route.parameter)
    for table in plan.tables:
        _fake_init(block, table.parameter)
    new.distribution = replace(plan, startup=True)
    return new


def receive_parameters(block: Block, plan: ProgramPlan, control: int) -> None:
    """Append what reads the servers' parameters; ``control`` numbers the barrier's output."""
    received = [route for route in plan.routes if not route.remote]
    for route in received:
        names = [s.name for s in route.slices]
        block.create_var(route.parameter, shape=route.shape, dtype=route.dtype, persistable=True)
        if route.cut:
            declare_parts(block, route, names)
        at = {"epmap": list(route.endpoints), "trainer_id": plan.trainer_id}
        block.add_op(rpc_op(block, "recv", {}, {"Out": names}, recv_varnames=[], **at))
    barrier = control_name(control)
    block.create_var(barrier, dtype="bool")
    everywhere = {"endpoints": list(plan.endpoints), "trainer_id": plan.trainer_id}
    block.add_op(rpc_op(block, "fetch_barrier", {}, {"Out": barrier}, **everywhere))
    for route in received:
        if route.cut:
            block.add_op(concat_op(block, route, OpRole.FORWARD))


def _fake_init(block: Block, table: str) -> None:
    """Replace a table's initializer by one that leaves its values open."""
    block.ops = [op for op in block.ops if table not in op.output_arg_names]
    var = block.var(table)
    attrs = {"shape": list(var.shape), "dtype": var.dtype, ROLE_ATTR: int(OpRole.FORWARD)}
    block.add_op(Operator(block, "fake_init", {}, {"Out": table}, attrs))


def pserver_startup(
    startup: Program, program: Program, plan: ProgramPlan, endpoint: str, server: Program
) -> Program:
    """Return the startup program of the server at ``endpoint``, whose main program is ``server``.

    Each of its variables gets its part of what the original startup program would have given it.
    """
    new = Program()
    new.random_seed = startup.random_seed
    home = new.global_block()
    for var in server.global_block().vars.values():
        home.add_var(var.copied_to(home))
    owners: dict[str, list[Shard]] = {}
    for shard in shards_on(program, plan, program_roles(program), endpoint):
        for name in shard.variables:
            owners.setdefault(name, []).append(shard)
    tables = {name: table for table in plan.tables for name in table.names}
    for op in startup.global_block().ops:
        table = tables.get(op.output_arg_names[0])
        if table is not None:
            _initialize_table(op, home, plan, table, endpoint)
        else:
            _initialize(op, home, owners)
    if plan.mode.dc_asgd:
        append_backup_init(home, plan, endpoint)
    new.distribution = server.distribution
    return new


def _initialize(op: Operator, home: Block, owners: dict[str, list[Shard]]) -> None:
    """Copy an initializer once for each variable of the server that it is to fill."""
    missing = [name for name in op.input_arg_names if not home.has_var(name)]
    for name in op.output_arg_names:
        holders: list[Shard | None] = [*owners.get(name, [])]
        for shard in holders or [None]:
            local = name if shard is None else shard.local(name)
            if not home.has_var(local):
                continue
            if missing:
                _initialize_from_others(op, home, name, local, shard)
                continue
            copied = op.copied_to(home)
            copied.rename({name: local})
            if shard is not None and not shard.piece.uncut:
                _cut(copied, op, name, shard, home.var(local).shape)
            home.add_op(copied)


def _initialize_from_others(
    op: Operator, home: Block, name: str, local: str, shard: Shard | None
) -> None:
    """Compute here, whole, what an initializer reads of other variables; keep the server's part.

    Such as the lengths of weight normalization, which are norms of a parameter that begins at
    random: every server draws the same.
    """
    for before in [*_producers(op), op]:
        copied = before.copied_to(home)
        copied.rename({n: n + FULL for n in (*before.input_arg_names, *before.output_arg_names)})
        for old in before.output_arg_names:
            if not home.has_var(old + FULL):
                var = block_of(before).var(old)
                home.create_var(old + FULL, shape=var.shape, dtype=var.dtype)
        home.add_op(copied)
    rows = home.var(name + FULL).shape[0]
    begin, end = (0, rows) if shard is None else (shard.piece.begin, shard.piece.end)
    attrs = {"axes": [0], "starts": [begin], "ends": [end], ROLE_ATTR: int(OpRole.FORWARD)}
    home.add_op(Operator(home, "slice", {"Input": name + FULL}, {"Out": local}, attrs))


def _producers(op: Operator) -> list[Operator]:
    """Return the operators of a startup Program that an operator's inputs come from, in order."""
    ops, needed, makers = op.block.ops, {*op.input_arg_names}, []
    for before in reversed(ops[: ops.index(op)]):
        if needed & {*before.output_arg_names}:
            makers.append(before)
            needed = (needed - {*before.output_arg_names}) | {*before.input_arg_names}
    if needed:
        raise PlanError(f"initializer {op} reads {min(needed)!r}, which nothing initializes")
    return makers[::-1]


def _initialize_table(
    op: Operator, home: Block, plan: ProgramPlan, table: PlannedTable, endpoint: str
) -> None:
    """Say how the rows of a server begin, in the form of Fluid; `table_steps` has what runs."""
    height = rows_on_each(plan, table)
    copied = op.copied_to(home)
    copied.attrs["shape"] = [height, *table.shape[1:]]
    size = math.prod(copied.attrs["shape"])
    if op.type in RANDOM:
        copied.attrs["offset"] = size * plan.endpoints.index(endpoint)
        copied.attrs["full_size"] = size * len(plan.endpoints)
    home.add_op(copied)


def _cut(copied: Operator, op: Operator, name: str, shard: Shard, shape: tuple[int, ...]) -> None:
    """Make an initializer give a block the values that it has in the complete variable."""
    full_shape = op.block.program.global_block().var(name).shape
    if shape == full_shape:
        return
    attrs: dict[str, Any] = {"shape": list(shape)}
    if op.type in RANDOM:
        attrs.update(offset=shard.piece.offset, full_size=math.prod(full_shape))
    elif op.type == "assign_value":
        for attr in VALUE_ATTRS.values():
            if np.size(op.attrs.get(attr, ())):
                values = np.reshape(op.attrs[attr], full_shape)
                attrs[attr] = values[shard.piece.begin : shard.piece.end]
    elif op.type != "fill_constant":
        raise PlanError(
            f"initializer {op} cannot fill a part of {name!r}, which is cut over several servers: "
            "use another initializer, or config.slice_var_up = False"
        )
    copied.attrs.update(attrs)
