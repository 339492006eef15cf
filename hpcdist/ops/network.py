"""Operators between trainers and servers: those that talk have no kernel, the runtime runs them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.ops.common import in_sequence

define(
    "send",
    "X* -> Out?",
    attrs={
        "epmap": (),
        "sections": (),
        "send_varnames": (),
        "merge_add": False,
        "use_send_handler": True,
        "trainer_id": 0,
    },
)
define("send_barrier", "X* -> Out?", attrs={"endpoints": (), "half_async": False, "trainer_id": 0})
define("recv", "X* -> Out*", attrs={"epmap": (), "recv_varnames": (), "trainer_id": 0})
define("fetch_barrier", "X* -> Out*", attrs={"endpoints": (), "trainer_id": 0})
define(
    "listen_and_serv",
    "X* ->",
    attrs={"endpoint": "", "Fanin": 1, "optimize_blocks": (), "grad_to_block_id": ()},
)
define(
    "distributed_lookup_table",
    "Ids*, W -> Outputs*",
    attrs={
        "table_names": (),
        "height_sections": (),
        "endpoints": (),
        "padding_idx": -1,
        "trainer_id": 0,
        "lookup_table_version": "lookup_table",
    },
)


# -- cutting what is sent --------------------------------------------------------------------------
def _row_metas(x: Meta, sections: Sequence[int]) -> tuple[list[Meta]]:
    if sum(sections) != x.shape[0]:
        raise GraphError(f"cannot cut {x.shape[0]} rows into blocks of {list(sections)}")
    return ([Meta((rows, *x.shape[1:]), x.dtype) for rows in sections],)


def _split_byref_bind(
    xp: Any, x: Any, outs: Sequence[Any], sections: Sequence[int]
) -> Callable[[], Any]:
    """Copy the blocks out; the executor makes them views instead, and then does not ask."""
    copies, begin = [], 0
    for out, rows in zip(outs, sections):
        copies.append(functools.partial(xp.copyto, out, x[begin : begin + rows]))
        begin += rows
    return in_sequence(copies)


define(
    "split_byref",
    "X -> Out*",
    attrs={"sections": ()},
    infer=_row_metas,
    bind=_split_byref_bind,
)
define("split_selected_rows", "X -> Out*", attrs={"height_sections": ()})


# -- tables that live on servers -------------------------------------------------------------------
def _leave_open(xp: Any, out: Any, shape: Sequence[int], dtype: str) -> None:
    """Write nothing: the values are never read here."""


define(
    "fake_init",
    "-> Out",
    attrs={"shape": (), "dtype": "float32"},
    infer=lambda shape, dtype: Meta(tuple(shape), dtype),
    kernel=_leave_open,
)
