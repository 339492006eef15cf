"""Optimize blocks of a server: trainers' gradients are merged, and the parameter is updated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.base.optimizers import OPTIMIZERS
from hpcdist.executor.compile import steps_of
from hpcdist.executor.control import Binding
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Call, declared_attrs, lookup
from hpcdist.ops.common import in_sequence
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.optimize.operators import bind_update as fused_pass
from hpcdist.ops.optimize.sparse_gradients import bind_sparse_update
from hpcdist.ps.sparse_rpc import SentRows
from hpcdist.runtime.pserver.staged_updates import StagedUpdates
from hpcdist.transpiler.pserver import ServerBlock

Update = Callable[[tuple[int, ...]], object]  # contributors: update one block
Apply = Callable[[tuple[int, ...]], Call]  # contributors -> what updates one block
TRAINER_ID = "@TRAINER_ID@"


@dataclass(frozen=True)
class OptimizeBlock:
    """One optimize block: trainers' gradients are merged into ``gradient``, then ``ops`` run.

    ``backups``: with DC-ASGD, ``parameter`` as trainers 0, 1, ... last read it.
    """

    block: Block
    gradient: str
    parameter: str
    ops: tuple[Operator, ...]  # without the sum and scale that merge
    backups: tuple[str, ...] = ()


def optimize_block(program: Program, served: ServerBlock) -> OptimizeBlock:
    """Take the merge off an optimize block; what is left is clip, regularization, update.

    With GEO the block is one sum: what arrives is added to the parameter.
    """
    block = program.block(served.block)
    ops = list(block.ops)
    if ops[0].type == "sum" and ops[0].output("Out") == [served.gradient]:
        merge = 2 if ops[1].type == "scale" else 1
        ops = ops[merge:]
    return OptimizeBlock(block, served.gradient, served.name, tuple(ops), served.backups)


def bind_dense(
    block: OptimizeBlock, rows: Any, binding: Binding, staged: StagedUpdates | None
) -> Apply:
    """Return `bind_update`, or its part of what updates all blocks of a step together."""
    if staged is None:
        return bind_update(block, rows, binding)
    merged = np.empty(rows.shape[1:], rows.dtype)

    def mean(contributors: tuple[int, ...]) -> Any:
        merge_rows(rows, contributors, merged)
        return merged

    return later(staged.add_dense(block.block, block.gradient, block.ops, merged, mean))


def later(update: Update) -> Apply:
    """Return a factory: for some contributors, a call of ``update`` with them."""
    return functools.partial(functools.partial, update)


def bind_update(block: OptimizeBlock, rows: Any, binding: Binding) -> Apply:
    """Return the call that merges the contributors' rows of a gradient and updates its parameter.

    ``rows`` [trainers, *shape] is where their packets arrive. The merge is their sum in trainer
    order times 1/contributors. Where an optimizer has a fused kernel, merge and update are one
    pass over memory; both ways give the same bits.
    """
    if len(block.ops) == 1 and block.ops[0].type in OPTIMIZERS:
        return _fused(block.ops[0], rows, binding)
    merged = binding.backend.xp.empty(rows.shape[1:], rows.dtype)
    sender = np.zeros(1, np.int64)  # DC-ASGD compensates for what this trainer had read
    arrays = {block.gradient: merged, TRAINER_ID: sender}
    run = in_sequence(*steps_of(block.block, block.ops, binding, arrays))
    backups = _backups(block, binding)
    param = array_of(binding, block.parameter)

    def generic(contributors: tuple[int, ...]) -> None:
        sender[0] = contributors[0]
        merge_rows(rows, contributors, merged)
        run()
        if backups:
            backups[contributors[0]][...] = param

    return later(generic)


def _fused(op: Operator, rows: Any, binding: Binding) -> Apply:
    """Return merge and update as one pass, bound anew for every set of contributors."""
    param, rate, state = _optimizer_arrays(op, binding)

    def bound(contributors: tuple[int, ...]) -> Call:
        attrs = declared_attrs(lookup(op.type), op.attrs)
        scale = 1.0 / len(contributors)
        xp = binding.backend.xp
        return fused_pass(xp, op.type, attrs, param, rate, state, rows, contributors, scale)

    bound(tuple(range(len(rows))))  # compiled before the first step, not in it
    return bound


def bind_sparse(
    block: OptimizeBlock,
    sent: Sequence[SentRows],
    binding: Binding,
    staged: StagedUpdates | None = None,
) -> Apply:
    """Return the call that merges sparse gradients of a table and updates its rows.

    ``sent[k]`` is what trainer k sent. The merge lists all rows in trainer order, their values
    times 1/contributors. If there are none, here or on other servers, nothing changes, whatever the
    optimizer, unless a regularizer makes all rows decay in every step.
    """
    height = len(array_of(binding, block.parameter))
    decays = any(_reads_only(op, block.parameter) for op in block.ops if not op.input("Param"))

    def mean(contributors: tuple[int, ...]) -> SelectedRows | None:
        rows = np.concatenate([sent[k].rows for k in contributors])
        values = np.concatenate([sent[k].values for k in contributors])
        beside_rows = any(sent[k].beside_rows for k in contributors)
        if not (len(rows) or beside_rows or decays):
            return None
        if len(contributors) > 1:
            values *= values.dtype.type(1.0 / len(contributors))
        return SelectedRows(rows, values, height, beside_rows)

    if staged is not None:
        on = functools.partial(_ops_on, block)
        return later(staged.add_sparse(block.block, block.gradient, on, mean))
    apply = _sparse_apply(block, binding)

    def update(contributors: tuple[int, ...]) -> None:
        merged = mean(contributors)
        if merged is not None:
            apply(merged)

    return later(update)


def _reads_only(op: Operator, name: str) -> bool:
    return name in op.input_arg_names and name not in op.output_arg_names


def _sparse_apply(block: OptimizeBlock, binding: Binding) -> Callable[[SelectedRows], None]:
    """Return the call that runs the operators after the merge on a sparse gradient.

    A lone optimizer is bound once. Clip or regularization before it depends on the number of rows,
    so that block is compiled for every gradient.
    """
    if len(block.ops) == 1 and block.ops[0].type in OPTIMIZERS:
        op, (param, rate, state) = block.ops[0], _optimizer_arrays(block.ops[0], binding)
        attrs = declared_attrs(lookup(op.type), op.attrs)
        return bind_sparse_update(binding.backend.xp, op.type, attrs, param, rate, state)

    def apply(merged: SelectedRows) -> None:
        ops, gradients = _ops_on(block, merged)
        in_sequence(*steps_of(block.block, ops, binding, gradients))()

    return apply


def _ops_on(
    block: OptimizeBlock, merged: SelectedRows
) -> tuple[Sequence[Operator], dict[str, SelectedRows]]:
    """Return the operators to run on a merged gradient, and the sparse gradients that they read.

    Where this server has none of the rows there is nothing to clip: the optimizer moves what moves
    by itself, such as moments.
    """
    optimizer = next((op for op in block.ops if op.input("Param")), None)
    if len(merged.rows) or optimizer is None:  # GEO's differences are only added
        return block.ops, {block.gradient: merged}
    (gradient,) = optimizer.input("Grad")
    var = block.block.find_var(gradient)
    if var is None or var.type != VarType.SELECTED_ROWS:  # regularized, in all rows
        return block.ops, {block.gradient: merged}
    of_gradient, kept = {block.gradient}, []
    for op in block.ops:
        if op is optimizer or of_gradient.isdisjoint(op.input_arg_names):
            kept.append(op)
        else:
            of_gradient.update(op.output_arg_names)
    return kept, {gradient: merged}


def _optimizer_arrays(op: Operator, binding: Binding) -> tuple[Any, Any, list[Any]]:
    """Return parameter, learning rate and state of an optimizer operator."""
    names = [op.input(slot)[0] for slot in OPTIMIZERS[op.type].state if op.input(slot)]
    state = [array_of(binding, name) for name in names]
    param = array_of(binding, op.input("Param")[0])
    rates = op.input("LearningRate")  # without one, anything stands for it
    return param, array_of(binding, rates[0]) if rates else param, state


def merge_rows(rows: Any, contributors: Sequence[int], out: Any) -> None:
    """Write the mean of some rows into ``out``: summed in ascending order, then scaled."""
    out[...] = rows[contributors[0]]
    for trainer in contributors[1:]:
        out += rows[trainer]
    if len(contributors) > 1:
        out *= out.dtype.type(1.0 / len(contributors))


def bind_back_up(blocks: Sequence[OptimizeBlock], binding: Binding) -> Callable[[int], None]:
    """Return the call by which DC-ASGD backs up the parameters that a trainer reads now."""
    pairs = [(array_of(binding, b.parameter), _backups(b, binding)) for b in blocks]

    def back_up(trainer: int) -> None:
        for param, backups in pairs:
            if backups:
                backups[trainer][...] = param

    return back_up


def _backups(block: OptimizeBlock, binding: Binding) -> list[Any]:
    """Return, with DC-ASGD, the parameter as each trainer last read it; else nothing."""
    return [array_of(binding, name) for name in block.backups]


def array_of(binding: Binding, name: str) -> Any:
    """Return a variable of this server; GraphError if its startup Program has not run."""
    variable = binding.scope.find_var(name)
    if variable is None or variable.value is None:
        raise GraphError(
            f"variable {name!r} is not initialized on this server: run the startup program that "
            "get_startup_program() returns first"
        )
    return variable.value
