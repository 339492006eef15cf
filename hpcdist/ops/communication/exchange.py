"""Values that a script exchanges among trainers in a step: what each of them gets of everyone's.

The runtime gathers what all trainers have, so the operators have no kernel; a process alone gets
its own value back. Sums run in the order of trainers: all get the same bits, in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.common import Wanted

Everyones = Sequence[np.ndarray]

REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}


class ExchangeKind(NamedTuple):
    """One kind: ``rows(n, trainers)`` of a result, and what trainer ``me`` gets of everyone's."""

    rows: Callable[[int, int], int]
    result: Callable[[Everyones, int, int, Callable[..., Any]], np.ndarray]  # values, me, root, op


def _reduced(values: Everyones, reduction: Callable[..., Any]) -> np.ndarray:
    found = values[0].copy()
    for value in values[1:]:
        reduction(found, value, out=found)
    return found


def _as_many(rows: int, trainers: int) -> int:
    return rows


def _more(rows: int, trainers: int) -> int:
    return rows * trainers if rows >= 0 else -1


def _part(rows: int, trainers: int) -> int:
    if rows % trainers and rows >= 0:
        raise GraphError(
            f"{rows} rows cannot be divided among {trainers} trainers: give as many for each"
        )
    return rows // trainers if rows >= 0 else -1


KINDS: Mapping[str, ExchangeKind] = {
    "all_reduce": ExchangeKind(_as_many, lambda values, me, root, op: _reduced(values, op)),
    "reduce": ExchangeKind(
        _as_many, lambda values, me, root, op: _reduced(values, op) if me == root else values[me]
    ),
    "broadcast": ExchangeKind(_as_many, lambda values, me, root, op: values[root]),
    "all_gather": ExchangeKind(
        _more, lambda values, me, root, op: np.concatenate([np.atleast_1d(v) for v in values])
    ),
    "scatter": ExchangeKind(
        _part, lambda values, me, root, op: np.split(values[root], len(values))[me]
    ),
    "alltoall": ExchangeKind(
        lambda rows, trainers: _part(rows, trainers) * trainers if rows >= 0 else -1,
        lambda values, me, root, op: np.concatenate(
            [np.split(value, len(values))[me] for value in values]
        ),
    ),
    "reduce_scatter": ExchangeKind(
        _part, lambda values, me, root, op: np.split(_reduced(values, op), len(values))[me]
    ),
}


def _infer(x: Meta, kind: str, trainers: int, **_: object) -> Meta:
    rows = KINDS[kind].rows
    if rows is _as_many:
        return Meta(x.shape, x.dtype)
    first, *rest = x.shape or (1,)
    return Meta((rows(first, trainers), *rest), x.dtype)


def _no_grad(op: Operator, wanted: Wanted) -> list[GradOp]:
    raise GraphError(
        f"{op.attrs['kind']} of {op.input('X')[0]!r}: no gradient goes through what trainers "
        "exchange, and fleet's optimizer averages gradients itself: exchange a copy that the loss "
        "does not depend on, y = paddle.assign(x)"
    )


define(
    "exchange",
    "X -> Out",
    rows=not_on_rows,
    attrs={"kind": "all_reduce", "op": "sum", "root": 0, "trainers": 1},
    infer=_infer,
    grad=_no_grad,
)
define("barrier", "->", rows=not_on_rows)
EXCHANGES = ("exchange", "barrier")


def result_of(op: Operator, values: Everyones, me: int) -> np.ndarray:
    """Return the result of trainer ``me``, from everyone's values in trainer order."""
    reduction = REDUCTIONS[op.attrs["op"]]
    return KINDS[op.attrs["kind"]].result(values, me, op.attrs["root"], reduction)
