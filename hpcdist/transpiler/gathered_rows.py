"""Sparse gradients without servers: what reads them once trainers have gathered their rows. Pure.

Operators are compiled for the rows of this trainer, and all trainers together have any number.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.errors import PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.transpiler.grad_allreduce import RING_OPS

# Operators that give as many rows as they find in a step, or numbers.
ANY_ROWS = (
    *("clip", "clip_by_norm", "elementwise_mul", "merge_selected_rows", "scale"),
    "squared_l2_norm",
)
# How a clip by the global norm adds up the squares of a sparse gradient, through a dense value.
_SQUARES = ("merge_selected_rows", "get_tensor_from_selected_rows", "square", "reduce_sum")


def with_norms(program: Program) -> Program:
    """Return a Program that takes the norms of gathered rows without a dense value of them."""
    gathered = _summed(program.global_block())
    if not gathered:
        return program
    new = program.clone()
    block = new.global_block()
    of = {name: (name, 0) for name in gathered}  # by value: the gradient, and how far it has come
    for i, op in enumerate(block.ops):
        gradient, done = of.get((op.input("X") or [""])[0], ("", 0))
        if gradient and op.type == _SQUARES[done] and op.attrs.get("reduce_all", True):
            if op.type != _SQUARES[-1]:
                of[op.output("Out")[0]] = gradient, done + 1
            else:
                attrs = {name: op.attrs[name] for name in (ROLE_ATTR, ROLE_VAR_ATTR)}
                inputs = {"X": gradient}
                block.ops[i] = Operator(block, "squared_l2_norm", inputs, op.outputs, attrs)
    block.ops = _without_unread(block.ops, of.keys() - gathered)
    new.touch()
    return new


def _without_unread(ops: Sequence[Operator], names: set[str]) -> list[Operator]:
    """Return the operators but for those on the way to norms that nothing else reads."""
    kept: list[Operator] = []
    read: set[str] = set()
    for op in reversed(ops):
        if (
            op.type in _SQUARES[:-1]
            and names.issuperset(op.output_arg_names)
            and not (read & {*op.output_arg_names})
        ):
            continue
        kept.append(op)
        read.update(op.input_arg_names)
    return kept[::-1]


def check_sparse(program: Program) -> None:
    """Refuse what needs the number of gathered rows before the step: PlanError.

    Adding rows to a dense value, as regularization does, takes any number of them.
    """
    block = program.global_block()
    summed: set[str] = set()
    for op in block.ops:
        if op.type == "c_allreduce_sum":
            summed |= _rows_in(block, op.input("X"))
        rows = summed.intersection(op.input_arg_names)
        if op.type in RING_OPS or not rows:
            continue
        given = _rows_in(block, op.output_arg_names)
        if not (op.type in ANY_ROWS or op.input("Param") or (op.type == "sum" and not given)):
            raise PlanError(
                f"{op.place} {op}: without servers a sparse gradient has rows of all trainers, and "
                "this operator is compiled for those of one: use embedding(is_sparse=False) for "
                "this table, or a need_clip that leaves it out"
            )
        summed |= given


def _summed(block: Block) -> set[str]:
    """Return the sparse gradients whose rows trainers gather."""
    sums = [op for op in block.ops if op.type == "c_allreduce_sum"]
    return _rows_in(block, [name for op in sums for name in op.input("X")])


def _rows_in(block: Block, names: Sequence[str]) -> set[str]:
    return {name for name in names if block.var(name).type == VarType.SELECTED_ROWS}
