"""top_k and accuracy."""

from __future__ import annotations

import functools
from typing import Any

from hpcdist.errors import GraphError
from hpcdist.graph.registry import Meta, define
from hpcdist.graph.rows import Applied, How, OfRows, by_row, common_rows, of_matrices
from hpcdist.ops.common import in_sequence
from hpcdist.ops.labels import Call


def _top_k_infer(x: Meta, k: int) -> Any:
    if not x.shape or k < 1 or 0 <= x.shape[-1] < k:
        raise GraphError(f"cannot take the {k} largest of the last dimension of {x.shape}")
    shape = (*x.shape[:-1], k)
    return Meta(shape, x.dtype), Meta(shape, "int64")


def _top_k_bind(xp: Any, x: Any, out: Any, indices: Any, k: int) -> Call:
    """Write the largest values, descending; among equal ones the lower index comes first.

    Which of equal values still get in is not laid down, but the same in every run.
    """
    if k == 1:
        return in_sequence(
            [
                functools.partial(x.argmax, -1, indices.reshape(x.shape[:-1])),
                functools.partial(x.max, -1, out, True),
            ]
        )
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
    "X -> Out, Indices",
    rows=by_row(apart=of_matrices),
    attrs={"k": 1},
    infer=_top_k_infer,
    bind=_top_k_bind,
)


def _accuracy_infer(out: Meta, indices: Meta, label: Meta) -> Any:
    rows, labels = indices.shape[0], label.shape
    if (
        len(labels) != 2
        or labels[1] not in (1, -1)
        or (-1 not in (rows, labels[0])) * (rows != labels[0])
    ):
        raise GraphError(f"{rows} predictions need labels of shape ({rows}, 1), got {labels}")
    return Meta((1,), "float32"), Meta((1,), "int32"), Meta((1,), "int32")


def _accuracy_bind(
    xp: Any, out: Any, indices: Any, label: Any, accuracy: Any, correct: Any, total: Any
) -> Call:
    """Count the rows whose label is among their indices."""
    hit = xp.empty(indices.shape, bool)
    hit_row = xp.empty(len(indices), bool)
    samples = len(indices)
    return in_sequence(
        [
            functools.partial(xp.equal, indices, label, hit),
            functools.partial(hit.any, axis=1, out=hit_row),
            functools.partial(hit_row.sum, dtype="int32", out=correct.reshape(())),
            functools.partial(xp.divide, correct, max(samples, 1), accuracy, casting="unsafe"),
            functools.partial(total.fill, samples),
        ]
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
    infer=_accuracy_infer,
    bind=_accuracy_bind,
)
