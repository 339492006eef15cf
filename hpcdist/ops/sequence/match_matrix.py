"""Matching matrices of two texts, of any sizes: their best values, and convolutions over them.

A matrix of a pair is a sequence of numbers: channels, rows (words of one text), columns (words of
the other).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import Applied, How, MixesRows, OfRows
from hpcdist.graph.sequence_rows import grouped
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.host_loops import run_on_host
from hpcdist.ops.sequence.pool_softmax_conv import sequences_of
from hpcdist.ops.types import Array, ArrayModule, Attrs, Call, Metas, Operands


def _pairs(type: str, **sides: Meta) -> list[Lod]:
    """Return the sequences of both texts; GraphError if there are not as many."""
    lods = [sequences_of(meta, type, slot) for slot, meta in sides.items()]
    counts = {lod.sequences for lod in lods if lod.known}
    if len(counts) > 1:
        raise GraphError(f"{type}: {' and '.join(sides)} have {sorted(counts)} sequences")
    return lods


def _matrices(lods: Sequence[Lod], channels: int) -> Lod:
    """Return the sequences that matrices of pairs are."""
    if not all(lod.known for lod in lods):
        return Lod(1)
    return Lod.of_lengths([channels * lods[0].lengths * lods[1].lengths])


def _spans(*lods: Lod) -> Iterator[tuple[slice, ...]]:
    """Return for each pair which rows are its of every operand."""
    bounds = [lod.last.tolist() for lod in lods]
    for i in range(len(bounds[0]) - 1):
        yield tuple(slice(b[i], b[i + 1]) for b in bounds)


def _of_pairs(op: Applied) -> dict[str, OfRows]:
    """Each pair's matrix is computed from the texts or the matrix of the pair, and weights."""
    for slot, (operand,) in op.inputs.items():
        expected = How.SAME if slot == "W" else How.RAGGED
        if operand.of.how is not expected or operand.lod_level > 1:
            raise MixesRows(f"{operand.name!r} is {operand.of.how.value}")
    return {"Out": grouped(op.outputs["Out"][0])}


def _of_words(op: Applied) -> OfRows:
    """As `_of_pairs`; the results have a row for each word of ROW."""
    _of_pairs(op)
    return op.inputs["ROW"][0].of


# -- match_matrix_tensor ---------------------------------------------------------------------------
def _match_infer(x: Meta, y: Meta, w: Meta, dim_t: int) -> tuple[Meta, Meta]:
    lods = _pairs("match_matrix_tensor", X=x, Y=y)
    if w.shape != (x.shape[1], dim_t, y.shape[1]):
        raise GraphError(
            f"match_matrix_tensor: weights must be {(x.shape[1], dim_t, y.shape[1])}, got {w.shape}"
        )
    out = _matrices(lods, dim_t)
    tmp = Meta((max(-1, x.shape[0] * dim_t * y.shape[1]), 1), x.dtype)
    return Meta((out.rows, 1), x.dtype, lod=out), tmp


def _match(lods, dim_t: int, inputs: Operands, outputs: Operands) -> None:
    x, y, w = inputs
    out, tmp = outputs
    read = (x @ w.reshape(len(w), -1)).reshape(len(x), *w.shape[1:])
    if tmp is not None:
        tmp[...] = read.reshape(tmp.shape)
    for x_rows, other, where in _spans(lods[0], lods[1], _matrices(lods, dim_t)):
        out[where, 0] = (read[x_rows].transpose(1, 0, 2) @ y[other].T).reshape(-1)


def _match_grad(lods, dim_t: int, inputs: Operands, outputs: Operands) -> None:
    x, y, w, dout = inputs
    dx, dy, dw = outputs
    flat = w.reshape(len(w), -1)
    read = (x @ flat).reshape(len(x), *w.shape[1:])
    dread = np.zeros_like(read)
    dother = np.zeros_like(y)
    for x_rows, other, where in _spans(lods[0], lods[1], _matrices(lods, dim_t)):
        size = x_rows.stop - x_rows.start, other.stop - other.start
        part = dout[where, 0].reshape(dim_t, *size)
        dread[x_rows] = (part @ y[other]).transpose(1, 0, 2)
        dother[other] = np.einsum("tij,itd->jd", part, read[x_rows])
    dread = dread.reshape(len(x), flat.shape[1])
    for target, gradient in ((dx, dread @ flat.T), (dy, dother), (dw, x.T @ dread)):
        if target is not None:
            target[...] = gradient.reshape(target.shape)


def _bound(loop, inputs: int, xp: ArrayModule, *operands, lods, **how) -> Call:
    run = partial(loop, lods, *how.values())
    return run_on_host(xp, run, operands[:inputs], operands[inputs:])


define_with_grad(
    "match_matrix_tensor",
    "X, Y, W -> Out, Tmp",
    "X, Y, W, Out@GRAD -> X@GRAD?, Y@GRAD?, W@GRAD?",
    rows=_of_pairs,
    attrs={"dim_t": 1},
    infer=_match_infer,
    bind=partial(_bound, _match, 3),
    grad_bind=partial(_bound, _match_grad, 4),
    lods=("X", "Y"),
)


# -- sequence_topk_avg_pooling ---------------------------------------------------------------------
_TOP: Attrs = {"topks": (1,), "channel_num": 1}


def _top_infer(x: Meta, row: Meta, col: Meta, topks: Sequence[int], channel_num: int) -> Meta:
    type = "sequence_topk_avg_pooling"
    rows, columns = _pairs(type, ROW=row, COLUMN=col)
    if list(topks) != sorted(topks) or not topks or topks[0] < 1:
        raise GraphError(f"{type}: topks must ascend from 1 on, got {list(topks)}")
    got = sequences_of(x, type, "X")
    expected = _matrices((rows, columns), channel_num)
    if got.known and expected.known and not got.same(expected):
        raise GraphError(
            f"{type}: X has sequences of {got.lengths.tolist()} numbers, {channel_num} channels "
            f"of ROW and COLUMN have {expected.lengths.tolist()}"
        )
    return Meta((row.shape[0], len(topks) * channel_num), x.dtype, lod=rows)


def _planes(x, lods, channels: int) -> Iterator[tuple[Array, slice]]:
    """Return the matrix of each pair [channels, rows, columns], and which rows are its."""
    for rows, columns, where in _spans(*lods, _matrices(lods, channels)):
        size = rows.stop - rows.start, columns.stop - columns.start
        yield x[where].reshape(channels, *size), rows


def _top(lods, topks: Sequence[int], channel_num: int, inputs: Operands, outputs: Operands) -> None:
    (x,), (out,) = inputs, outputs
    for plane, rows in _planes(x, lods[1:], channel_num):
        best = -np.sort(-plane, axis=2)
        each = [best[:, :, :k].sum(2) / k for k in topks]
        out[rows] = np.stack(each, -1).transpose(1, 0, 2).reshape(-1, out.shape[1])


def _top_grad(
    lods, topks: Sequence[int], channel_num: int, inputs: Operands, outputs: Operands
) -> None:
    x, dout = inputs
    (dx,) = outputs
    targets = _planes(dx, lods[1:], channel_num)
    for (plane, rows), (target, _) in zip(_planes(x, lods[1:], channel_num), targets):
        order = np.argsort(-plane, axis=2, kind="stable")
        part = dout[rows].reshape(-1, channel_num, len(topks)).transpose(1, 0, 2)
        shares = np.zeros_like(plane)
        for i, k in enumerate(topks):
            shares[:, :, :k] += part[:, :, i, None] / k
        np.put_along_axis(target, order, shares, axis=2)


def _top_bind(loop, xp: ArrayModule, x, row, col, *rest, lods, **how) -> Call:
    run = partial(loop, lods, how["topks"], how["channel_num"])
    return run_on_host(xp, run, (x, *rest[:-1]), rest[-1:])


define_with_grad(
    "sequence_topk_avg_pooling",
    "X, ROW, COLUMN -> Out",
    "X, ROW, COLUMN, Out@GRAD -> X@GRAD",
    rows=_of_words,
    attrs=_TOP,
    infer=_top_infer,
    bind=partial(_top_bind, _top),
    grad_bind=partial(_top_bind, _top_grad),
    lods=("X", "ROW", "COLUMN"),
)


# -- var_conv_2d: each pair's matrix convolved -----------------------------------------------------
_CONV: Attrs = {
    "InputChannel": 1,
    "OutputChannel": 1,
    "StrideH": 1,
    "StrideW": 1,
    "KernelH": 1,
    "KernelW": 1,
}


def _strided(lods: Sequence[Lod], strides: Sequence[int]) -> list[Lod]:
    """Return the rows and columns that are left of each matrix."""
    return [
        Lod.of_lengths([(lod.lengths + s - 1) // s]) if lod.known else lod
        for lod, s in zip(lods, strides)
    ]


def _conv_infer(x: Meta, row: Meta, col: Meta, w: Meta, **how: int) -> Metas:
    sequences_of(x, "var_conv_2d", "X")
    lods = _strided(_pairs("var_conv_2d", ROW=row, COLUMN=col), (how["StrideH"], how["StrideW"]))
    taps = how["InputChannel"] * how["KernelH"] * how["KernelW"]
    if w.shape != (how["OutputChannel"], taps):
        raise GraphError(
            f"var_conv_2d: weights must be {(how['OutputChannel'], taps)}, got {w.shape}"
        )
    out, windows = _matrices(lods, how["OutputChannel"]), _matrices(lods, taps)
    return Meta((out.rows, 1), x.dtype, lod=out), Meta((windows.rows, 1), x.dtype, lod=windows)


def _windows(plane, how: dict[str, int]) -> Array:
    """Return a view [channels, rows, columns, taps down, taps across] of a padded matrix."""
    taps, strides = (how["KernelH"], how["KernelW"]), (how["StrideH"], how["StrideW"])
    view = np.lib.stride_tricks.sliding_window_view(plane, taps, axis=(1, 2), writeable=True)
    return view[:, :: strides[0], :: strides[1]]


def _padded(size: Sequence[int], how: dict[str, int], dtype) -> tuple[Array, Array]:
    """Return zeros around a matrix, and a view of the place of the matrix."""
    taps = how["KernelH"], how["KernelW"]
    padded = np.zeros((size[0], *(n + k - 1 for n, k in zip(size[1:], taps))), dtype)
    down, across = taps[0] // 2, taps[1] // 2
    return padded, padded[:, down : down + size[1], across : across + size[2]]


def _convolved(lods, how: dict[str, int], inputs: Operands, outputs: Operands) -> None:
    x, w = inputs
    out, windows = outputs
    left = _strided(lods[1:3], (how["StrideH"], how["StrideW"]))
    places = _spans(_matrices(left, how["OutputChannel"]), _matrices(left, w.shape[1]))
    for (plane, _), (where, there) in zip(_planes(x, lods[1:3], how["InputChannel"]), places):
        if plane.size:
            padded, inside = _padded(plane.shape, how, x.dtype)
            inside[...] = plane
            taps = _windows(padded, how).transpose(0, 3, 4, 1, 2).reshape(w.shape[1], -1)
            out[where, 0] = (w @ taps).reshape(-1)
            if windows is not None:
                windows[there, 0] = taps.reshape(-1)


def _convolved_grad(lods, how: dict[str, int], inputs: Operands, outputs: Operands) -> None:
    x, w, dout = inputs
    dx, dw = outputs
    weights = np.zeros_like(w)
    left = _strided(lods[1:3], (how["StrideH"], how["StrideW"]))
    places = _spans(
        _matrices(left, how["OutputChannel"]), _matrices(lods[1:3], how["InputChannel"])
    )
    if dx is not None:
        dx.fill(0)
    for (plane, _), (where, x_rows) in zip(_planes(x, lods[1:3], how["InputChannel"]), places):
        if not plane.size:
            continue
        padded, inside = _padded(plane.shape, how, x.dtype)
        inside[...] = plane
        taps = _windows(padded, how).transpose(0, 3, 4, 1, 2)
        part = dout[where, 0].reshape(len(w), -1)
        weights += part @ taps.reshape(w.shape[1], -1).T
        if dx is not None:
            padded.fill(0)
            shares = (w.T @ part).reshape(taps.shape)
            view = _windows(padded, how)
            for i in range(how["KernelH"]):
                for j in range(how["KernelW"]):  # windows overlap: one tap at a time
                    view[..., i, j] += shares[:, i, j]
            dx[x_rows, 0] = inside.reshape(-1)
    if dw is not None:
        dw[...] = weights


def _conv_bind(loop, xp: ArrayModule, x, row, col, *rest, lods, **how) -> Call:
    read = 1 if loop is _convolved else 2  # the weights, and the gradient of the result
    return run_on_host(xp, partial(loop, lods, how), (x, *rest[:read]), rest[read:])


define_with_grad(
    "var_conv_2d",
    "X, ROW, COLUMN, W -> Out, Col?",
    "X, ROW, COLUMN, W, Out@GRAD -> X@GRAD?, W@GRAD?",
    rows=_of_pairs,
    attrs=_CONV,
    infer=_conv_infer,
    bind=partial(_conv_bind, _convolved),
    grad_bind=partial(_conv_bind, _convolved_grad),
    lods=("X", "ROW", "COLUMN"),
)
