"""shuffle_batch: the rows of a batch in random order; the same on all ranks."""

from __future__ import annotations

import numpy as np

from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.random.counter import Draws, filler, key_of, part_of
from hpcdist.ops.types import ArrayModule, Call


def _shuffle_bind(xp: ArrayModule, x, out, order, startup_seed: int, state: Draws) -> Call:
    rows, target = x.reshape(-1, x.shape[-1]), out.reshape(-1, x.shape[-1])
    draw = filler(
        np, part_of(np.empty(len(rows)), None, None), key_of(startup_seed, state.name), state
    )

    def run() -> None:
        order[...] = xp.asarray(np.argsort(draw(), kind="stable"))
        target[...] = rows[order]

    return run


def _shuffle_grad(xp: ArrayModule, order, dout, dx, startup_seed: int) -> None:
    dx.reshape(-1, dx.shape[-1])[order] = dout.reshape(-1, dx.shape[-1])


def _shuffle_infer(x: Meta, startup_seed: int) -> tuple[Meta, Meta]:
    rows = Meta((*x.shape[:-1], 1), x.dtype).size
    return Meta(x.shape, x.dtype, lod=x.lod), Meta((max(rows, -1),), "int64")


define_with_grad(
    "shuffle_batch",
    "X -> Out, ShuffleIdx",
    "ShuffleIdx, Out@GRAD -> X@GRAD",
    rows=not_on_rows,
    attrs={"startup_seed": 0},
    infer=_shuffle_infer,
    bind=_shuffle_bind,
    state=Draws,
    grad_rows=not_on_rows,
    grad_infer=lambda order, dout, **_: Meta(dout.shape, dout.dtype),
    grad_kernel=_shuffle_grad,
)
