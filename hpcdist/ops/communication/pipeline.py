"""Operators that move values between the stages of a pipeline: the runtime runs them."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows

PIPELINE_OPS = ("pipeline_send", "pipeline_recv")

# ``peer`` is the other stage; messages of one ``tag`` between two stages arrive in order.
define(
    "pipeline_send",
    "X ->",
    rows=not_on_rows,
    attrs={"peer": 0, "tag": 0, "micro_batch": -1},
)


def _received(
    shape: Sequence[int], dtype: str, peer: int, tag: int, micro_batch: int
) -> tuple[Meta]:
    return (Meta(tuple(shape), dtype),)


define(
    "pipeline_recv",
    "-> Out",
    rows=not_on_rows,
    infer=_received,
    attrs={"shape": (), "dtype": "float32", "peer": 0, "tag": 0, "micro_batch": -1},
)
