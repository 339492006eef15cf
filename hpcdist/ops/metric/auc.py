"""The area under a classifier's curve, from counts of positives and negatives by their score.

Scores in [0, 1] fall into ``num_thresholds`` + 1 buckets, as in Fluid: neighbouring buckets are
joined by straight lines. With n thresholds the area errs by less than the share of pairs of a
positive and a negative that fall into one bucket.
"""

from __future__ import annotations

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import FeedError, GraphError
from hpcdist.base.warned import warn
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Applied, How, OfRows, common_rows
from hpcdist.ops.types import Array, ArrayModule, Call, DeviceArray, Metas

CURVES = ("ROC", "PR")


def area(positives, negatives, curve: str = "ROC") -> float:
    """Return the area under a curve of counts by bucket, [buckets] each, lowest score first.

    ROC: true over false positives, 0 where positives or negatives are missing. PR: precision over
    recall, 0 without positives.
    """
    positives = np.cumsum(positives.reshape(-1)[::-1], dtype="float64")
    negatives = np.cumsum(negatives.reshape(-1)[::-1], dtype="float64")
    hits, misses = positives[-1], negatives[-1]
    if not hits or (curve == "ROC" and not misses):
        return 0.0
    if curve == "ROC":
        before = np.concatenate([[0.0], positives[:-1]])
        steps = np.diff(negatives, prepend=0.0)
        return float((steps * (positives + before)).sum() / 2 / hits / misses)
    called = positives + negatives
    precision = positives[called > 0] / called[called > 0]
    recall = positives[called > 0] / hits
    before = np.concatenate([precision[:1], precision[:-1]])
    return float((np.diff(recall, prepend=0.0) * (precision + before)).sum() / 2)


def counted(statistic, num_thresholds: int, slide_steps: int) -> Array:
    """Return the counts that a statistic variable stands for.

    With ``slide_steps`` s it holds the buckets of each of the last s batches, their sum, and the
    number of batches; without, one row of buckets.
    """
    buckets = num_thresholds + 1
    flat = statistic.reshape(-1)
    return flat[slide_steps * buckets : (slide_steps + 1) * buckets]


def _infer(
    predict: Meta,
    label: Meta,
    positives: Meta,
    negatives: Meta,
    weight: Meta | None,
    curve: str,
    num_thresholds: int,
    slide_steps: int,
    scalar: bool,
) -> Metas:
    if curve not in CURVES:
        raise GraphError(f"auc: curve must be one of {', '.join(CURVES)}, got {curve!r}")
    if len(predict.shape) != 2 or predict.shape[1] not in (1, 2, -1):
        raise GraphError(
            "auc: expected probabilities [rows, 2], or of the positive class [rows, 1], "
            f"got {predict.shape}"
        )
    if -1 not in (predict.shape[0], label.size) and label.size != predict.shape[0]:
        raise GraphError(f"auc: {predict.shape[0]} rows need one label each, got {label.shape}")
    buckets = num_thresholds + 1
    needed = (slide_steps + 1) * buckets + 1 if slide_steps else buckets
    sizes = {needed} if slide_steps else {buckets, buckets + 1}  # Fluid's layer makes one too many
    if not {positives.size, negatives.size} <= sizes:
        raise GraphError(
            f"auc: {num_thresholds} thresholds over {slide_steps} batches need {needed} counts, "
            f"got {positives.shape} and {negatives.shape}"
        )
    return Meta(() if scalar else (1,), "float64"), positives, negatives


def _bind(
    xp: ArrayModule,
    predict,
    label,
    positives,
    negatives,
    weight,
    out,
    positives_out,
    negatives_out,
    curve: str,
    num_thresholds: int,
    slide_steps: int,
    scalar: bool,
) -> Call:
    """Count this batch, then take the area; rows of ``weight`` 0 do not count.

    Labels above 0 are positive, those of 0 negative, others are left out; the first batch warns of
    labels other than 0 and 1, which are often those of another variable.
    """
    scores = predict[:, predict.shape[1] - 1]
    labels = label.reshape(-1)
    buckets = num_thresholds + 1
    results = [(positives, positives_out), (negatives, negatives_out)]
    apart = [(now, before) for before, now in results if now is not before]
    flat = [now.reshape(-1) for _, now in results]
    tables = flat if slide_steps else [t[:buckets] for t in flat]
    unseen = [_look_at]  # empty once a batch has been counted

    def run() -> None:
        for now, before in apart:
            now[...] = before
        counts = _count()
        for table, counts_of_batch in zip(tables, counts):
            if slide_steps:
                _slide(table, counts_of_batch)
            else:
                table += counts_of_batch
        pos, neg = (counted(on_host(t), num_thresholds, slide_steps) for t in tables)
        out.fill(area(pos, neg, curve))

    def _count() -> list[DeviceArray]:
        if not len(scores) or (weight is not None and not float(weight.reshape(-1)[0])):
            return [xp.zeros(buckets, "int64")] * 2
        low, high = float(scores.min()), float(scores.max())
        if not (low >= 0 and high <= 1):
            raise FeedError(f"auc: expected probabilities within 0..1, got {low}..{high}")
        at = (scores * num_thresholds).astype("int64")
        while unseen:
            unseen.pop()(labels)
        return [
            xp.bincount(at[xp.flatnonzero(chosen)], minlength=buckets)
            for chosen in (labels > 0, labels == 0)
        ]

    def _slide(table, counts_of_batch) -> None:
        now = int(table[-1]) % slide_steps
        oldest = table[now * buckets : (now + 1) * buckets]
        total = counted(table, num_thresholds, slide_steps)
        total += counts_of_batch - oldest
        oldest[...] = counts_of_batch
        table[-1:] += 1

    return run


def _look_at(labels: DeviceArray) -> None:
    """Warn of labels other than 0 and 1, and -1, as what is to be left out is often called."""
    low, high = labels.min(), labels.max()
    if low < -1 or high > 1:
        warn(
            f"auc: expected labels 0 and 1, got {low} to {high}: those above 0 count as 1, those "
            "below are left out; is this the right variable?"
        )


def _counted_rows(op: Applied) -> OfRows:
    """Each trainer counts its rows; the counts add up to the job's."""
    rows = [*op.inputs["Predict"], *op.inputs["Label"]]
    common_rows(op, rows, {How.ROWS, How.RAGGED})
    return OfRows(How.COUNTS)


define(
    "auc",
    "Predict, Label, StatPos, StatNeg, Weight? -> AUC, StatPosOut, StatNegOut",
    rows=_counted_rows,
    sums=("StatPosOut", "StatNegOut"),
    attrs={"curve": "ROC", "num_thresholds": 2**12 - 1, "slide_steps": 1, "scalar": False},
    infer=_infer,
    bind=_bind,
)
