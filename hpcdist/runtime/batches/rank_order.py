"""Sequences in the order of their lengths, in loops and around them: each trainer's own. Pure."""

from __future__ import annotations

from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import lookup
from hpcdist.graph.rows import How, OfRows

_SORT = {"reorder_lod_tensor_by_rank", "lod_tensor_to_array"}
_KEEP = {"write_to_array", "read_from_array", "shrink_rnn_memory"}  # the order of what they read
_END = {"while", "array_to_lod_tensor"}  # its turns keep it; back in order
_END |= {"fill_constant_batch_size_like", "lod_array_length"}  # the same in any order
SORTED = OfRows(How.MIXED, why="it is in the order of lengths, each trainer's of its own sequences")


class RankOrder:
    """Which values of block 0 are in the order of a rank table.

    There each trainer's sequences are sorted, not those of the whole batch, so that such values
    are rows of the batch again only within a loop, or when they are back in order.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def met(self, op: Operator) -> bool:
        """Follow an operator of the forward pass; return whether it would mix two orders."""
        reads = not self.names.isdisjoint(op.input_arg_names)
        if op.type in _SORT or (reads and op.type in _KEEP):
            self.names.update(op.output_arg_names)
            return False
        self.names.difference_update(op.output_arg_names)
        return reads and op.type not in _END


def within_loop(op: Operator, of: OfRows) -> OfRows:
    """A turn has some rows only, each trainer's in their own order: they must stay apart."""
    definition = lookup(op.type)
    if of.how in (How.SAME, How.MIXED):
        return of
    if op.type == "read_from_array" and of.how is How.ROWS:
        reason = "rows of samples meet sequences by length: memory(init=..., need_reorder=True)"
        return OfRows(How.MIXED, why=reason)
    if op.type == "print":
        return of
    if of.how is not How.RAGGED or definition.lods or definition.state or op.type == "batch_norm":
        reason = f"within a loop, operator {op.type!r} does not keep rows of sequences apart"
        return OfRows(How.MIXED, why=reason)
    return of
