"""Metrics that a script adds up batch by batch from what it fetches (Fluid's ``fluid.metrics``)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError
from hpcdist.base.fetched import as_fetched
from hpcdist.base.keywords import name_arguments_in
from hpcdist.fluid import layers
from hpcdist.fluid.initializer import Constant
from hpcdist.fluid.layers.helper import LayerHelper
from hpcdist.graph.program import Program, program_guard
from hpcdist.graph.variable import Variable
from hpcdist.ops.metric.auc import CURVES, area

__all__ = [
    "Accuracy",
    "Auc",
    "ChunkEvaluator",
    "CompositeMetric",
    "DetectionMAP",
    "EditDistance",
    "MetricBase",
    "Precision",
    "Recall",
]


class MetricBase:
    """A metric: `update` takes a batch, `eval` returns the value so far, `reset` starts anew."""

    def __init__(self, name: str | None = None) -> None:
        self._name = type(self).__name__ if name is None else str(name)

    def __str__(self) -> str:
        return self._name

    def _states(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self).items() if not name.startswith("_")}

    def reset(self) -> None:
        """Set what was added up to zero: every attribute without a leading underscore."""
        for name, value in self._states().items():
            if isinstance(value, (int, float)):
                setattr(self, name, type(value)(0))
            else:
                setattr(self, name, None if value is None else np.zeros_like(value))

    def get_config(self) -> dict[str, Any]:
        """Return the name and what was added up."""
        return {"name": self._name, "states": copy.deepcopy(self._states())}

    def update(self, preds: Any, labels: Any) -> None:
        """Add a batch."""
        raise NotImplementedError(f"{type(self).__name__}: a metric must have update()")

    def eval(self) -> Any:
        """Return the value so far."""
        raise NotImplementedError(f"{type(self).__name__}: a metric must have eval()")


class CompositeMetric(MetricBase):
    """Several metrics of the same predictions."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._metrics: list[MetricBase] = []

    def add_metric(self, metric: MetricBase) -> None:
        """Add a metric."""
        if not isinstance(metric, MetricBase):
            raise FeedError(f"add_metric: expected a metric, got {type(metric).__name__}")
        self._metrics.append(metric)

    def update(self, preds: Any, labels: Any) -> None:
        """Add a batch to every metric."""
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> list[Any]:
        """Return the values, in the order in which the metrics were added."""
        return [metric.eval() for metric in self._metrics]

    def reset(self) -> None:
        """Start every metric anew."""
        for metric in self._metrics:
            metric.reset()


def _arrays(metric: str, preds: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    for name, value in (("preds", preds), ("labels", labels)):
        if not isinstance(value, (np.ndarray, np.generic)):
            raise FeedError(f"{metric}: {name} must be an array, got {type(value).__name__}")
    return np.asarray(preds), np.asarray(labels)


def _called(metric: str, preds: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return which samples were called positive, and which are."""
    scores, truth = _arrays(metric, preds, labels)
    count = len(truth)
    return np.rint(scores[:count]).reshape(-1) == 1, truth.reshape(-1) == 1


class Precision(MetricBase):
    """The share of samples called positive (probability over a half) that are.

    Examples:
        >>> precision = fluid.metrics.Precision()
        >>> precision.update(np.array([[0.9], [0.8]]), np.array([[1], [0]]))
        >>> float(precision.eval())
        0.5
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp = 0
        self.fp = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities [n] or [n, 1] of samples, and their labels, 0 or 1."""
        called, positive = _called("Precision", preds, labels)
        self.tp += int((called & positive).sum())
        self.fp += int((called & ~positive).sum())

    def eval(self) -> float:
        """Return the precision, 0 if nothing was called positive."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(MetricBase):
    """The share of positive samples that were called so (probability over a half).

    Examples:
        >>> recall = fluid.metrics.Recall()
        >>> recall.update(np.array([[0.9], [0.2]]), np.array([[1], [1]]))
        >>> float(recall.eval())
        0.5
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp = 0
        self.fn = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities [n] or [n, 1] of samples, and their labels, 0 or 1."""
        called, positive = _called("Recall", preds, labels)
        self.tp += int((called & positive).sum())
        self.fn += int((~called & positive).sum())

    def eval(self) -> float:
        """Return the recall, 0 if nothing is positive."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Accuracy(MetricBase):
    """The mean of accuracies of batches, weighted by their sizes.

    Examples:
        >>> accuracy = fluid.metrics.Accuracy()
        >>> accuracy.update(value=0.5, weight=10)
        >>> accuracy.update(value=1.0, weight=10)
        >>> accuracy.eval()
        0.75
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.value = 0.0
        self.weight = 0.0

    def update(self, value: Any, weight: Any) -> None:
        """Add the accuracy of a batch of ``weight`` samples."""
        if not isinstance(value, (int, float, np.ndarray, np.generic)):
            raise FeedError(f"Accuracy: expected a number or an array, got {value!r}")
        if not isinstance(weight, (int, float, np.generic)) and np.shape(weight) != (1,):
            raise FeedError(f"Accuracy: weight must be a number, got {weight!r}")
        if weight < 0:
            raise FeedError(f"Accuracy: weight must not be negative, got {weight!r}")
        self.value += value * weight
        self.weight += weight

    def eval(self) -> Any:
        """Return the mean; FeedError before the first update."""
        if self.weight == 0:
            raise FeedError("Accuracy: there is nothing to average: call update() first")
        return self.value / self.weight


class Auc(MetricBase):
    """The area under the curve, from counts by score as `layers.auc` keeps them.

    ``counts``: of positives and of negatives, int64 [2, num_thresholds + 1].

    Examples:
        >>> auc = fluid.metrics.Auc("auc")
        >>> auc.update(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0], [1]]))
        >>> float(auc.eval())
        1.0
    """

    def __init__(
        self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095
    ) -> None:
        super().__init__(name)
        if curve not in CURVES:
            raise FeedError(f"Auc: curve must be one of {', '.join(CURVES)}, got {curve!r}")
        self._curve = curve
        self._num_thresholds = num_thresholds
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self.counts = np.zeros((2, self._num_thresholds + 1), np.int64)

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities [n, 2] of both classes and labels, 0 or not."""
        scores, truth = _arrays("Auc", preds, labels)
        at = (scores[: len(truth), 1] * self._num_thresholds).astype(np.int64)
        if at.size and not (at.min() >= 0 and at.max() <= self._num_thresholds):
            raise FeedError(f"Auc: probabilities must be within 0..1, got {scores[:, 1].tolist()}")
        for counts, of_class in zip(self.counts, (truth != 0, truth == 0)):
            counts += np.bincount(at[of_class.reshape(-1)], minlength=len(counts))

    @property
    def _stat_pos(self) -> list[int]:
        return self.counts[0].tolist()

    @property
    def _stat_neg(self) -> list[int]:
        return self.counts[1].tolist()

    def eval(self) -> float:
        """Return the area, 0 while one class is missing."""
        positives, negatives = self.counts
        return area(positives, negatives, self._curve)


class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 of chunks, from the counts that ``layers.chunk_eval`` gives."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.num_infer_chunks: Any = 0
        self.num_label_chunks: Any = 0
        self.num_correct_chunks: Any = 0

    def update(  # type: ignore[override]
        self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any
    ) -> None:
        """Add the chunks found, those that there are, and those found rightly."""
        self.num_infer_chunks += _number("num_infer_chunks", num_infer_chunks)
        self.num_label_chunks += _number("num_label_chunks", num_label_chunks)
        self.num_correct_chunks += _number("num_correct_chunks", num_correct_chunks)

    def eval(self) -> tuple[Any, Any, Any]:
        """Return precision, recall and F1; 0 where there is nothing to divide by.

        They are arrays of one element, as in Fluid, if such were added up.
        """
        right = self.num_correct_chunks
        precision = right / self.num_infer_chunks if self.num_infer_chunks else 0
        recall = right / self.num_label_chunks if self.num_label_chunks else 0
        return precision, recall, 2 * precision * recall / (precision + recall) if right else 0


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, (int, float, np.number, np.ndarray)) or np.size(value) != 1:
        raise ValueError(f"The {name!r} must be a number or an array of one, got {value!r}")
    return as_fetched(value)


class EditDistance(MetricBase):
    """Mean distance of sequences, and the share of those that are not right."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.total_distance = 0.0
        self.seq_num: Any = 0
        self.instance_error: Any = 0

    def update(self, distances: Any, seq_num: Any) -> None:
        """Add the distances of ``seq_num`` sequences, an array."""
        if not isinstance(distances, np.ndarray):
            raise ValueError(f"The 'distances' must be a numpy ndarray, got {distances!r}")
        count = _number("seq_num", seq_num)
        self.seq_num += count
        self.instance_error += count - int((distances == 0).sum())
        self.total_distance += float(distances.sum())

    def eval(self) -> tuple[Any, Any]:
        """Return the mean distance and the share of sequences with errors.

        They are arrays of one element, as in Fluid, if ``seq_num`` was one.
        """
        if self.seq_num == 0:
            raise ValueError("EditDistance: there is no data, call update() with some first")
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num


class DetectionMAP:
    """Mean average precision of found boxes: operators of the Program, fetched with the others.

    ``input``: (class, score, box) in sequences, one per image, as `layers.detection_output` gives;
    ``gt_label``, ``gt_difficult`` [n, 1] and ``gt_box`` [n, 4] likewise. The executor that runs the
    Program keeps what was found since the last `reset`.
    """

    def __init__(
        self,
        input: Variable,
        gt_label: Variable,
        gt_box: Variable,
        gt_difficult: Variable | None = None,
        class_num: int | None = None,
        background_label: int = 0,
        overlap_threshold: float = 0.5,
        evaluate_difficult: bool = True,
        ap_version: str = "integral",
    ) -> None:
        labels = [gt_label] if gt_difficult is None else [gt_label, gt_difficult]
        parts = [layers.cast(x, gt_box.dtype) for x in labels]
        label = layers.concat([*parts, gt_box], axis=1)
        options = class_num, background_label, overlap_threshold, evaluate_difficult
        self.cur_map = layers.detection_map(input, label, *options, ap_version=ap_version)
        self.has_state = LayerHelper("map_eval").create_global_variable(
            initializer=Constant(0), persistable=True, dtype="int32", shape=[1]
        )
        self.accum_map = layers.detection_map(
            input, label, *options, has_state=self.has_state, ap_version=ap_version
        )
        layers.fill_constant([1], "int32", 1, out=self.has_state)

    def get_map_var(self) -> tuple[Variable, Variable]:
        """Return the values to fetch: of the batch, and of all batches since the last `reset`."""
        return self.cur_map, self.accum_map

    def reset(self, executor: Any, reset_program: Program | None = None) -> None:
        """Start anew with the next batch."""
        program = Program() if reset_program is None else reset_program
        with program_guard(program):
            var = self.has_state.copied_to(program.global_block())
            layers.fill_constant([1], "int32", 0, out=program.global_block().add_var(var))
        executor.run(program)


name_arguments_in(__name__)
