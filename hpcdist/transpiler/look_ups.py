"""Moves the look-ups in tables of servers to one place of a block, to make them at once."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.graph.operator import Operator


def at_once(
    ops: Sequence[Operator], lookups: Sequence[Operator], first: int = 0
) -> tuple[list[Operator], int] | None:
    """Return all other operators, and the place among them of one look-up instead of all.

    It is ``first`` or later, after all that compute ids. Those that stand after a reader of rows
    move before it. None where they cannot: ids are computed from rows, or names are used again.
    """
    last = max(map(ops.index, lookups))
    ids = {op.input("Ids")[0] for op in lookups}
    rows = {op.output("Out")[0] for op in lookups}
    for op in lookups:
        if any(_writes(later, {op.input("Ids")[0]}) for later in ops[ops.index(op) : last]):
            return None
    before = [op for op in ops[:last] if op not in lookups]
    end = max(first, 1 + max((i for i, op in enumerate(before) if _writes(op, ids)), default=-1))
    readers = (i for i, op in enumerate(before[:end]) if rows & set(op.input_arg_names))
    begin = min(readers, default=end)
    moved: list[Operator] = []
    needed = set(ids)
    for op in reversed(before[begin:end]):
        if _writes(op, needed):
            moved.insert(0, op)
            needed |= set(op.input_arg_names)
    passed: set[str] = set()  # names of the operators that others move before
    for op in before[begin:end]:
        if op not in moved:
            passed |= {*op.input_arg_names, *op.output_arg_names}
        elif _writes(op, passed) or "sub_block" in op.attrs:
            return None
    if needed & rows:
        return None
    between = [op for op in before[begin:] if op not in moved]
    return [*before[:begin], *moved, *between, *ops[last + 1 :]], begin + len(moved)


def _writes(op: Operator, names: set[str]) -> bool:
    return not names.isdisjoint(op.output_arg_names)
