"""Losses over large vocabularies that touch few classes of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.checks import whole
from hpcdist.base.errors import GraphError
from hpcdist.fluid.initializer import NumpyArrayInitializer
from hpcdist.fluid.layers.embedding import looked_up
from hpcdist.fluid.layers.helper import LayerHelper, declared_attrs, present
from hpcdist.fluid.layers.loss import softmax_with_cross_entropy
from hpcdist.fluid.layers.param_attr import ParamAttr, ParamLike
from hpcdist.graph.variable import Variable

__all__ = [
    "hsigmoid",
    "nce",
    "sampled_softmax_with_cross_entropy",
]

_SAMPLERS = ("uniform", "log_uniform", "custom_dist")


def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
    is_distributed: bool = False,
) -> Variable:
    """Return the mean cost of telling each row's label from ``num_neg_samples`` (10) drawn classes.

    sampler: how classes are drawn; custom_dist: with which probabilities. is_sparse: the weights of
    labels and drawn classes are looked up, and only these get gradients; with is_distributed, which
    Fluid does not have here, weights and biases are distributed tables, as those of `embedding`.

    Examples:
        >>> x = fluid.data("x", [None, 16])
        >>> label = fluid.data("label", [None, 1], "int64")
        >>> fluid.layers.nce(x, label, num_total_classes=1000).shape
        (-1, 1)
    """
    if sampler not in _SAMPLERS:
        raise GraphError(f"layers.nce: sampler must be one of {_SAMPLERS}, got {sampler!r}")
    helper = LayerHelper("nce", name)
    is_distributed = is_sparse and is_distributed
    shape, dtype = [num_total_classes, input.shape[1]], input.dtype
    shared = {"is_distributed": is_distributed}
    weight = helper.create_parameter(param_attr, shape, dtype, **shared)
    bias = helper.create_parameter(bias_attr, [shape[0], 1], dtype, is_bias=True, **shared)
    inputs = {"Input": input, "Label": label, "Weight": weight, "Bias": bias}
    inputs["SampleWeight"] = sample_weight
    if sampler == "custom_dist":
        if custom_dist is None or len(custom_dist) != num_total_classes:
            raise GraphError("layers.nce: custom_dist needs a probability for every class")
        inputs |= _alias_tables(helper, custom_dist)
    negatives = 10 if num_neg_samples is None else whole(num_neg_samples)
    cost = helper.new_var(dtype)
    outputs = {
        "Cost": cost,
        "SampleLogits": helper.new_var(dtype, stop_gradient=True),
        "SampleLabels": helper.new_var(label.dtype, stop_gradient=True),
    }
    attrs = {
        "num_total_classes": whole(num_total_classes),
        "num_neg_samples": negatives,
        "seed": seed,
        "sampler": _SAMPLERS.index(sampler),
    }
    inputs = present(**inputs)
    if is_sparse:
        read = {slot: inputs[slot] for slot in ("Label", *_ALIAS_SLOTS) if slot in inputs}
        drawn = {**attrs, "stream": f"nce:{cost.name}"}  # the classes that it would draw itself
        inputs["Classes"] = helper.apply(
            "nce_classes", read, drawn, dtype="int64", stop_gradient=True
        )
        inputs |= _rows(helper, inputs, ("Weight", "Bias"), inputs["Classes"], is_distributed)
    helper.append_op("nce", inputs, outputs, attrs)
    return cost / (negatives + 1)


_ALIAS_SLOTS = ("CustomDistProbs", "CustomDistAlias", "CustomDistAliasProbs")


def _rows(
    helper: LayerHelper,
    slots: dict[str, Any],
    tables: Sequence[str],
    classes: Variable,
    is_distributed: bool,
) -> dict[str, Variable]:
    """Look the rows of ``classes`` up in tables, by slot: so they may lie on servers."""
    return {
        slot: looked_up(helper, "lookup_table_v2", slots[slot], classes, True, is_distributed)
        for slot in tables
        if slot in slots
    }


def _alias_tables(helper: LayerHelper, chances: Sequence[float]) -> dict[str, Any]:
    """Return tables with which one number draws from any distribution (Walker, 1974)."""
    scaled = np.array(chances, np.float64) * len(chances)
    alias = np.full(len(scaled), -1, np.int32)
    keep = np.ones(len(scaled), np.float32)
    small, large = (list(np.flatnonzero(part)) for part in (scaled < 1, scaled > 1))
    while small and large:
        low, high = small.pop(0), large.pop(0)
        alias[low], keep[low] = high, scaled[low]
        scaled[high] -= 1 - scaled[low]
        if scaled[high] > 1:
            large.append(high)
        elif scaled[high] < 1:
            small.append(high)
    tables = {}
    for slot, table in zip(_ALIAS_SLOTS, (np.array(chances, np.float32), alias, keep)):
        initializer = NumpyArrayInitializer(table)
        attr = ParamAttr(initializer=initializer, trainable=False)
        parameter = helper.create_parameter(attr, table.shape, table.dtype.name)
        assert parameter is not None
        parameter.stop_gradient = True
        tables[slot] = parameter
    return tables


def hsigmoid(
    input: Variable,
    label: Variable,
    num_classes: int,
    param_attr: ParamLike = None,
    bias_attr: ParamLike = None,
    name: str | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_custom: bool = False,
    is_sparse: bool = False,
    is_distributed: bool = False,
) -> Variable:
    """Return the cost of the decisions that lead down a tree to each row's label.

    The tree is a heap of ``num_classes`` leaves, or, with is_custom, each row's own path: rows of
    the weights in ``path_table``, left or right in ``path_code``, filled up with -1.
    is_sparse (with is_custom) and is_distributed: as in `nce`, of the decisions on the paths.

    Examples:
        >>> x = fluid.data("x", [None, 16])
        >>> label = fluid.data("label", [None, 1], "int64")
        >>> fluid.layers.hsigmoid(x, label, num_classes=1000).shape
        (-1, 1)
    """
    if is_custom and (path_table is None or path_code is None):
        raise GraphError("layers.hsigmoid: a custom tree needs path_table and path_code")
    if not is_custom and (path_table is not None or path_code is not None):
        raise GraphError("layers.hsigmoid: path_table and path_code are for is_custom=True")
    if not is_custom and num_classes < 2:
        raise GraphError(f"layers.hsigmoid: a tree needs 2 classes or more, got {num_classes}")
    helper = LayerHelper("hierarchical_sigmoid", name)
    is_distributed = is_sparse and is_distributed
    shape = [num_classes if is_custom else num_classes - 1, input.shape[1]]
    shared = {"is_distributed": is_distributed}
    weight = helper.create_parameter(param_attr, shape, input.dtype, **shared)
    bias = helper.create_parameter(bias_attr, [shape[0], 1], input.dtype, is_bias=True, **shared)
    inputs = {"X": input, "W": weight, "Label": label, "Bias": bias}
    inputs |= {"PathTable": path_table, "PathCode": path_code}
    out, pre = helper.new_var(input.dtype), helper.new_var(input.dtype, stop_gradient=True)
    attrs = {"num_classes": num_classes}
    inputs = present(**inputs)
    if is_distributed or (is_sparse and is_custom):
        read = {slot: inputs[slot] for slot in ("Label", "PathTable") if slot in inputs}
        kind = "hierarchical_sigmoid_path"
        path = helper.apply(kind, read, attrs, dtype="int64", stop_gradient=True)
        inputs |= _rows(helper, inputs, ("W", "Bias"), path, is_distributed)
    helper.append_op("hierarchical_sigmoid", inputs, {"Out": out, "PreOut": pre}, attrs)
    return out


def sampled_softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: Variable | None = None,
    customized_probabilities: Variable | None = None,
    seed: int = 0,
) -> Variable:
    """Return the cross entropy of labels among themselves and ``num_samples`` drawn classes.

    ``logits`` [rows, classes], ``label`` int64 [rows, num_true]; the result is [rows, 1], a mean
    over the labels of a row. Raises GraphError if ``use_customized_samples`` lacks the samples or
    their probabilities.

    Examples:
        >>> logits, label = fluid.data("logits", [None, 100]), fluid.data("y", [None, 1], "int64")
        >>> fluid.layers.sampled_softmax_with_cross_entropy(logits, label, num_samples=10).shape
        (-1, 1)
    """
    helper = LayerHelper("sample_logits")
    inputs = {"Logits": logits, "Labels": label}
    if use_customized_samples:
        if customized_samples is None or customized_probabilities is None:
            raise GraphError("sampled_softmax_with_cross_entropy: customized samples are missing")
        inputs["CustomizedSamples"] = customized_samples
        inputs["CustomizedProbabilities"] = customized_probabilities
    sampled, places = helper.new_var(logits.dtype), helper.new_var("int64", stop_gradient=True)
    outputs = {
        "Samples": helper.new_var("int64", stop_gradient=True),
        "Probabilities": helper.new_var(logits.dtype, stop_gradient=True),
        "SampledLogits": sampled,
        "SampledLabels": places,
    }
    attrs = {"uniq": True, **declared_attrs("sample_logits", locals())}
    helper.append_op("sample_logits", inputs, outputs, attrs)
    truth = helper.apply("one_hot", {"X": places}, {"depth": num_samples + 1}, stop_gradient=True)
    loss = softmax_with_cross_entropy(sampled, truth, soft_label=True)
    assert isinstance(loss, Variable)
    return loss / num_true
