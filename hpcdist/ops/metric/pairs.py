"""positive_negative_pair: how often scores order two rows of a query as their labels do."""

from __future__ import annotations

import numpy as np

from hpcdist.base.device import assign, on_host
from hpcdist.base.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import not_on_rows
from hpcdist.ops.types import Array, ArrayModule, Metas


def _infer(score: Meta, label: Meta, query: Meta, *rest: Meta | None, column: int) -> Metas:
    before = rest[:3]
    if any(before) and not all(before):
        raise GraphError("positive_negative_pair: all three counts of before are given, or none")
    return (Meta((1,), score.dtype),) * 3


def _count(xp: ArrayModule, score, label, query, *rest: Array | None, column: int) -> None:
    """Add weights of pairs; as in Fluid, a pair with equal scores counts as negative, too."""
    before, weight, outs = rest[:3], rest[3], rest[4:]
    scores, labels, queries = (on_host(x) for x in (score, label, query))
    scores, labels = scores.reshape(len(scores), -1)[:, column], labels.reshape(-1)
    weights = np.ones_like(scores) if weight is None else on_host(weight).reshape(-1)
    first, second = np.triu_indices(len(scores), 1)
    apart = (queries.reshape(-1)[first] == queries.reshape(-1)[second]) & (
        labels[first] != labels[second]
    )
    first, second = first[apart], second[apart]
    of_pairs = (weights[first] + weights[second]) * scores.dtype.type(0.5)
    gap = scores[first] - scores[second]
    positive = gap * (labels[first] - labels[second]) > 0
    for out, chosen, was in zip(outs, (positive, ~positive, gap == 0), before):
        if out is not None:
            start = 0 if was is None else on_host(was).reshape(-1)[0]
            assign(out, np.array([start + of_pairs[chosen].sum()], scores.dtype))


define(
    "positive_negative_pair",
    "Score, Label, QueryID, AccumulatePositivePair?, AccumulateNegativePair?, "
    "AccumulateNeutralPair?, Weight? -> PositivePair, NegativePair, NeutralPair",
    rows=not_on_rows,
    attrs={"column": -1},
    infer=_infer,
    kernel=_count,
)
