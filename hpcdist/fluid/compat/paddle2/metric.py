"""``paddle.metric``: metrics in a Program, and those that are kept outside of it."""

from __future__ import annotations

from typing import Any

from hpcdist.base.errors import GraphError
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers import metric as fluid
from hpcdist.fluid.metrics import Accuracy, Auc, MetricBase, Precision, Recall
from hpcdist.graph.variable import Variable

Metric = MetricBase


@declare.composed("paddle.static")
def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
) -> Variable:
    """Return the share [] of rows whose label is among the k greatest; see Fluid's."""
    return scalar(fluid.accuracy(input, label, k, correct, total))


@declare.composed("paddle.static")
def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 4095,
    topk: int = 1,
    slide_steps: int = 1,
    ins_tag_weight: Any = None,
) -> tuple[Variable, Variable, list[Variable]]:
    """Return the areas [] under the curve, over all and the last batches, and counts: Fluid's."""
    if ins_tag_weight is not None:
        raise GraphError("paddle.static.auc: ins_tag_weight is not here: mask rows before it")
    return fluid.areas_and_counts(input, label, curve, num_thresholds, slide_steps, scalar=True)


__all__ = ["Accuracy", "Auc", "Metric", "Precision", "Recall", "accuracy", "auc"]
