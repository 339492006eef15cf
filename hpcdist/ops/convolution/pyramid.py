"""spp: pools of an image in 1, 4, 16, ... parts, side by side (He et al., 2014), by torch."""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.graph.rows import by_row
from hpcdist.ops.by_torch import define_by_torch
from hpcdist.ops.types import Array


def _level(torch, x: Array, parts: int, pooling_type: str) -> Array:
    """Return [n, channels * parts^2]: the largest, or the mean, of the elements in each part."""
    windows = [-(-extent // parts) for extent in x.shape[2:]]
    around = [(w * parts - extent + 1) // 2 for w, extent in zip(windows, x.shape[2:])]
    if any(padding >= window for padding, window in zip(around, windows)):
        raise GraphError(
            f"spp: some of {parts} parts of {tuple(x.shape[2:])} would have no element: expected a "
            "lower pyramid_height"
        )
    sides = (around[1], around[1], around[0], around[0])
    pad, pools = torch.nn.functional.pad, torch.nn.functional
    if pooling_type == "max":
        found = pools.max_pool2d(pad(x, sides, value=float("-inf")), windows)
    else:
        found = pools.avg_pool2d(pad(x, sides), windows)
        found = found / pools.avg_pool2d(pad(torch.ones_like(x), sides), windows)
    return found.reshape(x.shape[0], -1)


def _pyramid(torch, x: Array, pyramid_height: int, pooling_type: str) -> Array:
    if x.ndim != 4 or pyramid_height < 1 or pooling_type not in ("max", "avg"):
        raise GraphError(
            f"spp of {tuple(x.shape)}: expected [n, channels, height, width], pyramid_height at "
            f"least 1 and pooling_type max or avg, got {pyramid_height} and {pooling_type!r}"
        )
    levels = [_level(torch, x, 2**height, pooling_type) for height in range(pyramid_height)]
    return torch.cat(levels, 1)


define_by_torch(
    "spp",
    "X -> Out",
    _pyramid,
    rows=by_row(),
    attrs={"pyramid_height": 1, "pooling_type": "max"},
    wrt=("X",),
)
