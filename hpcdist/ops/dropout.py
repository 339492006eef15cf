"""Dropout, with masks that every run draws alike; with a fixed seed, Fluid's own."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import numpy as np

from hpcdist.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.ops.common import grad_by, in_sequence, same
from hpcdist.ops.labels import Call
from hpcdist.ops.random import start_of, uniform

JOB_SEED = "HPCDIST_SEED"  # environment: the seed of operators that have none
UPSCALE = "upscale_in_train"
DOWNGRADE = "downgrade_in_infer"


def _mask_stream(seed: int, stream: int, fix_seed: bool, **_: Any) -> np.random.Generator | None:
    """Return the numbers of one operator: they depend on its seeds only, not on the process."""
    if fix_seed:
        return None
    key = np.array([seed or int(os.environ.get(JOB_SEED, "0")), stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _fixed_mask(shape: tuple[int, ...], seed: int, dropout_prob: float) -> np.ndarray:
    """Return the mask of Fluid's kernel for a fixed seed, from a stream as `hpcdist.ops.random`."""
    drawn = uniform(start_of(seed), 0, math.prod(shape), 0.0, 1.0)
    return (drawn >= np.float32(dropout_prob)).astype(np.uint8).reshape(shape)


def _kept_scale(dropout_prob: float, dropout_implementation: str) -> float:
    """Return the factor of elements that stay."""
    return 1.0 / (1.0 - dropout_prob) if dropout_implementation == UPSCALE else 1.0


def _infer(x: Meta, dropout_prob: float, dropout_implementation: str, **_: Any) -> Any:
    if not 0.0 <= dropout_prob <= 1.0:
        raise GraphError(f"dropout_prob must be within 0..1, got {dropout_prob}")
    if dropout_implementation not in (UPSCALE, DOWNGRADE):
        raise GraphError(
            f"dropout_implementation must be {UPSCALE!r} or {DOWNGRADE!r}, "
            f"got {dropout_implementation!r}"
        )
    return same(x), Meta(x.shape, "uint8")


def _bind(
    xp: Any,
    x: Any,
    out: Any,
    mask: Any,
    dropout_prob: float,
    is_test: bool,
    dropout_implementation: str,
    seed: int,
    state: np.random.Generator | None,
    **_: Any,
) -> Call:
    upscale = dropout_implementation == UPSCALE
    if is_test:
        factor = 1.0 if upscale else 1.0 - dropout_prob
        return functools.partial(xp.multiply, x, factor, out)
    if dropout_prob == 1.0:
        return in_sequence([functools.partial(mask.fill, 0), functools.partial(out.fill, 0)])
    scale = _kept_scale(dropout_prob, dropout_implementation)
    steps: list[Call]
    # The numbers are drawn on the host, so that a GPU drops the very same elements.
    if state is None:
        steps = [
            functools.partial(xp.copyto, mask, xp.asarray(_fixed_mask(x.shape, seed, dropout_prob)))
        ]
    else:
        drawn = np.empty(x.shape, np.float32)
        kept = np.empty(x.shape, bool)
        steps = [
            functools.partial(state.random, None, np.float32, drawn),
            functools.partial(np.greater_equal, drawn, dropout_prob, kept),
            lambda: xp.copyto(mask, xp.asarray(kept)),
        ]
    steps.append(functools.partial(xp.multiply, x, mask, out))
    if scale != 1.0:
        steps.append(functools.partial(xp.multiply, out, scale, out))
    return in_sequence(steps)


def _grad_bind(
    xp: Any,
    mask: Any,
    dout: Any,
    dx: Any,
    dropout_prob: float,
    dropout_implementation: str,
    **_: Any,
) -> Call:
    product = functools.partial(xp.multiply, dout, mask, dx)
    if dropout_prob == 1.0 or dropout_implementation == DOWNGRADE:
        return product
    scale = _kept_scale(dropout_prob, dropout_implementation)
    return in_sequence([product, functools.partial(xp.multiply, dx, scale, dx)])


_ATTRS = {
    "dropout_prob": 0.5,
    "is_test": False,
    "seed": 0,
    "fix_seed": False,  # the same mask in every step, Fluid's for this seed
    "stream": 0,
    "dropout_implementation": DOWNGRADE,
}
_GRAD = "Mask, Out@GRAD -> X@GRAD"
define(
    "dropout",
    "X -> Out, Mask",
    attrs=_ATTRS,
    infer=_infer,
    bind=_bind,
    state=_mask_stream,
    grad=grad_by("dropout_grad", _GRAD),
    inplace={"Out": "X"},
)
define(
    "dropout_grad",
    _GRAD,
    attrs=_ATTRS,
    infer=lambda mask, dout, **_: same(dout),
    bind=_grad_bind,
    inplace={"X@GRAD": "Out@GRAD"},
)
