"""Operators among trainers that have no servers: the runtime runs them, so they have no kernel.

A ring is a communicator; an operator of a ring works on that one.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.embedding.sparse_ops import SPARSE
from hpcdist.ops.types import ArrayModule


def _same(x: Meta, **_: object) -> Meta:
    return x


# -- making communicators --------------------------------------------------------------------------
define(
    "gen_nccl_id",
    "-> NCCLID",
    rows=not_on_rows,
    attrs={
        "trainers": (),
        "trainer_id": 0,
        "nccl_comm_num": 1,
        "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": 0,
    },
)
define(
    "c_gen_nccl_id",
    "-> Out",
    rows=not_on_rows,
    attrs={"rank": 0, "endpoint": "", "other_endpoints": ()},
)
define("c_comm_init", "X ->", rows=not_on_rows, attrs={"nranks": 1, "rank": 0, "ring_id": 0})
define("c_comm_init_all", "->", rows=not_on_rows, attrs={"ring_id": 0})

# -- moving values, in place -----------------------------------------------------------------------
define(
    "c_broadcast",
    "X -> Out",
    rows=not_on_rows,
    attrs={"ring_id": 0, "root": 0, "use_calc_stream": False},
    infer=_same,
    inplace={"Out": "X"},
)
define(
    "c_allreduce_sum",
    "X -> Out",
    rows=not_on_rows,
    attrs={"ring_id": 0, "use_calc_stream": False},
    infer=_same,
    inplace={"Out": "X"},
)

# -- order between computing and moving ------------------------------------------------------------
define("c_sync_calc_stream", "X -> Out", rows=not_on_rows, infer=_same, inplace={"Out": "X"})
define(
    "c_sync_comm_stream",
    "X -> Out",
    rows=not_on_rows,
    attrs={"ring_id": 0},
    infer=_same,
    inplace={"Out": "X"},
)


# -- a step without data ---------------------------------------------------------------------------
def _nothing(xp: ArrayModule, out, shape: Sequence[int], dtype: str) -> None:
    """Write nothing: there are no rows."""


define(
    "no_rows",
    "-> Out",
    rows=not_on_rows,
    attrs={"shape": (), "dtype": "float32"},
    infer=lambda shape, dtype: Meta(tuple(shape), dtype, SPARSE, 0),
    kernel=_nothing,
)
