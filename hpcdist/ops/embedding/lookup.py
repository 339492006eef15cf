"""Tables read by integer ids: embeddings (dense or sparse gradient) and one-hot vectors."""

from __future__ import annotations

from functools import partial

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Given, Meta, define
from hpcdist.graph.rows import by_element
from hpcdist.ops.common import define_with_grad, in_sequence
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.ops.loss.labels import put_where, range_check, take
from hpcdist.ops.types import ArrayModule, Call

NO_PADDING = -1


def ids_shape(ids: Meta, last_is_one: bool) -> tuple[int, ...]:
    """Return the shape that a look-up's rows stand in; GraphError for ids that cannot be such."""
    if not ids.dtype.startswith("int"):
        raise GraphError(f"ids must be of an integer dtype, got {ids.dtype}")
    if not last_is_one:
        return ids.shape
    if not ids.shape or ids.shape[-1] not in (1, -1):
        raise GraphError(
            f"ids of shape {ids.shape} must end in a dimension of 1 "
            "(the operators of fluid.embedding and fluid.one_hot take any shape)"
        )
    return ids.shape[:-1]


def _lookup_infer(
    last_is_one: bool,
    w: Meta,
    ids: Meta,
    padding_idx: int = NO_PADDING,
    is_distributed: bool = False,
    **_,
) -> Meta:
    if len(w.shape) != 2:
        raise GraphError(f"a table must have 2 dimensions (rows, width), got {w.shape}")
    if padding_idx >= w.shape[0] and not is_distributed:
        raise GraphError(f"padding_idx {padding_idx} is outside a table of {w.shape[0]} rows")
    return Meta((*ids_shape(ids, last_is_one), w.shape[1]), w.dtype)


def _lookup_bind(op_type: str, xp: ArrayModule, w, ids, out, padding_idx: int, **_) -> Call:
    flat, rows = ids.reshape(-1), out.reshape(-1, w.shape[1])
    check = range_check(xp, ids, w.shape[0], op_type, "rows of the table")
    calls = [check, take(xp, w, flat, rows, axis=0)]
    return in_sequence(*calls, *_clear_padding(xp, flat, rows, padding_idx))


def _clear_padding(xp: ArrayModule, ids, rows, padding_idx: int) -> list[Call]:
    if padding_idx == NO_PADDING:
        return []
    padded = xp.empty(ids.shape, bool)
    return [
        partial(xp.equal, ids, padding_idx, padded),
        put_where(xp, rows, 0, padded.reshape(-1, 1)),
    ]


def _lookup_grad_infer(w: Meta, ids: Meta, dout: Meta, is_sparse: bool, **_) -> Meta:
    if is_sparse:
        return Meta(w.shape, w.dtype, "SELECTED_ROWS", ids.size)
    return Meta(w.shape, w.dtype)


def _lookup_grad_bind(
    xp: ArrayModule, w, ids, dout, dw, padding_idx: int, is_sparse: bool, **_
) -> Call:
    flat, value = ids.reshape(-1), dout.reshape(-1, dout.shape[-1])
    if is_sparse:
        return in_sequence(
            partial(xp.copyto, dw.rows, flat),
            partial(xp.copyto, dw.value, value),
            *_clear_padding(xp, flat, dw.value, padding_idx),
        )
    calls = [partial(dw.fill, 0), partial(_add_rows, flat, value, dw)]
    if padding_idx != NO_PADDING:
        calls.append(partial(dw[padding_idx].fill, 0))
    return in_sequence(*calls)


def _add_rows(ids, value, table) -> None:
    SelectedRows(ids, value, len(table)).add_to(table)


_LOOKUP_ATTRS = {
    "is_sparse": False,
    "is_distributed": False,
    "padding_idx": NO_PADDING,
    "remote_prefetch": False,
    "trainer_id": 0,
    "epmap": [],
    "table_names": [],
    "height_sections": [],
}
for _type, _last_is_one in (("lookup_table", True), ("lookup_table_v2", False)):
    define_with_grad(
        _type,
        "W, Ids -> Out",
        "W, Ids, Out@GRAD -> W@GRAD",
        rows=by_element("Ids"),
        attrs=_LOOKUP_ATTRS,
        infer=partial(_lookup_infer, _last_is_one),
        bind=partial(_lookup_bind, _type),
        grad_infer=_lookup_grad_infer,
        grad_bind=_lookup_grad_bind,
    )


def _saved_infer(ids: Meta, width: int, last_is_one: bool, **_) -> Meta:
    return Meta((*ids_shape(ids, last_is_one), width), "float32")


def _saved_bind(xp: ArrayModule, ids, out, width: int, padding_idx: int, rows, **_) -> Call:
    flat, values = ids.reshape(-1), out.reshape(-1, width)
    looked_up = np.empty(values.shape, np.float32)

    def look_up() -> None:
        host_ids = on_host(flat)
        host_ids = host_ids.astype(np.int64, copy=False)
        rows.look_up(host_ids, looked_up)
        if padding_idx != NO_PADDING:
            looked_up[host_ids == padding_idx] = 0
        values[...] = xp.asarray(looked_up)

    return look_up


# What a loaded model has in place of look-ups in a distributed table: ``rows`` finds them by id
# (`checkpoint.saved_rows`). It needs neither a table in the scope nor servers.
define(
    "lookup_saved_rows",
    "Ids -> Out",
    rows=by_element("Ids"),
    attrs={"table": "", "width": 1, "padding_idx": NO_PADDING, "last_is_one": True, "rows": None},
    infer=_saved_infer,
    bind=_saved_bind,
)


def _one_hot_infer(last_is_one: bool, x: Meta, depth: int | None, dtype: str, **_) -> Meta:
    if depth is not None and depth < 1:
        raise GraphError(f"depth must be at least 1, got {depth}")
    return Meta((*ids_shape(x, last_is_one), -1 if depth is None else depth), dtype)


def _one_hot_bind(
    op_type: str, xp: ArrayModule, x, out, depth: int, allow_out_of_range: bool, **_
) -> Call:
    ids, classes = x.reshape(-1, 1), xp.arange(depth)
    equal = partial(xp.equal, ids, classes, out.reshape(-1, depth), casting="unsafe")
    if allow_out_of_range:  # such an id gives a row of zeros
        return equal
    return in_sequence(range_check(xp, x, depth, op_type, "places of the vector"), equal)


_ONE_HOT_ATTRS = {"depth": 1, "dtype": "float32", "allow_out_of_range": False}
for _type, _last_is_one in (("one_hot", True), ("one_hot_v2", False)):
    define(
        _type,
        "X, depth_tensor? -> Out",
        rows=by_element(),
        attrs=_ONE_HOT_ATTRS,
        given={"depth": Given("depth_tensor")},
        infer=partial(_one_hot_infer, _last_is_one),
        bind=partial(_one_hot_bind, _type),
    )
