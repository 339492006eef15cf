"""Dropout, with masks that any number of trainers draw alike; with a fixed seed, Fluid's own."""

from __future__ import annotations

import functools
from dataclasses import replace
from functools import partial

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Given, Meta, define
from hpcdist.graph.rows import Applied, Result, by_element, by_row, constant
from hpcdist.ops.common import define_with_grad, in_sequence, same
from hpcdist.ops.random.counter import (
    BatchPart,
    Draws,
    counters,
    filler,
    key_of,
    part_of,
    pieces_of,
)
from hpcdist.ops.random.seeded import start_of, uniform
from hpcdist.ops.types import ArrayModule, Call, DeviceArray, Metas

UPSCALE = "upscale_in_train"
DOWNGRADE = "downgrade_in_infer"


def _rows(op: Applied) -> Result:
    """Masks of rows are known by where these are in the batch; padding moves what follows it."""
    return (by_element() if op.attrs["is_test"] else by_row())(op)


def _fixed_mask(part: BatchPart, mask, xp: ArrayModule, seed: int, dropout_prob: float) -> Call:
    """Return the call that writes the mask of Fluid's kernel for a fixed seed, always the same.

    It is from a stream as in `random.seeded`; a part of a batch has its part of the mask.
    """

    @functools.lru_cache(1)
    def drawn(skipped: int) -> DeviceArray:
        numbers = uniform(start_of(seed), skipped, part.size, 0.0, 1.0)
        keep = (numbers >= np.float32(dropout_prob)).astype(np.uint8)
        return xp.asarray(keep.reshape(mask.shape))

    return lambda: xp.copyto(mask, drawn(part.skipped()))


def keep_scale(dropout_prob: float, dropout_implementation: str) -> float:
    """Return the factor of elements that stay."""
    return 1.0 / (1.0 - dropout_prob) if dropout_implementation == UPSCALE else 1.0


def test_scale(dropout_prob: float, dropout_implementation: str) -> float:
    """Return the factor of all elements where none are dropped."""
    return 1.0 if dropout_implementation == UPSCALE else 1.0 - dropout_prob


def _infer(
    x: Meta, rows: Meta | None, dropout_prob: float, dropout_implementation: str, **_
) -> Metas:
    if not 0.0 <= dropout_prob <= 1.0:
        raise GraphError(f"dropout_prob must be within 0..1, got {dropout_prob}")
    if dropout_implementation not in (UPSCALE, DOWNGRADE):
        raise GraphError(
            f"dropout_implementation must be {UPSCALE!r} or {DOWNGRADE!r}, "
            f"got {dropout_implementation!r}"
        )
    return replace(same(x), lod=x.lod), Meta(x.shape, "uint8", lod=x.lod)


def _bind(
    xp: ArrayModule,
    x,
    rows,
    out,
    mask,
    dropout_prob: float,
    is_test: bool,
    dropout_implementation: str,
    seed: int,
    fix_seed: bool,
    stream: int,
    given_seed: int | None,
    state: Draws,
    lods,
) -> Call:
    if is_test:
        return partial(xp.multiply, x, test_scale(dropout_prob, dropout_implementation), out)
    if dropout_prob == 1.0:
        return in_sequence(partial(mask.fill, 0), partial(out.fill, 0))
    if given_seed is not None:
        seed, fix_seed = given_seed, True
    scale = keep_scale(dropout_prob, dropout_implementation)
    part = part_of(x, rows, lods[0])
    if not fix_seed and xp is np:
        return _fused(x, out, mask, part, key_of(seed, stream), state, dropout_prob, scale)
    if fix_seed:
        steps = [_fixed_mask(part, mask, xp, seed, dropout_prob)]
    else:
        fill, limit = filler(xp, part, key_of(seed, stream), state), keep_threshold(dropout_prob)
        steps = [lambda: xp.copyto(mask, (fill() >= limit).reshape(mask.shape))]
    steps.append(partial(xp.multiply, x, mask, out))
    if scale != 1.0:
        steps.append(partial(xp.multiply, out, scale, out))
    return in_sequence(*steps)


def keep_threshold(dropout_prob: float) -> np.uint32:
    """Return the least of 2^32 words that keeps an element."""
    return np.uint32(min(round(dropout_prob * 2**32), 2**32 - 1))


def _fused(
    x,
    out,
    mask,
    part: BatchPart,
    key: tuple[int, int],
    draws: Draws,
    dropout_prob: float,
    scale: float,
) -> Call:
    """Return mask and product in one pass over memory."""
    from hpcdist.ops.random.counter_kernels import drop  # numba takes 0.3 s to import

    pieces, limit = pieces_of(part), keep_threshold(dropout_prob)
    arrays = x.reshape(-1), x.dtype.type(scale), mask.reshape(-1), out.reshape(-1)
    drop(0, 0, 0, 0, *key, pieces[:1], limit, *arrays)  # no piece: compiled now, not in a step
    return lambda: drop(*counters(part, draws.next()), *key, pieces, limit, *arrays)


def _grad_bind(
    xp: ArrayModule,
    mask,
    dout,
    dx,
    dropout_prob: float,
    is_test: bool,
    dropout_implementation: str,
    **_,
) -> Call:
    if is_test:  # there is no mask
        return partial(xp.multiply, dout, test_scale(dropout_prob, dropout_implementation), dx)
    product = partial(xp.multiply, dout, mask, dx)
    if dropout_prob == 1.0 or dropout_implementation == DOWNGRADE:
        return product
    scale = keep_scale(dropout_prob, dropout_implementation)
    return in_sequence(product, partial(xp.multiply, dx, scale, dx))


def _seed_bind(xp: ArrayModule, out, seed: int, state: Draws) -> Call:
    if seed:
        return partial(out.fill, seed)
    words = filler(np, part_of(np.empty(1), None, None), key_of(0, state.name), state)
    return lambda: out.fill(int(words()[0]) >> 1)


define(  # what a dropout reads that is computed again for the gradient
    "seed",
    " -> Out",
    rows=constant,
    attrs={"seed": 0},
    infer=lambda seed: Meta((1,), "int32"),
    bind=_seed_bind,
    state=Draws,
)
_ATTRS = {
    "dropout_prob": 0.5,
    "is_test": False,
    "seed": 0,
    "fix_seed": False,  # the same mask in every step, Fluid's for this seed
    "stream": 0,
    "dropout_implementation": DOWNGRADE,
}
define_with_grad(
    "dropout",
    "X, Seed?, Rows? -> Out, Mask",  # Rows: which of a shared batch are here, see `BatchPart`
    "Mask, Out@GRAD -> X@GRAD",
    rows=_rows,
    attrs=_ATTRS,
    given={"given_seed": Given("Seed")},
    infer=_infer,
    bind=_bind,
    state=Draws,
    lods=("X",),
    inplace={"Out": "X"},
    grad_infer=lambda mask, dout, **_: same(dout),
    grad_bind=_grad_bind,
    grad_lods=(),
    grad_inplace={"X@GRAD": "Out@GRAD"},
)
