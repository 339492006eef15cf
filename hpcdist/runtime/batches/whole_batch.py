"""Facts about the whole batch, for operators that must compute as in one process."""

from __future__ import annotations

import numpy as np

from hpcdist.base import settings
from hpcdist.graph.program import Program
from hpcdist.runtime.batches.analysis import SharedProgram
from hpcdist.runtime.batches.scatter import WEIGHTS, Share, weighted
from hpcdist.transpiler.sync_batch_norm import synchronize_batch_norm

ROWS = "@BATCH_ROWS@"  # fed where rows are drawn for: this trainer's first one, and how many


def of_whole_batch(program: Program, shared: SharedProgram, trainers: int) -> Program:
    """Return a trainer's form of a Program whose batches are shared.

    Its gradients count by its rows, random operators draw what belongs to these rows, and
    batch_norm takes the moments of the batch: from all trainers, if they divide it.
    """
    new = of_own_rows(program, shared)
    if trainers > 1 and not shared.why_whole and settings.BATCH_NORM.read() == "batch":
        synchronize_batch_norm(new.global_block(), WEIGHTS[shared.weight_dtypes[0]])
    return new


def of_own_rows(program: Program, shared: SharedProgram) -> Program:
    """Return a copy whose gradients count by the fed rows, and whose draws belong to them."""
    new = weighted(program)
    block = new.global_block()
    drawing = [op for op in block.ops if shared.draws_for_rows(op)]
    if drawing:
        block.create_var(ROWS, shape=(2,), dtype="int64", is_data=True, stop_gradient=True)
    for op in drawing:
        op.inputs["Rows"] = [ROWS]
    return new


def seen_in_part(program: Program, shared: SharedProgram) -> list[str]:
    """Name the operators that show users, or their functions, a trainer's part of a value."""
    return [
        f"{op.place} {op.type} of {', '.join(parts)}"
        for block in program.blocks
        for op in block.ops
        if op.type in ("print", "py_func") and (parts := shared.parts_of(op.input_arg_names))
    ]


def rows_here(share: Share | None) -> np.ndarray:
    """Return the fed value of `ROWS`."""
    numbers = (0, 0) if share is None else (share.begin, share.end - share.begin)
    return np.array(numbers, np.int64)
