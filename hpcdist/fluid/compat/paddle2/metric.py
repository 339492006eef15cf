"""``paddle.metric``: metrics in a Program, and those that are kept outside of it."""

from hpcdist.fluid.layers.metric import accuracy, auc
from hpcdist.fluid.metrics import Accuracy, Auc, MetricBase, Precision, Recall

Metric = MetricBase

__all__ = ["Accuracy", "Auc", "Metric", "Precision", "Recall", "accuracy", "auc"]
