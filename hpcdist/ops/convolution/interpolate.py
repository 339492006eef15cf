"""Images of another size: nearest_interp, bilinear_interp, trilinear_interp, bicubic_interp.

Along each axis every result is a mean of one, two or four neighbours; the axes are done one after
the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Given, Meta
from hpcdist.graph.rows import by_row
from hpcdist.ops.common import define_with_grad, open_shape
from hpcdist.ops.embedding.run_kernels import add_at
from hpcdist.ops.types import Array, ArrayModule

_ATTRS = {
    "data_layout": "NCHW",
    "out_d": 0,
    "out_h": 0,
    "out_w": 0,
    "scale": 0.0,
    "align_corners": True,
    "align_mode": 1,
}


@dataclass(frozen=True)
class _Taps:
    """Along one axis: result i is the mean of x[places[k][i]] by `weights`.

    ``after``: how far its source lies behind one of them, for each result.
    """

    places: Sequence[np.ndarray]
    after: np.ndarray

    def weights(self, dtype: str) -> Sequence[np.ndarray]:
        """Return the weights of each of the places."""
        t = self.after.astype(dtype)
        if len(self.places) < 4:
            return [1 - t, t]
        return [_far(t + 1), _near(t), _near(1 - t), _far(2 - t)]


def _near(d: np.ndarray) -> np.ndarray:
    """Return cubic weights of what is up to 1 away, as Fluid: with a slope of -0.75 at 1."""
    return (1.25 * d - 2.25) * d * d + 1


def _far(d: np.ndarray) -> np.ndarray:
    """Return cubic weights of what is between 1 and 2 away."""
    return ((-0.75 * d + 3.75) * d - 6) * d + 3


def mixed(parts: Sequence[Any], weights: Sequence[Any]) -> Any:
    """Return the mean of what is at the places of `_Taps`; of arrays or tensors."""
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        return parts[0] + weights[1] * (parts[1] - parts[0])
    products = [part * weight for part, weight in zip(parts, weights)]
    return sum(products[1:], products[0])


def _taps(extent: int, size: int, kind: str, align_corners: bool, align_mode: int) -> _Taps:
    # In float32, as Fluid: where a source lies decides between neighbours.
    ratio = np.float32(0)
    if size > 1:
        ratio = np.float32(extent - 1) / (size - 1) if align_corners else np.float32(extent) / size
    places = np.arange(size, dtype=np.float32)
    if kind == "nearest":
        low = (ratio * places + np.float32(0.5 * align_corners)).astype(np.int64)
        return _Taps([np.minimum(low, extent - 1)], np.zeros(size, np.float32))
    if kind == "cubic":
        source = ratio * places if align_corners else float(ratio) * (np.arange(size) + 0.5) - 0.5
        low = np.floor(source).astype(np.int64)
        return _Taps([np.clip(low + k, 0, extent - 1) for k in range(-1, 3)], source - low)
    centers = align_mode == 0 and not align_corners
    source = ratio * (places + np.float32(0.5)) - np.float32(0.5) if centers else ratio * places
    source = np.maximum(source, 0)
    low = np.minimum(source.astype(np.int64), extent - 1)
    return _Taps([low, np.minimum(low + 1, extent - 1)], (source - low).astype(np.float32))


def _spatial(rank: int, data_layout: str) -> list[int]:
    first = 1 if data_layout.endswith("C") else 2
    return list(range(first, first + rank - 2))


def _sizes(extents: Sequence[int], out_d: int, out_h: int, out_w: int, scale: float) -> list[int]:
    if scale > 0:
        return [-1 if e < 0 else int(e * scale) for e in extents]
    return [out_d, out_h, out_w][-len(extents) :]


def _infer(
    rank: int,
    x: Meta,
    data_layout: str,
    out_d: int,
    out_h: int,
    out_w: int,
    scale: float | None,
    size: Sequence[int | None] | None,
    **_,
) -> Meta:
    if len(x.shape) != rank:
        raise GraphError(f"expected images of {rank} dimensions, got shape {x.shape}")
    axes = _spatial(rank, data_layout)
    if size:  # it goes before the attributes
        sizes = list(open_shape(size if len(size) == len(axes) else [None] * len(axes)))
    elif scale is None:
        sizes = [-1] * len(axes)
    else:
        sizes = _sizes([x.shape[a] for a in axes], out_d, out_h, out_w, scale)
    if len(sizes) != len(axes):
        raise GraphError(f"the new size must have {len(axes)} numbers, got {len(sizes)}")
    if any(size == 0 or size < -1 for size in sizes):
        raise GraphError(f"the new size must be positive, got {sizes}")
    shape = list(x.shape)
    for axis, extent in zip(axes, sizes):
        shape[axis] = extent
    return Meta(tuple(shape), x.dtype)


def interpolation(small, large, kind: str, data_layout: str, **how) -> list[tuple[int, _Taps]]:
    """Return (axis, taps) of every axis along which something happens."""
    axes = _spatial(len(small.shape), data_layout)
    keep = ("align_corners", "align_mode")
    facts = {key: how[key] for key in keep}
    return [(a, _taps(small.shape[a], large.shape[a], kind, **facts)) for a in axes]


def _columns(xp: ArrayModule, taps: _Taps, axis: int, like) -> list[Array]:
    shape = [1] * like.ndim
    shape[axis] = -1
    return [xp.asarray(weight).reshape(shape) for weight in taps.weights(like.dtype.name)]


def _resize(kind: str) -> Any:
    def kernel(xp: ArrayModule, x, out, data_layout: str, **how) -> None:
        # Weights are fractions: bytes become float32, and are cut to whole numbers at the end.
        value = x.astype("float32") if kind == "linear" and x.dtype.kind in "iu" else x
        for axis, taps in interpolation(x, out, kind, data_layout, **how):
            weights = _columns(xp, taps, axis, value) if kind != "nearest" else ()
            value = mixed([xp.take(value, xp.asarray(p), axis=axis) for p in taps.places], weights)
        out[...] = value

    return kernel


def _collected(xp: ArrayModule, value, places: np.ndarray, extent: int, axis: int) -> Array:
    """Add parts of ``value`` up at ascending places along an axis."""
    moved = xp.moveaxis(value, axis, 0)
    summed = xp.zeros((extent, *moved.shape[1:]), value.dtype)
    if xp is np:
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        summed[places[starts]] = np.add.reduceat(moved, starts, axis=0)
    else:
        add_at(xp, summed, (xp.asarray(places),), moved)
    return xp.moveaxis(summed, 0, axis)


def _resize_grad(kind: str) -> Any:
    def kernel(xp: ArrayModule, x, dout, dx, data_layout: str, **how) -> None:
        value = dout
        for axis, taps in reversed(interpolation(x, dout, kind, data_layout, **how)):
            weights = _columns(xp, taps, axis, value) if kind != "nearest" else ()
            shares = [value * weight for weight in weights] or [value]
            parts = [
                _collected(xp, share, places, x.shape[axis], axis)
                for share, places in zip(shares, taps.places)
            ]
            value = sum(parts[1:], parts[0])
        dx[...] = value

    return kernel


def _rule(rank: int, kind: str) -> Any:
    def infer(x: Meta, **facts: Any) -> Meta:
        if kind == "cubic" and x.dtype not in ("float32", "float64"):
            # Results overshoot what is around them, so bytes would begin again at the other end.
            raise GraphError(f"bicubic_interp: X must be float32 or float64, got {x.dtype}")
        return _infer(rank, x, **facts)

    return infer


for _type, _rank, _kind in (
    ("nearest_interp", 4, "nearest"),
    ("bilinear_interp", 4, "linear"),
    ("bicubic_interp", 4, "cubic"),
    ("trilinear_interp", 5, "linear"),
):
    define_with_grad(
        _type,
        "X, OutSize?, SizeTensor*, Scale? -> Out",
        "X, Out@GRAD -> X@GRAD",
        rows=by_row("X"),
        attrs=_ATTRS,
        given={"size": Given("OutSize", "SizeTensor"), "scale": Given("Scale")},
        infer=_rule(_rank, _kind),
        kernel=_resize(_kind),
        grad_kernel=_resize_grad(_kind),
    )
