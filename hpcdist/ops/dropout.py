"""Dropout, with masks that every run draws alike."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from hpcdist.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.ops.common import grad_by, in_sequence, same
from hpcdist.ops.labels import Call

JOB_SEED = "HPCDIST_SEED"  # environment: the seed of operators that have none
UPSCALE = "upscale_in_train"
DOWNGRADE = "downgrade_in_infer"


def _mask_stream(seed: int, stream: int) -> np.random.Generator:
    """Return the numbers of one operator: they depend on its seeds only, not on the process."""
    key = np.array([seed or int(os.environ.get(JOB_SEED, "0")), stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


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
    seed: int,
    stream: int,
    dropout_implementation: str,
) -> Call:
    upscale = dropout_implementation == UPSCALE
    if is_test:
        factor = 1.0 if upscale else 1.0 - dropout_prob
        return functools.partial(xp.multiply, x, factor, out)
    if dropout_prob == 1.0:
        return in_sequence([functools.partial(mask.fill, 0), functools.partial(out.fill, 0)])
    scale = _kept_scale(dropout_prob, dropout_implementation)
    generator = _mask_stream(seed, stream)
    drawn = np.empty(x.shape, np.float32)
    kept = np.empty(x.shape, bool)
    # The numbers are drawn on the host, so that a GPU drops the very same elements.
    steps: list[Call] = [
        functools.partial(generator.random, None, np.float32, drawn),
        functools.partial(np.greater_equal, drawn, dropout_prob, kept),
        lambda: xp.copyto(mask, xp.asarray(kept)),
        functools.partial(xp.multiply, x, mask, out),
    ]
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
