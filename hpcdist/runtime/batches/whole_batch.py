"""What operators must know of a batch that trainers share, to compute what one process computes."""

from __future__ import annotations

import numpy as np

from hpcdist import settings
from hpcdist.graph.program import Program
from hpcdist.runtime.batches.scatter_batch import WEIGHT, Share, weighted
from hpcdist.runtime.batches.shared_program import SharedProgram, draws_by_rows
from hpcdist.transpiler.sync_batch_norm import synchronize_batch_norm

ROWS = "@BATCH_ROWS@"  # fed where rows are drawn for: this trainer's first one, and how many


def of_whole_batch(program: Program, shared: SharedProgram, trainers: int) -> Program:
    """Return what a trainer runs of a Program whose batches are shared.

    Its gradients count by its rows, random operators draw what belongs to these rows, and
    batch_norm takes the moments of the batch.
    """
    new = weighted(program)
    block = new.global_block()
    for op in block.ops:
        if draws_by_rows(op) and shared.has_rows(op.output_arg_names[0]):
            if trainers > 1 and shared.draws_all_sequences(op):
                continue  # `shared.why_whole`: every trainer draws for them all
            if ROWS not in block.vars:
                block.create_var(ROWS, shape=(2,), dtype="int64", is_data=True, stop_gradient=True)
            op.inputs["Rows"] = [ROWS]
    if trainers > 1 and settings.BATCH_NORM.read() == "batch":
        synchronize_batch_norm(block, WEIGHT)
    return new


def rows_here(share: Share | None) -> np.ndarray:
    """Return what is fed as `ROWS`."""
    numbers = (0, 0) if share is None else (share.begin, share.end - share.begin)
    return np.array(numbers, np.int64)
