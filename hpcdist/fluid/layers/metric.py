"""Metrics."""

from __future__ import annotations

from typing import Any

from hpcdist.fluid.initializer import Constant
from hpcdist.fluid.layers.helper import LayerHelper, append_all
from hpcdist.graph import names
from hpcdist.graph.variable import Variable

__all__ = ["accuracy", "auc", "topk"]


def topk(input: Variable, k: int | Variable, name: str | None = None) -> tuple[Variable, ...]:
    """Return the ``k`` largest values of the last dimension, descending, and their indices.

    input: [..., n]. Returns [..., k] of its type, and int64 [..., k].

    Examples:
        >>> x = fluid.layers.assign(np.array([[0.1, 0.7, 0.2]], "float32"))
        >>> values, places = fluid.layers.topk(x, k=1)
        >>> fluid.Executor().run(fetch_list=[places])
        [array([[1]])]
    """
    outputs = {"Out": input.dtype, "Indices": "int64"}
    return append_all("top_k", {"X": input}, {"k": k}, outputs, name)


def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
) -> Variable:
    """Return the share [1] of rows of ``input`` [n, classes] whose label [n, 1] is in the top k.

    ``correct`` and ``total``: int32 variables to receive the counts.

    Examples:
        >>> chances = fluid.layers.assign(np.array([[0.9, 0.1], [0.2, 0.8]], "float32"))
        >>> label = fluid.layers.assign(np.array([[0], [0]], "int64"))
        >>> fluid.Executor().run(fetch_list=[fluid.layers.accuracy(chances, label)])
        [array([0.5], dtype=float32)]
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


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
) -> tuple[Variable, Variable, list[Variable]]:
    """Return the area under the curve [1] over all batches, that over the last ones, and counts.

    ``input``: probabilities [n, 2] of negative and positive class, or [n, 1] of the positive one;
    ``label`` int64 [n, 1]. ``slide_steps``: how many batches the second area looks back on
    (0: on all). The
    counts are persistable variables: positives and negatives by bucket of the last batches, then
    of all. Trainers of a plain script count their own rows; fetched areas and counts are those of
    all trainers. ``curve``: ROC or PR. ``topk`` changes nothing, as in Fluid.

    Examples:
        >>> chances = fluid.data("chances", [None, 2])
        >>> label = fluid.data("label", [None, 1], "int64")
        >>> auc, batch_auc, states = fluid.layers.auc(chances, label)
        >>> auc.shape
        (1,)
    """
    return areas_and_counts(input, label, curve, num_thresholds, slide_steps)


def areas_and_counts(
    input: Variable,
    label: Variable,
    curve: str,
    num_thresholds: int,
    slide_steps: int,
    scalar: bool = False,
) -> tuple[Variable, Variable, list[Variable]]:
    """Do what `auc` does; ``scalar``: the areas have shape ()."""
    helper = LayerHelper("auc")
    facts_of_curve = {"curve": curve, "num_thresholds": num_thresholds, "scalar": scalar}
    areas = [helper.new_var("float64", stop_gradient=True) for _ in range(2)]
    buckets = num_thresholds + 1
    facts: dict[str, Any] = {"dtype": "int64", "persistable": True, "stop_gradient": True}
    shapes = [[(1 + slide_steps) * buckets + 1]] * 2 + [[1, buckets]] * 2
    counts = [
        helper.create_global_variable(
            names.generate("_generated_var"), Constant(0.0), shape=shape, **facts
        )
        for shape in shapes
    ]
    for out, pair, steps in zip(areas[::-1], (counts[:2], counts[2:]), (slide_steps, 0)):
        helper.append_op(
            "auc",
            {"Predict": input, "Label": label, "StatPos": pair[0], "StatNeg": pair[1]},
            {"AUC": out, "StatPosOut": pair[0], "StatNegOut": pair[1]},
            {**facts_of_curve, "slide_steps": steps},
        )
    return areas[0], areas[1], counts
