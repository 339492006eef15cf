"""Optimizer state divided among trainers (ZeRO-1: Rajbhandari et al., 2020). Pure.

Each parameter has an owner. Only the owner keeps the state of its optimizer and updates it, by the
gradient that all have; then it broadcasts the parameter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hpcdist.base.errors import PlanError
from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.graph.block import Block
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.printing import exact_text
from hpcdist.graph.program import Program
from hpcdist.transpiler.group import Group, group_of


@dataclass(frozen=True)
class StateOwners:
    """Who owns what: the trainer of each parameter, and of each variable of optimizer state."""

    parameters: Mapping[str, int]
    state: Mapping[str, int]


def sharded(program: Program, group: Group) -> Program:
    """Return a trainer's Program in place of one that trains, or of its startup Program."""
    if program.trains:
        return _main(program, group)
    return program if program.main is None else _startup(program, program.main, group)


def owners_of(program: Program) -> Mapping[str, int]:
    """Return which trainer holds a variable, if trainers divide them.

    Of optimizer state with sharding; of all that stages keep in a pipeline, whose stage k is
    trainer k, and others if there are several of each.
    """
    group = group_of(program)
    if group is None or group.owners or not group.sharded:
        return {} if group is None else group.owners
    return shards_of(program, len(group.endpoints)).state


def not_here(program: Program) -> set[str]:
    """Return the variables that other trainers hold, not this one."""
    group = group_of(program)
    me = -1 if group is None else group.holder
    return {name for name, owner in owners_of(program).items() if owner != me}


def shards_of(program: Program, trainers: int) -> StateOwners:
    """Give each parameter whose optimizer keeps state an owner: all have about as many bytes.

    Gradients of some rows are left out: to broadcast the whole table would take longer.
    """
    block = program.global_block()
    state: dict[str, set[str]] = {}
    for op in block.ops:
        if op.type in OPTIMIZERS and block.var(op.input("Grad")[0]).type != "SELECTED_ROWS":
            names = {name for slot in OPTIMIZERS[op.type].state for name in op.input(slot)}
            state.setdefault(op.input("Param")[0], set()).update(names)
    sizes = {p: sum(_nbytes(block, name) for name in names) for p, names in state.items() if names}
    loads = [0] * trainers
    owners: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name]
    return StateOwners(owners, {name: owners[p] for p in sizes for name in sorted(state[p])})


def _nbytes(block: Block, name: str) -> int:
    var = block.var(name)
    return math.prod(var.shape) * np.dtype(var.dtype).itemsize


def _main(program: Program, group: Group) -> Program:
    shards = shards_of(program, len(group.endpoints))
    new = program.clone()
    block = new.global_block()
    updates = [
        i
        for i, op in enumerate(block.ops)
        if op.type in OPTIMIZERS and op.input("Param")[0] in shards.parameters
    ]
    digest = hashlib.sha256(exact_text(program).encode()).hexdigest()
    new.distribution = replace(group, owners=shards.state, fingerprint=digest)
    if not updates:
        return new
    _check_order(block, updates, shards)
    # Others' updates go, and so does what else moves their state: the powers of Adamax and Lamb.
    elsewhere = {name for name, owner in shards.state.items() if owner != group.trainer_id}
    before = [op for op in block.ops[: updates[-1] + 1] if not elsewhere & {*op.output_arg_names}]
    behind = [op for op in block.ops[updates[-1] + 1 :] if not elsewhere & {*op.output_arg_names}]
    block.ops = before + _broadcasts(block, shards) + behind
    return new


def _check_order(block: Block, updates: list[int], shards: StateOwners) -> None:
    """Refuse what would read a parameter between its update and the broadcast."""
    for i in range(updates[0], updates[-1]):
        op = block.ops[i]
        moved = shards.parameters.keys() & {*op.input_arg_names, *op.output_arg_names}
        if i not in updates and moved:
            raise PlanError(
                f"{op.place} {op} uses {min(moved)!r} between updates, but with sharding it gets "
                "its new value after the last of them: minimize once, or leave sharding out"
            )


def _broadcasts(block: Block, shards: StateOwners) -> list[Operator]:
    broadcasts = []
    for name in sorted(shards.parameters, key=lambda name: shards.parameters[name]):
        attrs = {
            "ring_id": 0,
            "root": shards.parameters[name],
            "use_calc_stream": False,
            ROLE_ATTR: int(OpRole.OPTIMIZE),
        }
        broadcasts.append(Operator(block, "c_broadcast", {"X": name}, {"Out": name}, attrs))
    return broadcasts


def _startup(startup: Program, main: Program, group: Group) -> Program:
    state = shards_of(main, len(group.endpoints)).state
    new = startup.clone()
    new.initialize_as(startup)
    block = new.global_block()
    elsewhere = {name for name, owner in state.items() if owner != group.trainer_id}
    block.ops = [op for op in block.ops if not elsewhere & {*op.output_arg_names}]
    return new
