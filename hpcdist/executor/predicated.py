"""Branches on a GPU without waiting: always computed, their results selected by the condition.

To skip operators the host would have to wait for the condition. If a branch computes a few numbers,
as in a learning-rate schedule, computing it always is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.graph.block import Block
from hpcdist.graph.registry import Meta
from hpcdist.ops.types import ArrayModule

MOST = 4096  # elements that a branch may write to be computed in vain

# They compute numbers from numbers: no states, no messages, no other blocks.
_PLAIN = {
    *("assign", "assign_value", "cast", "fill_constant", "fill_zeros_like", "increment", "scale"),
    *("sum", "sqrt", "exp", "floor", "ceil", "cos", "pow", "square", "mean"),
    *("equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal"),
    *("logical_and", "logical_or", "logical_not", "logical_xor"),
}


def may_be_undone(block: Block, written: Sequence[Meta]) -> bool:
    """Return whether a branch is cheap, and only writes values. Pure."""
    small = sum(meta.size for meta in written) <= MOST
    dense = all(meta.type != "SELECTED_ROWS" for meta in written)
    plain = all(op.type in _PLAIN or op.type.startswith("elementwise_") for op in block.ops)
    return small and dense and plain


def run_and_select(
    xp: ArrayModule,
    condition: Any,
    written: Sequence[tuple[Any, Any]],
    steps: Sequence[Callable[[], object]],
) -> Callable[[], None]:
    """Return a call that runs a branch writing the second of each pair, and selects.

    ``condition`` has one element, on the GPU.
    """

    def run() -> None:
        for value, other in written:
            xp.copyto(other, value)
        for step in steps:
            step()
        for value, other in written:
            xp.copyto(value, other, where=condition.reshape([1] * value.ndim))

    return run
