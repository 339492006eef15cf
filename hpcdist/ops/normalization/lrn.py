"""Local response normalization: each pixel divided by a power of its neighbouring channels."""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import by_row
from hpcdist.ops.common import define_with_grad, same
from hpcdist.ops.convolution.windows import channels_first, image_shape
from hpcdist.ops.types import ArrayModule, Metas

_ATTRS = {"n": 5, "k": 1.0, "alpha": 1e-4, "beta": 0.75, "data_format": "NCHW"}


def _infer(x: Meta, n: int, k: float, alpha: float, beta: float, data_format: str) -> Metas:
    image_shape(x.shape, data_format, "the input of lrn")
    if n < 1 or n % 2 == 0:
        raise GraphError(f"lrn needs an odd number of channels n, got {n}")
    return same(x), same(x)


def _add_neighbours(values, total, n: int) -> None:
    """Add to each channel of ``total`` the n channels of ``values`` around it."""
    channels = values.shape[1]
    for shift in range(-(n // 2), n // 2 + 1):
        low, high = max(0, -shift), min(channels, channels - shift)
        if low < high:
            total[:, low:high] += values[:, low + shift : high + shift]


def _kernel(
    xp: ArrayModule, x, out, mid, n: int, k: float, alpha: float, beta: float, data_format: str
) -> None:
    """Write mid = k + alpha * sum of the neighbours' squares, out = x / mid^beta."""
    x, out, mid = (channels_first(array, data_format) for array in (x, out, mid))
    mid[...] = 0
    _add_neighbours(x * x, mid, n)
    xp.multiply(mid, alpha, out=mid)
    xp.add(mid, k, out=mid)
    xp.multiply(x, mid**-beta, out=out)


def _grad_kernel(
    xp: ArrayModule,
    x,
    out,
    mid,
    dout,
    dx,
    n: int,
    k: float,
    alpha: float,
    beta: float,
    data_format: str,
) -> None:
    """Write dx = dout / mid^beta - 2 alpha beta x * (sum of the neighbours' dout out / mid)."""
    arrays = (x, out, mid, dout, dx)
    x, out, mid, dout, dx = (channels_first(array, data_format) for array in arrays)
    dx[...] = 0
    _add_neighbours(dout * out / mid, dx, n)
    xp.multiply(dx, x, out=dx)
    xp.multiply(dx, -2 * alpha * beta, out=dx)
    xp.add(dx, dout * mid**-beta, out=dx)


define_with_grad(
    "lrn",
    "X -> Out, MidOut",
    "X, Out, MidOut, Out@GRAD -> X@GRAD",
    rows=by_row(),
    attrs=_ATTRS,
    infer=_infer,
    kernel=_kernel,
    grad_kernel=_grad_kernel,
)
