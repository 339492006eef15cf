"""shuffle_batch: the rows of a batch in random order; the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.random.counter import Draws, filler, key_of, part_of
from hpcdist.ops.random.samplers import OLD, integers_below
from hpcdist.ops.random.seeded import MODULUS, start_of
from hpcdist.ops.types import Array, ArrayModule, Call


def _shuffle_bind(
    xp: ArrayModule, x, seed, out, order, seed_out, startup_seed: int, state: Draws
) -> Call:
    rows, target = x.reshape(-1, x.shape[-1]), out.reshape(-1, x.shape[-1])
    draw = filler(
        np, part_of(np.empty(len(rows)), None, None), key_of(startup_seed, state.name), state
    )

    def run() -> None:
        places: Sequence[int] | Array
        if seed is None:
            places, last = np.argsort(draw(), kind="stable"), startup_seed
        else:
            places, last = _shuffled(int(seed.reshape(-1)[0]), len(rows))
        order[...] = xp.asarray(places)
        if seed_out is not None:
            seed_out[...] = last
        target[...] = rows[order]

    return run


def _shuffled(seed: int, count: int) -> tuple[list[int], int]:
    """Return the order of Fluid's kernel for a seed, by libstdc++'s shuffle, and the next seed."""
    order = list(range(count))
    places, state = integers_below(start_of(seed), range(2, count + 1), OLD)
    for last, place in enumerate(places, 1):
        order[last], order[place] = order[place], order[last]
    return order, state * OLD % MODULUS


def _shuffle_grad(xp: ArrayModule, order, dout, dx, startup_seed: int) -> None:
    dx.reshape(-1, dx.shape[-1])[order] = dout.reshape(-1, dx.shape[-1])


def _shuffle_infer(x: Meta, seed: Meta | None, startup_seed: int) -> tuple[Meta, ...]:
    rows = Meta((*x.shape[:-1], 1), x.dtype).size
    return Meta(x.shape, x.dtype, lod=x.lod), Meta((max(rows, -1),), "int64"), Meta((1,), "int64")


define_with_grad(
    "shuffle_batch",
    "X, Seed? -> Out, ShuffleIdx, SeedOut?",
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
