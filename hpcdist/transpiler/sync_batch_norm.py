"""batch_norm becomes sync_batch_norm: its moments are those of all trainers' rows together."""

from __future__ import annotations

from hpcdist.graph.block import Block
from hpcdist.graph.registry import check_read, lookup

SYNCHRONIZED = {"batch_norm": "sync_batch_norm", "batch_norm_grad": "sync_batch_norm_grad"}


def synchronize_batch_norm(block: Block, weight: str | None = None) -> None:
    """Rewrite the operators of a block in place; those by running moments stay as they are.

    ``weight`` names what is 0 on a trainer whose rows do not count. GraphError for a momentum that
    is given as a value.
    """
    for op in block.ops:
        by_running = op.attrs.get("is_test") or op.attrs.get("use_global_stats")
        if op.type in SYNCHRONIZED and not by_running:
            op.type = SYNCHRONIZED[op.type]
            check_read(lookup(op.type), op.inputs)
            if weight is not None:
                op.inputs["Weight"] = [weight]
    block.program.touch()
