"""Forms of what reads at places that are data; these are checked apart, see `Checked`."""

from __future__ import annotations

import math

from hpcdist.ops.lookup import NO_PADDING
from hpcdist.ops.torch_forms import Checked, form


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


@form("lookup_table", "lookup_table_v2", when=_dense, checks=_rows_of, outs=True)
def lookup_table(torch, w, ids, padding_idx, outs, **_):
    flat = ids.reshape(-1)
    rows = _read(torch, w, flat)
    if padding_idx != NO_PADDING:
        rows = torch.where((flat == padding_idx).reshape(-1, 1), 0, rows)
    return rows.reshape(outs[0].shape)


@form("lookup_table_grad", "lookup_table_v2_grad", when=_dense_grad)
def lookup_table_grad(torch, w, ids, dout, padding_idx, **_):
    flat, rows = ids.reshape(-1), dout.reshape(-1, w.shape[1])
    if padding_idx != NO_PADDING:
        rows = torch.where((flat == padding_idx).reshape(-1, 1), 0, rows)
    return _added(torch, rows, flat, len(w))


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
