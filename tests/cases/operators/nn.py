"""Gradient cases of softmax, losses, normalizations, dropout and lookups."""

from __future__ import annotations

import numpy as np

from tests.support.ops import Case, Draw, case


def _probabilities(draw: Draw, shape: tuple[int, ...]) -> np.ndarray:
    raw = draw.floats(shape, 0.2, 1.2)
    return raw / raw.sum(-1, keepdims=True)


def _labels(draw: Draw, shape: tuple[int, ...], axis: int, ignore_index: int) -> np.ndarray:
    """Return hard labels for scores of a shape; some are to be ignored."""
    per_sample = list(shape)
    per_sample[axis] = 1
    labels = draw.rng.integers(0, shape[axis], per_sample)
    labels[draw.rng.random(per_sample) < 0.2] = ignore_index
    return labels


@case("softmax")
def _softmax(draw: Draw) -> Case:
    shape = draw.shape()
    axis = draw.int(-len(shape), len(shape) - 1)
    return Case({"X": draw.floats(shape)}, {"axis": axis})


@case("cross_entropy2")
def _hard_labels(draw: Draw) -> Case:
    shape, ignore_index = draw.shape(2), draw.of(-100, 0)
    x, label = _probabilities(draw, shape), _labels(draw, shape, -1, ignore_index)
    return Case({"X": x, "Label": label}, {"ignore_index": ignore_index}, targets=["Y"])


@case("cross_entropy")
def _soft_labels(draw: Draw) -> Case:
    shape = draw.shape(2)
    x, label = _probabilities(draw, shape), _probabilities(draw, shape)
    if draw.bool():
        return Case({"X": x, "Label": label}, {"soft_label": True}, wrt=["X"])
    classes = draw.rng.integers(0, shape[-1], (*shape[:-1], 1))
    return Case({"X": x, "Label": classes}, {"ignore_index": draw.of(-100, 0)}, wrt=["X"])


@case("softmax_with_cross_entropy")
def _scores(draw: Draw) -> Case:
    shape, ignore_index = draw.shape(2), draw.of(-100, 0)
    soft = draw.bool()
    axis = -1 if soft else draw.int(-len(shape), len(shape) - 1)
    label = _probabilities(draw, shape) if soft else _labels(draw, shape, axis, ignore_index)
    attrs = {"soft_label": soft, "axis": axis, "ignore_index": ignore_index}
    inputs = {"Logits": draw.floats(shape), "Label": label}
    return Case(inputs, attrs, wrt=["Logits"], targets=["Loss"])


@case("sigmoid_cross_entropy_with_logits")
def _binary_scores(draw: Draw) -> Case:
    shape = draw.shape()
    label = draw.rng.integers(-1, 2, shape).astype("float64")
    attrs = {"ignore_index": -1, "normalize": draw.bool()}
    return Case({"X": draw.floats(shape, avoid=[0]), "Label": label}, attrs, wrt=["X"])


@case("log_loss")
def _binary_probabilities(draw: Draw) -> Case:
    shape = (draw.int(1, 5), 1)
    label = draw.rng.integers(0, 2, shape).astype("float64")
    inputs = {"Predicted": draw.floats(shape, 0.1, 0.9), "Labels": label}
    return Case(inputs, {"epsilon": draw.of(1e-4, 1e-2)}, wrt=["Predicted"])


@case("huber_loss")
def _huber(draw: Draw) -> Case:
    shape = (draw.int(1, 5), 1)
    inputs = {"X": draw.floats(shape), "Y": draw.floats(shape)}
    return Case(inputs, {"delta": draw.of(0.5, 1.0)}, targets=["Out"])


@case("smooth_l1_loss")
def _smooth_l1(draw: Draw) -> Case:
    shape = draw.shape(2)
    inputs = {"X": draw.floats(shape), "Y": draw.floats(shape)}
    for slot in ("InsideWeight", "OutsideWeight"):
        if draw.bool():
            inputs[slot] = draw.floats(shape)
    return Case(inputs, {"sigma": draw.of(0.7, 1.0, 2.0)}, wrt=["X", "Y"], targets=["Out"])


@case("label_smooth")
def _label_smooth(draw: Draw) -> Case:
    shape = draw.shape(2)
    inputs = {"X": _probabilities(draw, shape)}
    if draw.bool():
        inputs["PriorDist"] = _probabilities(draw, (1, shape[-1]))
    return Case(inputs, {"epsilon": draw.of(0.0, 0.3)}, wrt=["X"])


@case("layer_norm")
def _layer_norm(draw: Draw) -> Case:
    shape = (*draw.shape(1, 3), draw.int(2, 4))
    begin = draw.int(1, len(shape) - 1)
    width = int(np.prod(shape[begin:]))
    inputs = {"X": draw.apart(shape)}  # a row of equal values has no slope worth the name
    for slot in ("Scale", "Bias"):
        if draw.bool():
            inputs[slot] = draw.floats([width])
    attrs = {"begin_norm_axis": begin, "epsilon": 1e-3}
    return Case(inputs, attrs, targets=["Y"], step=1e-5, tolerance=1e-5)


@case("norm")
def _norm(draw: Draw) -> Case:
    shape = draw.shape()
    axis = draw.int(-len(shape), len(shape) - 1)
    return Case({"X": draw.floats(shape, 0.2, 2)}, {"axis": axis}, targets=["Out"])


@case("cos_sim")
def _cos_sim(draw: Draw) -> Case:
    x = draw.shape(2)
    y = (1, *x[1:]) if draw.bool() else x
    return Case({"X": draw.floats(x, 0.2, 2), "Y": draw.floats(y, 0.2, 2)}, targets=["Out"])


@case("dropout")
def _dropout(draw: Draw) -> Case:
    # Every run draws another mask: only all or nothing has a slope. Masks: test_ops_nn.py.
    how = draw.of("downgrade_in_infer", "upscale_in_train")
    attrs = {"dropout_prob": draw.of(0.0, 1.0), "dropout_implementation": how}
    return Case({"X": draw.floats(draw.shape())}, attrs, targets=["Out"])


def _lookup(draw: Draw, ids: tuple[int, ...]) -> Case:
    rows = draw.int(1, 5)
    attrs = {"is_sparse": draw.bool(), "padding_idx": draw.int(-1, rows - 1)}
    inputs = {"W": draw.floats([rows, draw.int(1, 3)]), "Ids": draw.rng.integers(0, rows, ids)}
    return Case(inputs, attrs)


@case("lookup_table")
def _lookup_last_is_one(draw: Draw) -> Case:
    return _lookup(draw, (*draw.shape(1, 2), 1))


@case("lookup_table_v2")
def _lookup_any_shape(draw: Draw) -> Case:
    return _lookup(draw, draw.shape(1, 3))


@case("bce_loss")
def _chances(draw: Draw) -> Case:
    shape = draw.shape()
    label = draw.rng.integers(0, 2, shape).astype("float64")
    return Case({"X": draw.floats(shape, 0.1, 0.9), "Label": label}, {}, wrt=["X"])
