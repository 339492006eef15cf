"""Metrics."""

from __future__ import annotations

from hpcdist.graph.variable import Variable
from hpcdist.layers.helper import LayerHelper


def topk(input: Variable, k: int, name: str | None = None) -> tuple[Variable, Variable]:
    """Return the ``k`` largest values of the last dimension, descending, and their indices."""
    helper = LayerHelper("top_k", name)
    values = helper.new_var(input.dtype, stop_gradient=True)
    indices = helper.new_var("int64", stop_gradient=True)
    helper.append_op("top_k", {"X": input}, {"Out": values, "Indices": indices}, {"k": k})
    return values, indices


def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
) -> Variable:
    """Return the share [1] of rows of ``input`` [n, classes] whose label [n, 1] is in the top k.

    ``correct`` and ``total``: int32 variables to receive the counts.
    """
    helper = LayerHelper("accuracy")
    values, indices = topk(input, k)
    share = helper.new_var("float32")
    correct = correct or helper.new_var("int32")
    total = total or helper.new_var("int32")
    helper.append_op(
        "accuracy",
        {"Out": values, "Indices": indices, "Label": label},
        {"Accuracy": share, "Correct": correct, "Total": total},
    )
    return share
