"""Look-ups in tables on servers: each distinct row of a batch is sent once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ps.client import PsClient
from hpcdist.ps.sparse_rpc import RowRequest
from hpcdist.runtime.staging import Staging, in_order, rebound


def bind_lookup(client: Callable[[], PsClient], op: Operator, binding: Binding) -> Call:
    """Return one operator's look-up of rows of a table that lives on servers."""

    def make() -> Call | None:
        staging = Staging(binding.arrays, binding.backend, {})
        ids = [staging.host(n) for n in op.input("Ids")]
        rows = [staging.host(n) for n in op.output("Outputs")]
        return in_order(
            staging.down(op.input("Ids")),
            _look_up(client, op, ids, rows),
            staging.up(op.output("Outputs")),
        )

    return rebound(binding, make)


def _look_up(
    client: Callable[[], PsClient], op: Operator, ids: Sequence[Any], outputs: Sequence[Any]
) -> Callable[[], None]:
    """Return the call that fills ``outputs`` with the rows of ``ids``; padding gives zeros.

    The table is cut by rows: part k holds ``height_sections[k]`` rows on ``endpoints[k]``. All
    look-ups of a table make one request to each server.
    """
    starts = np.cumsum([0, *op.attrs["height_sections"]])
    padding = op.attrs["padding_idx"]
    width = outputs[0].shape[-1]
    name = op.input("W")[0]

    def look_up() -> None:
        unique, places = np.unique(
            np.concatenate([i.reshape(-1) for i in ids]), return_inverse=True
        )
        if len(unique) and not (unique[0] >= 0 and unique[-1] < starts[-1]):
            raise GraphError(
                f"table {name!r} has rows 0..{starts[-1] - 1}, "
                f"got ids {unique[0]}..{unique[-1]} to look up"
            )
        rows = np.empty((len(unique), width), outputs[0].dtype)
        cuts = np.searchsorted(unique, starts)
        client().pull_rows(
            [
                RowRequest(endpoint, part, unique[b:e] - start, rows[b:e])
                for endpoint, part, start, b, e in zip(
                    op.attrs["endpoints"], op.attrs["table_names"], starts, cuts, cuts[1:]
                )
            ]
        )
        if padding >= 0:
            rows[unique == padding] = 0
        begin = 0
        for batch, out in zip(ids, outputs):
            end = begin + batch.size
            np.take(rows, places[begin:end], axis=0, out=out.reshape(batch.size, width))
            begin = end

    return look_up
