"""dpsgd: a step of a clipped gradient and of noise."""

from __future__ import annotations

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.optimize.sparse_gradients import sparse_refusal
from hpcdist.ops.random.counter import Draws, filler, key_of, part_of
from hpcdist.ops.types import ArrayModule, Call


def _bind(
    xp: ArrayModule,
    param,
    grad,
    rate,
    out,
    clip: float,
    batch_size: float,
    sigma: float,
    seed: int,
    state: Draws,
) -> Call:
    if isinstance(grad, SelectedRows):
        raise GraphError(sparse_refusal("dpsgd"))
    words = filler(np, part_of(np.empty(2), None, None), key_of(seed, state.name), state)

    def run() -> None:
        radius, angle = (words() + 1.0) * 2.0**-32  # Box and Muller, 1958
        noise = sigma * np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
        size = float(xp.sqrt((grad * grad).sum()))
        step = grad / max(size / clip, 1.0) + float(noise) / batch_size
        out[...] = param - rate.reshape(()) * step

    return run


define(
    "dpsgd",
    "Param, Grad, LearningRate -> ParamOut",
    rows=not_on_rows,
    attrs={"clip": 0.9, "batch_size": 0.999, "sigma": 1e-8, "seed": 0},
    infer=lambda param, grad, rate, **_: Meta(param.shape, param.dtype),
    bind=_bind,
    state=Draws,
)
