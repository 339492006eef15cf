"""Products of vectors and matrices other than `matmul`: batched, outer, bilinear, of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import Applied, OfRows, by_row, each_row, of_matrices
from hpcdist.ops.common import define_with_grad, fits, resolve_axis, same
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import ArrayModule, DeviceArray


def _alike(x: Meta, y: Meta, name: str) -> None:
    if not fits(x.shape, y.shape):
        raise GraphError(f"{name} of shapes {x.shape} and {y.shape}: expected one shape")


def _bmm_grad(xp: ArrayModule, x, y, dout, dx, dy) -> None:
    if dx is not None:
        xp.matmul(dout, y.swapaxes(1, 2), out=dx)
    if dy is not None:
        xp.matmul(x.swapaxes(1, 2), dout, out=dy)


define_with_grad(
    "bmm",
    "X, Y -> Out",
    "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=by_row(),
    infer=shaped("X: b n k; Y: b k m", lambda x, y: Meta((*x.shape[:2], y.shape[2]), x.dtype)),
    kernel=lambda xp, x, y, out: xp.matmul(x, y, out=out),
    grad_kernel=_bmm_grad,
)


def _addmm_infer(bias: Meta, x: Meta, y: Meta, Alpha: float, Beta: float) -> Meta:
    inner = (x.shape[1], y.shape[0]) if len(x.shape) == len(y.shape) == 2 else (0, 1)
    if -1 not in inner and inner[0] != inner[1]:
        raise GraphError(f"a product of matrices of {x.shape} and {y.shape} does not exist")
    return Meta((x.shape[0], y.shape[1]), x.dtype)


def _addmm(xp: ArrayModule, bias, x, y, out, Alpha: float, Beta: float) -> None:
    """out = Beta Input + Alpha X Y."""
    xp.matmul(x, y, out=out)
    out[...] = Alpha * out + Beta * bias


def _addmm_grad(
    xp: ArrayModule, bias, x, y, dout, dgiven, dx, dy, Alpha: float, Beta: float
) -> None:
    if dgiven is not None:
        axes = tuple(i for i in range(2) if dgiven.shape[i] != dout.shape[i])
        dgiven[...] = Beta * (dout.sum(axes, keepdims=True) if axes else dout)
    if dx is not None:
        xp.multiply(Alpha, dout @ y.T, out=dx)
    if dy is not None:
        xp.multiply(Alpha, x.T @ dout, out=dy)


define_with_grad(
    "addmm",
    "Input, X, Y -> Out",
    "Input, X, Y, Out@GRAD -> Input@GRAD?, X@GRAD?, Y@GRAD?",
    rows=by_row("Input", "X"),
    attrs={"Alpha": 1.0, "Beta": 1.0},
    infer=_addmm_infer,
    kernel=_addmm,
    grad_kernel=_addmm_grad,
)


def _dot_infer(x: Meta, y: Meta) -> Meta:
    _alike(x, y, "a dot product")
    return Meta((*x.shape[:-1], 1) if len(x.shape) > 1 else (1,), x.dtype)


def _dot(xp: ArrayModule, x, y, out) -> None:
    (x * y).sum(-1, keepdims=True, out=out)


def _dot_grad(xp: ArrayModule, x, y, dout, dx, dy) -> None:
    if dx is not None:
        xp.multiply(dout, y, out=dx)
    if dy is not None:
        xp.multiply(dout, x, out=dy)


define_with_grad(
    "dot",
    "X, Y -> Out",
    "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=by_row(apart=of_matrices),
    infer=_dot_infer,
    kernel=_dot,
    grad_kernel=_dot_grad,
)


def cross_axis(shape: Sequence[int], dim: int) -> int:
    """Return the dimension of three numbers: the first one if it is not given."""
    if dim != NO_DIM:
        axis = resolve_axis(dim, len(shape), "dim")
    else:
        axis = next((i for i, extent in enumerate(shape) if extent == 3), 0)
    if shape[axis] != 3:
        raise GraphError(f"a cross product along dimension {axis} of {tuple(shape)}: expected 3")
    return axis


NO_DIM = -1000  # Fluid says so with its smallest number, kDefaultDim


def _cross_infer(x: Meta, y: Meta, dim: int) -> Meta:
    _alike(x, y, "a cross product")
    cross_axis(x.shape, dim)
    return same(x)


def _cross(xp: ArrayModule, x, y, out, dim: int) -> None:
    out[...] = xp.cross(x, y, axis=cross_axis(x.shape, dim))


def _cross_grad(xp: ArrayModule, x, y, dout, dx, dy, dim: int) -> None:
    axis = cross_axis(x.shape, dim)
    if dx is not None:
        dx[...] = xp.cross(y, dout, axis=axis)
    if dy is not None:
        dy[...] = xp.cross(dout, x, axis=axis)


def _cross_apart(op: Applied) -> bool:
    dim = op.attrs["dim"]  # if it is not given, it is dimension 0 in batches of three rows
    return dim != NO_DIM and cross_axis(op.operands[0].shape, dim) > 0


define_with_grad(
    "cross",
    "X, Y -> Out",
    "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=by_row(apart=_cross_apart),
    attrs={"dim": NO_DIM},
    infer=_cross_infer,
    kernel=_cross,
    grad_kernel=_cross_grad,
)


def _paired(x, y) -> tuple[DeviceArray, DeviceArray, int]:
    """Give both as many dimensions, and put them in turn: those of x, then those of y."""
    rank = max(x.ndim, y.ndim)
    wide = (1,) * (rank - x.ndim) + x.shape, (1,) * (rank - y.ndim) + y.shape
    x = x.reshape([d for extent in wide[0] for d in (extent, 1)])
    return x, y.reshape([d for extent in wide[1] for d in (1, extent)]), rank


def _kron_infer(x: Meta, y: Meta) -> Meta:
    rank = max(len(x.shape), len(y.shape))
    wide = [(1,) * (rank - len(m.shape)) + m.shape for m in (x, y)]
    return Meta(tuple(-1 if -1 in pair else math.prod(pair) for pair in zip(*wide)), x.dtype)


def _kron(xp: ArrayModule, x, y, out) -> None:
    a, b, _ = _paired(x, y)
    out[...] = (a * b).reshape(out.shape)


def _kron_grad(xp: ArrayModule, x, y, dout, dx, dy) -> None:
    a, b, rank = _paired(x, y)
    pieces = dout.reshape([max(pair) for pair in zip(a.shape, b.shape)])
    if dx is not None:
        odd = tuple(range(1, 2 * rank, 2))
        dx[...] = (pieces * b).sum(odd).reshape(x.shape)
    if dy is not None:
        even = tuple(range(0, 2 * rank, 2))
        dy[...] = (pieces * a).sum(even).reshape(y.shape)


def _kron_rows(op: Applied) -> OfRows:
    """Rows of X stay apart where Y has one row only."""
    x, y = (op.inputs[slot][0] for slot in ("X", "Y"))
    flat = len(y.shape) < len(x.shape) or y.shape[0] == 1
    return each_row(op, "X", apart=lambda op: flat and len(y.shape) <= len(x.shape))


define_with_grad(
    "kron",
    "X, Y -> Out",
    "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=_kron_rows,
    infer=_kron_infer,
    kernel=_kron,
    grad_kernel=_kron_grad,
)


def _bilinear_infer(x: Meta, y: Meta, weight: Meta, bias: Meta | None) -> Meta:
    if weight.shape[1:] != (x.shape[1], y.shape[1]):
        raise GraphError(f"weights {weight.shape} do not fit rows of {x.shape} and {y.shape}")
    return Meta((x.shape[0], weight.shape[0]), x.dtype)


def _bilinear(xp: ArrayModule, x, y, weight, bias, out) -> None:
    """out[n, k] = x[n] W[k] y[n] + bias[k]."""
    out[...] = xp.einsum("ni,kij,nj->nk", x, weight, y, optimize=True)
    if bias is not None:
        out += bias.reshape(1, -1)


def _bilinear_grad(xp: ArrayModule, x, y, weight, bias, dout, dx, dy, dweight, dbias) -> None:
    if dx is not None:
        dx[...] = xp.einsum("nk,kij,nj->ni", dout, weight, y, optimize=True)
    if dy is not None:
        dy[...] = xp.einsum("nk,kij,ni->nj", dout, weight, x, optimize=True)
    if dweight is not None:
        dweight[...] = xp.einsum("nk,ni,nj->kij", dout, x, y, optimize=True)
    if dbias is not None:
        dbias[...] = dout.sum(0).reshape(dbias.shape)


define_with_grad(
    "bilinear_tensor_product",
    "X, Y, Weight, Bias? -> Out",
    "X, Y, Weight, Bias?, Out@GRAD -> X@GRAD?, Y@GRAD?, Weight@GRAD?, Bias@GRAD?",
    rows=by_row("X", "Y"),
    infer=shaped("X: n i; Y: n j; Weight: o i j; Bias: 1 o", _bilinear_infer),
    kernel=_bilinear,
    grad_kernel=_bilinear_grad,
)


def _flow(x) -> DeviceArray:
    return x.reshape(x.shape[0], x.shape[1], -1)


def _fsp(xp: ArrayModule, x, y, out) -> None:
    """Mean product of channels over pixels: the flow of a solution procedure (Yim et al., 2017)."""
    xp.matmul(_flow(x), _flow(y).swapaxes(1, 2), out=out)
    out /= math.prod(x.shape[2:])


def _fsp_grad(xp: ArrayModule, x, y, dout, dx, dy) -> None:
    share = dout / math.prod(x.shape[2:])
    if dx is not None:
        dx[...] = xp.matmul(share, _flow(y)).reshape(dx.shape)
    if dy is not None:
        dy[...] = xp.matmul(share.swapaxes(1, 2), _flow(x)).reshape(dy.shape)


define_with_grad(
    "fsp",
    "X, Y -> Out",
    "X, Y, Out@GRAD -> X@GRAD?, Y@GRAD?",
    rows=by_row(),
    infer=shaped(
        "X: n c h w; Y: n d h w",
        lambda x, y: Meta((x.shape[0], x.shape[1], y.shape[1]), x.dtype),
    ),
    kernel=_fsp,
    grad_kernel=_fsp_grad,
)
