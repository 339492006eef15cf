"""What the transpiler puts into Programs: cutting gradients into blocks, and messages.

Messages (send, recv, the barriers, listen_and_serv) have no kernel: the runtime binds them to a
parameter-server client or server.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.ops.common import in_sequence
from hpcdist.ops.selected_rows import SelectedRows


# -- cutting -----------------------------------------------------------------------------------
def _split_byref_infer(x: Meta, sections: Sequence[int]) -> tuple[list[Meta]]:
    if x.shape[0] != -1 and sum(sections) != x.shape[0]:
        raise GraphError(f"split_byref: sections {list(sections)} do not add up to {x.shape[0]}")
    return ([Meta((rows, *x.shape[1:]), x.dtype) for rows in sections],)


def _split_byref_bind(
    xp: Any, x: Any, outs: list[Any], sections: Sequence[int]
) -> Callable[[], Any]:
    """Copy rows; an output that is a view of X's rows already costs nothing."""
    steps, start = [], 0
    for out, rows in zip(outs, sections):
        part = x[start : start + rows]
        start += rows
        if not xp.may_share_memory(part, out):
            steps.append(functools.partial(xp.copyto, out, part))
    return in_sequence(steps)


define(
    "split_byref",
    "X -> Out*",
    attrs={"sections": ()},
    infer=_split_byref_infer,
    bind=_split_byref_bind,
)


def _split_selected_rows_infer(x: Meta, height_sections: Sequence[int]) -> tuple[list[Meta]]:
    # At most all rows fall into one section; how many do is known at each step.
    return ([Meta((h, *x.shape[1:]), x.dtype, "SELECTED_ROWS", x.rows) for h in height_sections],)


def _split_selected_rows_bind(
    xp: Any, x: SelectedRows, outs: list[SelectedRows], height_sections: Sequence[int]
) -> Callable[[], Any]:
    """Give every section its rows, numbered from its start, in the head of its buffers."""
    buffers = [(out.rows, out.value) for out in outs]

    def run() -> None:
        start = 0
        for out, (rows, value), height in zip(outs, buffers, height_sections):
            here = xp.flatnonzero((x.rows >= start) & (x.rows < start + height))
            out.rows, out.value = rows[: len(here)], value[: len(here)]
            xp.subtract(x.rows[here], start, out=out.rows)
            xp.take(x.value, here, axis=0, out=out.value)
            start += height

    return run


define(
    "split_selected_rows",
    "X -> Out*",
    attrs={"height_sections": ()},
    infer=_split_selected_rows_infer,
    bind=_split_selected_rows_bind,
)

# Stands where a trainer's startup program initialized a table that only servers hold.
define("fake_init", " -> Out", attrs={"shape": ()}, kernel=lambda xp, out, shape: None)

# -- messages ------------------------------------------------------------------------------------
define(
    "send",
    "X* -> Out*",
    attrs={
        "epmap": (),
        "sections": (),
        "send_varnames": (),
        "merge_add": False,
        "use_send_handler": True,
        "trainer_id": 0,
    },
)
define("recv", "X* -> Out*", attrs={"epmap": (), "recv_varnames": (), "trainer_id": 0})
define(
    "send_barrier",
    "X* -> Out*",
    attrs={"endpoints": (), "half_async": False, "trainer_id": 0},
)
define("fetch_barrier", "X* -> Out*", attrs={"endpoints": (), "trainer_id": 0})
define(
    "listen_and_serv",
    "X* -> ",
    attrs={
        "endpoint": "",
        "pserver_id": 0,
        "Fanin": 1,
        "distributed_mode": 0,
        "optimize_blocks": (),
        "grad_to_block_id": (),
        "sparse_grad_to_param": (),
        "lr_decay_block_id": -1,
        "prefetch_var_name_to_block_id": (),
        "checkpint_block_id": -1,  # Fluid's spelling
        "dc_asgd": False,
        "rpc_send_thread_num": 12,
        "rpc_get_thread_num": 12,
        "rpc_prefetch_thread_num": 12,
    },
)
