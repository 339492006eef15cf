"""``paddle.incubate``: what static scripts use of it."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers as fluid
from hpcdist.fluid.compat.paddle2 import declare, reductions
from hpcdist.fluid.compat.paddle2.geometric import (
    segment_max,
    segment_mean,
    segment_min,
    segment_sum,
    send_u_recv,
)
from hpcdist.fluid.layers.helper import append
from hpcdist.fluid.optimizer import LookaheadOptimizer, ModelAverage
from hpcdist.graph.variable import Variable

_function = declare.composed("paddle.incubate")


class LookAhead(LookaheadOptimizer):
    """Every k steps slow copies go ``alpha`` of the way to the parameters: Fluid's Lookahead, but
    that slow copies begin with what the first step gives."""

    begins_late = True

    def __init__(
        self, inner_optimizer: Any, alpha: float = 0.5, k: int = 5, name: str | None = None
    ) -> None:
        super().__init__(inner_optimizer, alpha, k)


@_function
def graph_send_recv(
    x: Variable,
    src_index: Variable,
    dst_index: Variable,
    pool_type: str = "sum",
    out_size: Any = None,
    name: str | None = None,
) -> Variable:
    """Return ``paddle.geometric.send_u_recv``."""
    return send_u_recv(x, src_index, dst_index, pool_type, out_size, name)


@_function
def identity_loss(x: Variable, reduction: Any = "none") -> Variable:
    """Return ``x``, its mean or its sum."""
    if reduction in ("none", 2):
        return fluid.assign(x)
    of = {"mean": reductions.mean, 1: reductions.mean, "sum": reductions.sum, 0: reductions.sum}  # type: ignore[attr-defined]
    if reduction not in of:
        raise GraphError(
            f"paddle.incubate.identity_loss: reduction: 'none', 'mean' or 'sum', got {reduction!r}"
        )
    return of[reduction](x)


@_function
def softmax_mask_fuse(x: Variable, mask: Variable, name: str | None = None) -> Variable:
    """Return the softmax of x + mask over the last dimension."""
    return fluid.softmax(append("elementwise_add", {"X": x, "Y": mask}, axis=-1), name=name)


@_function
def softmax_mask_fuse_upper_triangle(x: Variable) -> Variable:
    """Return the softmax of each row up to the diagonal: [batch, heads, length, length]."""
    length = x.shape[-1]
    hidden = fluid.triu(fluid.ones([length, length], x.dtype), 1) * -1e4
    return softmax_mask_fuse(x, hidden)


__all__ = [
    "LookAhead",
    "ModelAverage",
    "graph_send_recv",
    "identity_loss",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_sum",
    "softmax_mask_fuse",
    "softmax_mask_fuse_upper_triangle",
]
