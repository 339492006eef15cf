"""What a parameter server keeps of its Program: rows of parameters, their state, and counters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.kept import LocalPiece, StepCounter, unsliced
from hpcdist.checkpoint.layout import path_of
from hpcdist.checkpoint.metadata import OPTIMIZER, OTHER, PARAMETER, Piece
from hpcdist.executor.scope import Scope
from hpcdist.graph.distribution import VarDistributed
from hpcdist.graph.program import Program
from hpcdist.ps.table import SparseTable
from hpcdist.runtime.kept.variables import NOT_STATE, persistables, roles_of, tables_of
from hpcdist.transpiler.plan import ProgramPlan
from hpcdist.transpiler.pserver import ServerBlock, ServerPlan, server_plan

TEMPORARY = re.compile(r"(.+\.)?tmp_\d+")  # the names of what layers compute


@dataclass(frozen=True)
class ServerShards:
    """What a server keeps in ``values`` for its Program: see `KeptOnServer`."""

    program: Program
    values: Scope

    @cached_property
    def plan(self) -> ServerPlan:
        """The server's plan. CheckpointError for a Program that is not a server's."""
        plan = server_plan(self.program)
        if plan is None:
            raise CheckpointError(
                "this is not a server's program: run what get_pserver_program(endpoint) returns"
            )
        return plan

    @property
    def index(self) -> int:
        """Which server this is."""
        return self.plan.index

    @property
    def tables(self) -> list[SparseTable]:
        """The distributed tables that this server holds rows of."""
        return tables_of(self.program, self.values)

    @cached_property
    def counter(self) -> StepCounter | None:
        """The step counter of schedules, if there is one."""
        return counter_of(self.plan.plan)

    @property
    def backups(self) -> Mapping[str, tuple[str, ...]]:
        """The copies that trainers have read last, with DC-ASGD, by parameter block."""
        return {block.name: block.backups for block in self.plan.blocks if block.backups}

    @property
    def recomputed(self) -> set[str]:
        """What schedules write before they read it: no need to restore it."""
        read: set[str] = set()
        written: set[str] = set()
        for schedule in self.plan.schedules:
            computed: set[str] = set()
            waiting = [*reversed(self.program.block(schedule).ops)] if schedule >= 0 else []
            while waiting:
                op = waiting.pop()
                read |= set(op.input_arg_names) - computed
                computed |= set(op.output_arg_names)
                if "sub_block" in op.attrs:
                    waiting += reversed(self.program.block(op.attrs["sub_block"]).ops)
            written |= computed
        return written - read

    def saved(self) -> list[LocalPiece]:
        """Return this server's rows of parameters and accumulators, and its counters.

        What all servers have alike (learning rates, counters) is only server 0's, or the trainers'.
        """
        plan = self.plan
        blocks = _blocks_by_state(self.program, plan)
        pieces: dict[str, LocalPiece] = {}
        for record in _records(plan):
            name = record.slice.name
            array = self.values.array_of(name)
            if array is not None:
                pieces[name] = LocalPiece(name, _piece_of(record, blocks.get(name), array))
        if plan.index == 0 and not plan.mode.dense_summed:  # else trainers have the same
            for variable in self._alike():
                pieces.setdefault(variable.local, variable)
        return list(pieces.values())

    def held(self) -> list[LocalPiece]:
        """Return all that this server holds, and has to restore."""
        variables = {variable.local: variable for variable in self.saved()}
        for variable in self._alike():
            variables.setdefault(variable.local, variable)
        return list(variables.values())

    def _alike(self) -> list[LocalPiece]:
        """Return the variables that every server has a copy of, though only server 0 saves them."""
        plan = self.plan
        left_out = _not_state(plan) | _recreated(self.program, plan)
        left_out |= {record.slice.name for record in _records(plan)}
        left_out |= {name for name in self.recomputed if TEMPORARY.fullmatch(name)}
        roles = roles_of(self.program)
        arrays = {v.name: self.values.array_of(v.name) for v in persistables(self.program)}
        return [
            unsliced(name, roles.get(name, OTHER), array)
            for name, array in arrays.items()
            if array is not None and name not in left_out
        ]


def counter_of(plan: ProgramPlan | None) -> StepCounter | None:
    """Return the step counter of a plan's schedules; None if there is none."""
    if plan is None or plan.counter is None:
        return None
    return StepCounter(plan.counter, plan.counters)


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
                    if slot not in NOT_STATE:
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
