"""Messages along the edges of a graph: rows are read at one end, and reduced at the other.

Formulas: Paddle 2.6's `paddle.geometric.send_u_recv`.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.registry import Given, Meta
from hpcdist.graph.rows import mixed
from hpcdist.ops.common import define_with_grad
from hpcdist.ops.embedding.run_kernels import add_at
from hpcdist.ops.types import ArrayModule

REDUCTIONS = ("SUM", "MEAN", "MIN", "MAX")


def _infer(
    x: Meta, src: Meta | None, dst: Meta, reduce_op: str, out_size: int | None
) -> tuple[Meta, Meta]:
    if reduce_op not in REDUCTIONS:
        raise GraphError(f"reduce_op: expected one of {', '.join(REDUCTIONS)}, got {reduce_op!r}")
    for ids, slot in ((src, "Src_index"), (dst, "Dst_index")):
        if ids is not None and (not ids.dtype.startswith("int") or len(ids.shape) != 1):
            raise GraphError(
                f"{slot}: expected a vector of integers, got {ids.dtype}{list(ids.shape)}"
            )
    rows = -1 if out_size is None else out_size if out_size > 0 else x.shape[0]
    return Meta((rows, *x.shape[1:]), x.dtype), Meta((rows,), "int32")


def _messages(xp: ArrayModule, rows, ids):
    """Return the message of each edge; without sources every row is one itself."""
    return rows.copy() if ids is None else xp.take(rows, ids, axis=0)


def _expect_within(ids, count: int, what: str) -> None:
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= count):
        raise FeedError(
            f"graph_send_recv: {what} is outside 0..{count - 1}: they are {int(ids.min())}.."
            f"{int(ids.max())}"
        )


def _broadcast(count, rank: int):
    return count.reshape(-1, *[1] * (rank - 1))


def _kernel(xp: ArrayModule, x, src, dst, out, count, reduce_op: str, out_size: int) -> None:
    sources = len(x if src is None else src)
    if sources != len(dst):
        raise FeedError(f"graph_send_recv: {sources} sources for {len(dst)} destinations")
    if src is not None:
        _expect_within(src, len(x), "a source")
    _expect_within(dst, len(out), "a destination")
    messages = _messages(xp, x, src)
    met = xp.bincount(dst, minlength=len(out)).astype("int32")
    if count is not None:
        count[...] = met
    if reduce_op in ("SUM", "MEAN"):
        out.fill(0)
        add_at(xp, out, (dst,), messages)
        if reduce_op == "MEAN":
            out /= _broadcast(xp.maximum(met, 1), out.ndim).astype(out.dtype)
        return
    # Rows that no edge leads to are zeros, as in Paddle; others begin with one of their messages.
    out.fill(0)
    if xp is np:
        out[dst] = messages
        (xp.maximum if reduce_op == "MAX" else xp.minimum).at(out, dst, messages)
    elif len(dst):
        _write_extremes(xp, out, dst, messages, reduce_op == "MAX")


def _write_extremes(xp: ArrayModule, out, dst, messages, greatest: bool) -> None:
    """Write the greatest or least value of each column among the messages to each destination.

    CuPy has neither `maximum.at` nor `minimum.at`: sorted by value, then by destination, the
    extreme is the last or first of its run.
    """
    values = messages.reshape(len(dst), -1)
    order = xp.argsort(values, axis=0)
    values, ids = xp.take_along_axis(values, order, 0), xp.take(dst, order)
    order = xp.argsort(ids, axis=0, kind="stable")
    values, ids = xp.take_along_axis(values, order, 0), xp.take_along_axis(ids, order, 0)
    changes, edge = ids[1:] != ids[:-1], xp.ones((1, values.shape[1]), bool)
    chosen = xp.concatenate([changes, edge] if greatest else [edge, changes])
    columns = xp.zeros_like(ids) + xp.arange(values.shape[1])
    out.reshape(len(out), -1)[ids[chosen], columns[chosen]] = values[chosen]


def _grad_kernel(
    xp: ArrayModule, x, src, dst, out, count, dout, dx, reduce_op: str, out_size: int
) -> None:
    messages = xp.take(dout, dst, axis=0)
    if reduce_op == "MEAN":
        met = xp.take(xp.maximum(count, 1), dst)
        messages /= _broadcast(met, messages.ndim).astype(messages.dtype)
    elif reduce_op != "SUM":  # every message that is the extremum gets all of the gradient
        messages *= _messages(xp, x, src) == xp.take(out, dst, axis=0)
    if src is None:
        dx[...] = messages
        return
    dx.fill(0)
    add_at(xp, dx, (src,), messages)


define_with_grad(
    "graph_send_recv",
    "X, Src_index?, Dst_index, Out_size? -> Out, Dst_count",
    "X, Src_index?, Dst_index, Out, Dst_count, Out@GRAD -> X@GRAD",
    rows=mixed,  # edges lead from any row to any
    attrs={"reduce_op": "SUM", "out_size": 0},
    given={"out_size": Given("Out_size")},
    infer=_infer,
    kernel=_kernel,
    grad_kernel=_grad_kernel,
)
