"""Forms of what reads at places that are data; these are checked apart, see `Checked`."""

from __future__ import annotations

import math

from hpcdist.ops.embedding.lookup import NO_PADDING
from hpcdist.ops.torch_forms import Checked, form
from hpcdist.ops.types import Array


# -- tables ----------------------------------------------------------------------------------------
def _dense(w, ids, *_, is_sparse, is_distributed, remote_prefetch, **__):
    return not (is_distributed or remote_prefetch)


def _dense_grad(w, ids, dout, is_sparse, **attrs):
    return not is_sparse and _dense(w, ids, is_sparse=is_sparse, **attrs)


def _rows_of(w, ids, **_):
    return Checked(ids, w.shape[0], "rows of the table")


def _read(torch, table, ids):
    """Return rows [ids, width]; of an id that is outside some row."""
    return torch.ops.aten.embedding(table, torch.clamp(ids, 0, len(table) - 1))


def _added(torch, rows, ids, count):
    """Return a table of ``count`` rows in which rows are added up at their ids."""
    within = torch.clamp(ids, 0, count - 1)
    return torch.ops.aten.embedding_dense_backward(rows, within, count, -1, False)


def _unpadded(torch, rows, ids, padding_idx):
    """Return rows, zeros where the id is the one for padding."""
    if padding_idx == NO_PADDING:
        return rows
    return torch.where((ids == padding_idx).reshape(-1, 1), 0, rows)


@form("lookup_table", "lookup_table_v2", when=_dense, checks=_rows_of, outs=True)
def lookup_table(torch, w, ids, padding_idx, outs, **_):
    flat = ids.reshape(-1)
    return _unpadded(torch, _read(torch, w, flat), flat, padding_idx).reshape(outs[0].shape)


@form("lookup_table_grad", "lookup_table_v2_grad", when=_dense_grad)
def lookup_table_grad(torch, w, ids, dout, padding_idx, **_):
    flat, rows = ids.reshape(-1), dout.reshape(-1, w.shape[1])
    return _added(torch, _unpadded(torch, rows, flat, padding_idx), flat, len(w))


def _places_of(x, depth, allow_out_of_range, dtype):
    return None if allow_out_of_range else Checked(x, depth, "places of the vector")


@form("one_hot", "one_hot_v2", checks=_places_of, outs=True)
def one_hot(torch, x, depth, dtype, allow_out_of_range, outs):
    hits = x.reshape(-1, 1) == torch.arange(depth, device=x.device)
    return hits.to(getattr(torch, dtype)).reshape(outs[0].shape)


# -- gather ----------------------------------------------------------------------------------------
def _gathered(x, index, overwrite):
    return Checked(index, x.shape[0], "rows")


@form("gather", checks=_gathered)
def gather(torch, x, index, overwrite):
    rows = torch.clamp(index.reshape(-1), 0, len(x) - 1)
    return torch.index_select(x, 0, rows)


@form("gather_grad")
def gather_grad(torch, x, index, dout, overwrite):
    width = math.prod(x.shape[1:])
    rows = dout.reshape(dout.shape[0], width)
    return _added(torch, rows, index.reshape(-1), len(x)).reshape(x.shape)


# -- other places ----------------------------------------------------------------------------------
def _within(torch, ids, count):
    """Return places; of one that is outside some element, since a check names it."""
    return torch.clamp(ids, 0, count - 1)


def _flat(torch, index, x_shape):
    """Return the numbers of elements, or of parts, whose places are in the last dimension."""
    place: Array = 0
    for i in range(index.shape[-1]):
        place = place * x_shape[i] + _within(torch, index[..., i], x_shape[i])
    return place.reshape(-1)


def _parts(x, deep):
    """View x as [places of ``deep`` numbers, elements of each]."""
    return x.reshape(math.prod(x.shape[:deep]), math.prod(x.shape[deep:]))


def _has_places(*metas, **_):
    return all(0 not in meta.shape for meta in metas)


def _nd_places(x, index, *_):
    return [
        Checked(index[..., i], extent, f"elements of dimension {i}")
        for i, extent in zip(range(index.shape[-1]), x.shape)
    ]


@form("gather_nd", when=_has_places, checks=_nd_places, outs=True)
def gather_nd(torch, x, index, outs):
    parts = _parts(x, index.shape[-1])
    return torch.index_select(parts, 0, _flat(torch, index, x.shape)).reshape(outs[0].shape)


@form("gather_nd_grad", when=_has_places)
def gather_nd_grad(torch, x, index, dout):
    parts = _parts(x, index.shape[-1])
    places = _flat(torch, index, x.shape)
    return _added(torch, dout.reshape(-1, parts.shape[1]), places, len(parts)).reshape(x.shape)


@form("scatter_nd_add", when=_has_places, checks=_nd_places)
def scatter_nd_add(torch, x, index, updates):
    parts = _parts(x, index.shape[-1])
    rows = updates.reshape(-1, parts.shape[1])
    return parts.index_add(0, _flat(torch, index, x.shape), rows).reshape(x.shape)


@form("scatter_nd_add_grad", when=_has_places)
def scatter_nd_add_grad(torch, index, updates, dout):
    parts = _parts(dout, index.shape[-1])
    read = torch.index_select(parts, 0, _flat(torch, index, dout.shape))
    return dout, read.reshape(updates.shape)


def _adds(x, ids, updates, overwrite):
    """Where rows are overwritten, the last one counts: torch knows no order."""
    return not overwrite


def _row_places(x, ids, *_, **__):
    return Checked(ids, x.shape[0], "rows")


@form("scatter", when=_adds, checks=_row_places)
def scatter(torch, x, ids, updates, overwrite):
    rows = _within(torch, ids.reshape(-1), len(x))
    return x.index_fill(0, rows, 0).index_add(0, rows, updates)


@form("scatter_grad")
def scatter_grad(torch, ids, updates, dout, overwrite):
    rows = _within(torch, ids.reshape(-1), len(dout))
    return dout.index_fill(0, rows, 0), torch.index_select(dout, 0, rows)


def _dim_places(x, index, dim):
    return Checked(index, x.shape[dim], f"elements of dimension {dim}")


@form("index_select", checks=_dim_places)
def index_select(torch, x, index, dim):
    return torch.index_select(x, dim, _within(torch, index.reshape(-1), x.shape[dim]))


@form("index_select_grad")
def index_select_grad(torch, x, index, dout, dim):
    places = _within(torch, index.reshape(-1), x.shape[dim])
    return torch.zeros_like(x).index_add(dim, places, dout)


def _column_places(x, index):
    return _dim_places(x, index, 1)


@form("index_sample", checks=_column_places)
def index_sample(torch, x, index):
    return torch.gather(x, 1, _within(torch, index, x.shape[1]).to(torch.int64))


@form("index_sample_grad")
def index_sample_grad(torch, x, index, dout):
    places = _within(torch, index, x.shape[1]).to(torch.int64)
    return torch.zeros_like(x).scatter_add(1, places, dout)


# -- chosen, sorted, sharded -----------------------------------------------------------------------
def _chosen(ids, x):
    """View the number of each row's value as [rows, 1, ...], of as many dimensions as x."""
    return ids.reshape(-1, *[1] * (x.ndim - 1))


def _values_there(ids, xs):
    return Checked(ids, len(xs), "values")


@form("multiplex", checks=_values_there)
def multiplex(torch, ids, xs):
    out, chosen = xs[0], _chosen(ids, xs[0])
    for k, x in enumerate(xs):
        out = torch.where(chosen == k, x, out)
    return out


@form("multiplex_grad")
def multiplex_grad(torch, ids, xs, dout):
    chosen = _chosen(ids, dout)
    return ([torch.where(chosen == k, dout, 0) for k in range(len(xs))],)


@form("argsort")
def argsort(torch, x, axis, descending):
    return torch.sort(x, dim=axis, descending=descending, stable=True)[:2]


@form("argsort_grad")
def argsort_grad(torch, indices, dout, axis, descending):
    return torch.zeros_like(dout).scatter(axis, indices, dout)


def _sharded(x, index_num, **_):
    return Checked(x, index_num, "ids")


@form("shard_index", checks=_sharded)
def shard_index(torch, x, index_num, nshards, shard_id, ignore_value):
    size = -(-index_num // nshards)
    place = torch.div(x, size, rounding_mode="floor")
    return torch.where(place == shard_id, x - place * size, ignore_value)
