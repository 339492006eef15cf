"""Reading and writing at indices given as data: gather_nd, scatter, index_select, argsort, ..."""

from __future__ import annotations

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import (
    Applied,
    OfRows,
    by_element,
    by_row,
    each_row,
    linear,
    off_rows,
)
from hpcdist.ops.common import define_with_grad, fits, put_along, resolve_axis
from hpcdist.ops.embedding.run_kernels import add_at
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import ArrayModule, DeviceArray


def _expect_integers(ids: Meta, name: str) -> None:
    if not ids.dtype.startswith("int"):
        raise GraphError(f"{name} must be of an integer dtype, got {ids.dtype}")


def _checked(xp: ArrayModule, ids, count: int, type: str) -> DeviceArray:
    """Return places; FeedError if one is outside, also below 0."""
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise FeedError(
            f"{type}: an index is outside 0..{count - 1}: they are {int(ids.min())}.."
            f"{int(ids.max())}"
        )
    return ids


# -- gather_nd, scatter_nd_add: the last dimension of Index is a place in the first ones -----------
def _gather_nd_infer(x: Meta, index: Meta) -> Meta:
    _expect_integers(index, "Index")
    deep = index.shape[-1]
    if not 0 <= deep <= len(x.shape):
        raise GraphError(f"places of {deep} numbers do not fit a value of shape {x.shape}")
    return Meta((*index.shape[:-1], *x.shape[deep:]), x.dtype)


def _places(xp: ArrayModule, index, shape: tuple[int, ...], type: str) -> tuple[DeviceArray, ...]:
    parts = tuple(index[..., i] for i in range(index.shape[-1]))
    return tuple(_checked(xp, part, shape[i], type) for i, part in enumerate(parts))


def _gather_nd(xp: ArrayModule, x, index, out) -> None:
    out[...] = x[_places(xp, index, x.shape, "gather_nd")] if index.shape[-1] else x


def _gather_nd_grad(xp: ArrayModule, x, index, dout, dx) -> None:
    dx.fill(0)
    add_at(xp, dx, _places(xp, index, x.shape, "gather_nd"), dout)


define_with_grad(
    "gather_nd",
    "X, Index -> Out",
    "X, Index, Out@GRAD -> X@GRAD",
    rows=by_row("Index"),
    infer=_gather_nd_infer,
    kernel=_gather_nd,
    grad_kernel=_gather_nd_grad,
)


def _scatter_nd_add_infer(x: Meta, index: Meta, updates: Meta) -> Meta:
    read = _gather_nd_infer(x, index)
    if not fits(read.shape, updates.shape):
        raise GraphError(f"updates must be of shape {read.shape}, got {updates.shape}")
    if updates.dtype != x.dtype:
        raise GraphError(f"updates must be of {x.dtype}, as what they go to, got {updates.dtype}")
    return Meta(x.shape, x.dtype)


def _scatter_nd_add(xp: ArrayModule, x, index, updates, out) -> None:
    if out is not x:
        out[...] = x
    add_at(xp, out, _places(xp, index, x.shape, "scatter_nd_add"), updates)


def _scatter_nd_add_grad(xp: ArrayModule, index, updates, dout, dx, dupdates) -> None:
    if dx is not None:
        dx[...] = dout
    if dupdates is not None:
        places = _places(xp, index, dout.shape, "scatter_nd_add") or (...,)
        dupdates[...] = dout[places]


define_with_grad(
    "scatter_nd_add",
    "X, Index, Updates -> Out",
    "Index, Updates, Out@GRAD -> X@GRAD?, Updates@GRAD?",
    rows=by_row(apart=lambda op: False, totals=linear),
    infer=_scatter_nd_add_infer,
    kernel=_scatter_nd_add,
    grad_kernel=_scatter_nd_add_grad,
    grad_infer=lambda index, updates, dout: (dout, Meta(updates.shape, updates.dtype)),
)


# -- scatter: rows of Updates take the places of rows of X, or are added up there ------------------
def _scatter_infer(x: Meta, ids: Meta, updates: Meta, overwrite: bool) -> Meta:
    _expect_integers(ids, "Ids")
    if len(updates.shape) != len(x.shape) or updates.shape[1:] != x.shape[1:]:
        raise GraphError(f"rows of updates {updates.shape} do not fit those of {x.shape}")
    if updates.shape[0] not in (ids.size, -1) and ids.size != -1:
        raise GraphError(f"{ids.size} ids, but {updates.shape[0]} rows of updates")
    return Meta(x.shape, x.dtype)


def _scatter(xp: ArrayModule, x, ids, updates, out, overwrite: bool) -> None:
    if out is not x:
        out[...] = x
    rows = _checked(xp, ids.reshape(-1), len(x), "scatter")
    if overwrite:
        out[rows] = updates
    else:
        out[rows] = 0
        add_at(xp, out, (rows,), updates)


def _scatter_grad(xp: ArrayModule, ids, updates, dout, dx, dupdates, overwrite: bool) -> None:
    """As Fluid: every row of Updates counts, also one that a later one overwrote."""
    rows = _checked(xp, ids.reshape(-1), len(dout), "scatter")
    if dx is not None:
        dx[...] = dout
        dx[rows] = 0
    if dupdates is not None:
        dupdates[...] = dout[rows]


define_with_grad(
    "scatter",
    "X, Ids, Updates -> Out",
    "Ids, Updates, Out@GRAD -> X@GRAD?, Updates@GRAD?",
    rows=by_row(apart=lambda op: False, totals=linear),
    attrs={"overwrite": True},
    infer=_scatter_infer,
    kernel=_scatter,
    grad_kernel=_scatter_grad,
    grad_infer=lambda ids, updates, dout, **_: (dout, Meta(updates.shape, updates.dtype)),
)


# -- index_select: along one dimension; index_sample: other columns of every row -------------------
def _index_select_infer(x: Meta, index: Meta, dim: int) -> Meta:
    _expect_integers(index, "Index")
    if not fits(index.shape, (-1, 1)[: len(index.shape)]):
        raise GraphError(f"Index: expected [n], or [n, 1], got {list(index.shape)}")
    axis = resolve_axis(dim, len(x.shape), "dim")
    return Meta((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]), x.dtype)


def _index_select(xp: ArrayModule, x, index, out, dim: int) -> None:
    places = _checked(xp, index.reshape(-1), x.shape[dim], "index_select")
    out[...] = xp.take(x, places, axis=dim)


def _index_select_grad(xp: ArrayModule, x, index, dout, dx, dim: int) -> None:
    dx.fill(0)
    add_at(xp, xp.moveaxis(dx, dim, 0), (index.reshape(-1),), xp.moveaxis(dout, dim, 0))


def _index_select_rows(op: Applied) -> OfRows:
    if op.attrs["dim"] % len(op.inputs["X"][0].shape) == 0:
        return each_row(op, "Index")
    return each_row(op, "X")


define_with_grad(
    "index_select",
    "X, Index -> Out",
    "X, Index, Out@GRAD -> X@GRAD",
    rows=_index_select_rows,
    attrs={"dim": 0},
    infer=_index_select_infer,
    kernel=_index_select,
    grad_kernel=_index_select_grad,
)


def _index_sample(xp: ArrayModule, x, index, out) -> None:
    out[...] = xp.take_along_axis(x, _checked(xp, index, x.shape[1], "index_sample"), 1)


def _index_sample_grad(xp: ArrayModule, x, index, dout, dx) -> None:
    dx.fill(0)
    add_at(xp, dx, (xp.arange(len(x)).reshape(-1, 1), index), dout)


def _index_sample_infer(x: Meta, index: Meta) -> Meta:
    _expect_integers(index, "Index")
    return Meta(index.shape, x.dtype)


define_with_grad(
    "index_sample",
    "X, Index -> Out",
    "X, Index, Out@GRAD -> X@GRAD",
    rows=by_row(),
    infer=shaped("X: n m; Index: n k", _index_sample_infer),
    kernel=_index_sample,
    grad_kernel=_index_sample_grad,
)


# -- multiplex: every row from one of several values -----------------------------------------------
def _multiplex(xp: ArrayModule, ids, xs, out) -> None:
    chosen = _checked(xp, ids.reshape(-1), len(xs), "multiplex")
    for k, x in enumerate(xs):
        rows = chosen == k
        out[rows] = x[rows]


def _multiplex_grad(xp: ArrayModule, ids, xs, dout, dxs) -> None:
    chosen = ids.reshape(-1)
    for k, dx in enumerate(dxs):
        if dx is not None:
            rows = chosen == k
            dx[...] = 0
            dx[rows] = dout[rows]


define_with_grad(
    "multiplex",
    "Ids, X* -> Out",
    "Ids, X*, Out@GRAD -> X@GRAD*",
    rows=by_row(),
    infer=shaped("Ids: n 1; X: n ...", lambda ids, xs: Meta(xs[0].shape, xs[0].dtype)),
    kernel=_multiplex,
    grad_kernel=_multiplex_grad,
)


# -- argsort ---------------------------------------------------------------------------------------
def _argsort(xp: ArrayModule, x, out, indices, axis: int, descending: bool) -> None:
    order = xp.argsort(-x if descending else x, axis=axis, kind="stable")
    if indices is not None:
        indices[...] = order
    if out is not None:
        out[...] = xp.take_along_axis(x, order, axis)


def _argsort_grad(xp: ArrayModule, indices, dout, dx, axis: int, descending: bool) -> None:
    put_along(xp, dx, indices, dout, axis)


define_with_grad(
    "argsort",
    "X -> Out, Indices",
    "Indices, Out@GRAD -> X@GRAD",
    rows=by_row(apart=off_rows("axis")),
    attrs={"axis": -1, "descending": False},
    infer=lambda x, **_: (Meta(x.shape, x.dtype), Meta(x.shape, "int64")),
    kernel=_argsort,
    grad_kernel=_argsort_grad,
    grad_infer=lambda indices, dout, **_: Meta(dout.shape, dout.dtype),
)


# -- ids -------------------------------------------------------------------------------------------
def _shard_index(
    xp: ArrayModule, x, out, index_num: int, nshards: int, shard_id: int, ignore_value: int
) -> None:
    """Number ids within their shard; those of other shards become ``ignore_value``."""
    if x.size and (int(x.min()) < 0 or int(x.max()) >= index_num):
        raise FeedError(f"shard_index: ids must be in 0..{index_num - 1}")
    size = -(-index_num // nshards)
    out[...] = xp.where(x // size == shard_id, x % size, ignore_value)


def _shard_index_infer(
    x: Meta, index_num: int, nshards: int, shard_id: int, ignore_value: int
) -> Meta:
    _expect_integers(x, "ids")
    if index_num < 1 or nshards < 1 or not 0 <= shard_id < nshards:
        raise GraphError(f"shard {shard_id} of {nshards} of {index_num} ids: there is none")
    return Meta(x.shape, x.dtype)


define(
    "shard_index",
    "X -> Out",
    rows=by_element(),
    attrs={"index_num": 1, "nshards": 1, "shard_id": 0, "ignore_value": -1},
    infer=_shard_index_infer,
    kernel=_shard_index,
)


def _hash_infer(x: Meta, num_hash: int, mod_by: int) -> Meta:
    _expect_integers(x, "ids to be hashed")
    if len(x.shape) != 2:
        raise GraphError(f"ids to be hashed must be of shape [rows, ids], got {x.shape}")
    return Meta((x.shape[0], num_hash, 1), "int64")


def _hash(xp: ArrayModule, x, out, num_hash: int, mod_by: int) -> None:
    """XXH64 of the bytes of each row, once for each of the seeds 0, 1, ..."""
    import xxhash

    host = np.ascontiguousarray(on_host(x))
    hashes = [
        [xxhash.xxh64_intdigest(row.tobytes(), seed) % mod_by for seed in range(num_hash)]
        for row in host
    ]
    out[...] = xp.asarray(np.array(hashes, np.int64).reshape(out.shape))


define(
    "hash",
    "X -> Out",
    rows=by_row(),
    attrs={"num_hash": 1, "mod_by": 100000},
    ranges={"num_hash": "at least 1", "mod_by": "at least 1"},
    infer=_hash_infer,
    kernel=_hash,
)
