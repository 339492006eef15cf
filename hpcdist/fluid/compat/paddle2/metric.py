"""``paddle.metric``: metrics in a Program, and those that are kept outside of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, GraphError, GraphTypeError
from hpcdist.fluid import metrics
from hpcdist.fluid.compat.paddle2 import declare, tensor
from hpcdist.fluid.compat.paddle2.scalars import scalar
from hpcdist.fluid.layers import metric as fluid
from hpcdist.graph.variable import Variable


class Metric(ABC):
    """A metric kept outside of Programs: `update` adds a batch, `accumulate` gives the value."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    @abstractmethod
    def update(self, *args: Any) -> Any:
        """Add a batch: fetched arrays."""

    @abstractmethod
    def accumulate(self) -> Any:
        """Return the value of all batches so far."""

    @abstractmethod
    def name(self) -> Any:
        """Return the name of the metric."""

    def compute(self, *args: Any) -> Any:
        """Choose the results of a model that `update` takes; here all of them."""
        return args


class Accuracy(Metric):
    """Share of rows whose label is among the k greatest, for each k of ``topk``.

    Examples:
        >>> from hpcdist.fluid.compat.paddle2.metric import Accuracy
        >>> accuracy = Accuracy()
        >>> accuracy.update(np.array([[1.0], [0.0]], "float32"))
        0.5
        >>> accuracy.accumulate()
        0.5
    """

    def __init__(self, topk: Sequence[int] = (1,), name: str | None = None) -> None:
        of = declare.KINDS["ints"]("paddle.metric.Accuracy: topk", topk)
        if not of or min(of) < 1:
            raise GraphTypeError(
                f"paddle.metric.Accuracy: topk: expected counts from 1 on, got {topk}"
            )
        self.topk, self.maxk = of, max(of)
        self.total: list[float] = []
        self.count: list[int] = []
        name = name or "acc"
        self._name = [name] if self.maxk == 1 else [f"{name}_top{k}" for k in of]
        self.reset()

    def compute(self, pred: Variable, label: Variable, *args: Any) -> Variable:
        """Append what tells which of the ``maxk`` greatest is the label: float32 [n, maxk].

        ``pred`` [n, classes]; ``label`` [n], [n, 1] or one-hot [n, classes].
        """
        best = tensor.argsort(pred, descending=True)
        best = tensor.slice(best, [len(best.shape) - 1], [0], [self.maxk])
        if len(label.shape) == 1 or (len(label.shape) == 2 and label.shape[-1] == 1):
            label = tensor.reshape(label, [-1, 1])
        elif label.shape[-1] != 1:
            label = tensor.argmax(label, axis=-1, keepdim=True)
        return tensor.cast(tensor.equal(best, tensor.cast(label, best.dtype)), "float32")

    def update(self, correct: Any, *args: Any) -> Any:
        """Add what `compute` has given; return the accuracies of this batch."""
        right = np.asarray(correct)
        count = int(np.prod(right.shape[:-1]))
        found = [float(right[..., :k].sum()) for k in self.topk]
        self.total = [before + more for before, more in zip(self.total, found)]
        self.count = [before + count for before in self.count]
        return self._one_or_all([of / count if count else 0.0 for of in found])

    def accumulate(self) -> Any:
        """Return the accuracies so far: a number, or a list where ``topk`` has several."""
        return self._one_or_all([t / c if c else 0.0 for t, c in zip(self.total, self.count)])

    def _one_or_all(self, values: list[float]) -> Any:
        return values[0] if len(self.topk) == 1 else values

    def reset(self) -> None:
        """Forget all batches."""
        self.total, self.count = [0.0] * len(self.topk), [0] * len(self.topk)

    def name(self) -> list[str]:
        """Return a name for each of ``topk``."""
        return self._name


class _OfFluid(Metric):
    """Base of metrics that a metric of Fluid keeps."""

    kept: Any
    _name: str

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities of a batch and its labels, 0 or 1: arrays."""
        self.kept.update(preds, labels)

    def accumulate(self) -> float:
        """Return the value so far."""
        return float(self.kept.eval())

    def reset(self) -> None:
        """Forget all batches."""
        self.kept.reset()

    def name(self) -> str:
        """Return the name of the metric."""
        return self._name


class _OfTwoClasses(_OfFluid):
    """Base of precision and recall: a half counts as positive, which Fluid's rounding does not."""

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities [n] or [n, 1] and labels, 0 or 1: arrays."""
        if not isinstance(preds, (np.ndarray, np.generic)):
            raise FeedError(
                f"paddle.metric.{type(self).__name__}: preds must be an array, got "
                f"{type(preds).__name__}"
            )
        self.kept.update(np.floor(np.add(preds, 0.5)), labels)


class Precision(_OfTwoClasses):
    """The share of samples called positive (probability from a half on) that are."""

    def __init__(self, name: str = "precision") -> None:
        self.kept, self._name = metrics.Precision(), name


class Recall(_OfTwoClasses):
    """The share of positive samples that are called so (probability from a half on)."""

    def __init__(self, name: str = "recall") -> None:
        self.kept, self._name = metrics.Recall(), name


class Auc(_OfFluid):
    """The area under the curve of probabilities [n, 2] and labels [n, 1]."""

    def __init__(self, curve: str = "ROC", num_thresholds: int = 4095, name: str = "auc") -> None:
        self.kept, self._name = metrics.Auc(name, curve, num_thresholds), name


@declare.composed("paddle.static")
def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
    name: str | None = None,
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
