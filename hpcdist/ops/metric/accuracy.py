"""top_k, accuracy and precision_recall."""

from __future__ import annotations

from functools import partial

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.registry import Given, Meta, define
from hpcdist.graph.rows import Applied, How, MixesRows, OfRows, by_row, common_rows, of_matrices
from hpcdist.ops.common import in_sequence
from hpcdist.ops.host_loops import compiled
from hpcdist.ops.shape_patterns import shaped
from hpcdist.ops.types import ArrayModule, Call, DeviceArray, Metas

FEW = 32  # so many numbers are found in one pass
LARGEST_OF = (np.dtype("float32"), np.dtype("float64"), np.dtype("int32"), np.dtype("int64"))


def _top_k_infer(x: Meta, k: int | None) -> Metas:
    if k is None:
        return _k_largest(x, -1)
    if not x.shape or k < 1 or 0 <= x.shape[-1] < k:
        raise GraphError(f"cannot take the {k} largest of the last dimension of {x.shape}")
    return _k_largest(x, k)


def _k_largest(x: Meta, k: int) -> Metas:
    shape = (*x.shape[:-1], k)
    return Meta(shape, x.dtype), Meta(shape, "int64")


def _top_k_bind(xp: ArrayModule, x, out, indices, k: int) -> Call:
    """Write the largest values, descending; among equal ones the lower index comes first.

    Which of equal values still get in is not laid down where k is large, or on a GPU, but the same
    in every run; else those with the lower indices.
    """
    if k == 1:
        return in_sequence(
            partial(x.argmax, -1, indices.reshape(x.shape[:-1])),
            partial(x.max, -1, out, True),
        )
    if xp is np and k <= FEW and x.dtype in LARGEST_OF:
        arrays = x.reshape(-1, x.shape[-1]), out.reshape(-1, k), indices.reshape(-1, k)
        return compiled("metric.top_k_kernels", "largest", *arrays)
    negated = xp.empty(x.shape, x.dtype)
    last = min(k, x.shape[-1] - 1)

    def run() -> None:
        xp.negative(x, negated)
        chosen = xp.sort(xp.argpartition(negated, last, axis=-1)[..., :k], axis=-1)
        order = xp.argsort(xp.take_along_axis(negated, chosen, -1), axis=-1, kind="stable")
        indices[...] = xp.take_along_axis(chosen, order, -1)
        out[...] = xp.take_along_axis(x, indices, -1)

    return run


define(
    "top_k",
    "X, K? -> Out, Indices",
    rows=by_row(apart=of_matrices),
    attrs={"k": 1},
    given={"k": Given("K")},
    infer=_top_k_infer,
    bind=_top_k_bind,
)


def _accuracy_bind(xp: ArrayModule, out, indices, label, accuracy, correct, total) -> Call:
    """Count the rows whose label is among their indices."""
    hit = xp.empty(indices.shape, bool)
    hit_row = xp.empty(len(indices), bool)
    samples = len(indices)
    return in_sequence(
        partial(xp.equal, indices, label, hit),
        partial(hit.any, axis=1, out=hit_row),
        partial(hit_row.sum, dtype="int32", out=correct.reshape(())),
        partial(xp.divide, correct, max(samples, 1), accuracy, casting="unsafe"),
        partial(total.fill, samples),
    )


def _counted_rows(op: Applied) -> dict[str, OfRows]:
    of = common_rows(op, op.operands, {How.ROWS, How.RAGGED})
    op.align(of.sequences, of.sequences)
    total = OfRows(How.SUM)
    return {"Accuracy": OfRows(How.MEAN, of.sequences), "Correct": total, "Total": total}


define(
    "accuracy",
    "Out, Indices, Label -> Accuracy, Correct, Total",
    rows=_counted_rows,
    infer=shaped(
        "Out: n k; Indices: n k; Label: n 1",
        lambda *_: (Meta((1,), "float32"), Meta((1,), "int32"), Meta((1,), "int32")),
    ),
    bind=_accuracy_bind,
)


# -- precision_recall ------------------------------------------------------------------------------
def _precision_recall_infer(
    max_probs: Meta,
    indices: Meta,
    labels: Meta,
    weights: Meta | None,
    states: Meta | None,
    class_number: int,
) -> Metas:
    counts = (class_number, 4)
    if class_number < 1 or (states is not None and states.shape != counts):
        got = None if states is None else states.shape
        raise GraphError(
            f"precision_recall: {class_number} classes need StatesInfo of shape {counts}, got {got}"
        )
    metrics = Meta((6,), "float64")
    return metrics, metrics, Meta(counts, max_probs.dtype)


def _precision_recall_bind(
    xp: ArrayModule,
    max_probs,
    indices,
    labels,
    weights,
    states,
    of_batch,
    of_all,
    counted,
    class_number: int,
) -> Call:
    """Count by class true and false positives, true and false negatives; weights count so much."""
    predicted, truth = indices.reshape(-1), labels.reshape(-1)

    def count() -> DeviceArray:
        for name, classes in (("index", predicted), ("label", truth)):
            if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < class_number:
                raise FeedError(
                    f"precision_recall: expected each {name} to be in 0..{class_number - 1}, "
                    f"got {int(classes.min())}..{int(classes.max())}"
                )
        each = xp.ones(len(predicted)) if weights is None else weights.reshape(-1).astype("float64")
        hit = predicted == truth
        tp, found_in, wanted_in = (
            xp.bincount(classes, weight, class_number)
            for classes, weight in ((predicted, each * hit), (predicted, each), (truth, each))
        )
        fp, fn = found_in - tp, wanted_in - tp
        return xp.stack([tp, fp, each.sum() - tp - fp - fn, fn], 1).astype(counted.dtype)

    def run() -> None:
        now = count()
        of_batch[...] = _metrics(xp, now)
        counted[...] = now if states is None else now + states
        of_all[...] = _metrics(xp, counted)

    return run


def _metrics(xp: ArrayModule, counts) -> DeviceArray:
    """Return precision, recall and F1 of counts [classes, 4]: a mean over classes, and of all."""
    tp, fp, _, fn = counts.T
    values = []
    for precision, recall in (
        (_share(xp, tp, fp).mean(), _share(xp, tp, fn).mean()),
        (_share(xp, tp.sum(), fp.sum()), _share(xp, tp.sum(), fn.sum())),
    ):
        both = precision + recall
        f1 = xp.where(both > 0, 2 * precision * recall / xp.where(both > 0, both, 1), 0)
        values += [precision, recall, f1]
    return xp.stack([xp.asarray(one) for one in values])


def _share(xp: ArrayModule, hits, misses) -> DeviceArray:
    """Return which share of all are hits; 1 where there are none."""
    any_ = (hits > 0) | (misses > 0)
    return xp.where(any_, hits / xp.where(any_, hits + misses, 1), 1)


def _of_all_rows(op: Applied) -> OfRows:
    raise MixesRows("precision and recall of a batch are not the mean of those of its parts")


define(
    "precision_recall",
    "MaxProbs, Indices, Labels, Weights?, StatesInfo? -> "
    "BatchMetrics, AccumMetrics, AccumStatesInfo",
    rows=_of_all_rows,
    attrs={"class_number": 0},
    infer=shaped("MaxProbs: n 1; Indices: n 1; Labels: n 1; Weights: n 1", _precision_recall_infer),
    bind=_precision_recall_bind,
)
