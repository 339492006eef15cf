"""Gradient cases of losses of pairs, large vocabularies, and normalizations by group or history."""

from __future__ import annotations

import numpy as np

from tests.support.ops import Case, Draw, case


@case("bpr_loss")
def _bpr_loss(draw: Draw) -> Case:
    rows, classes = draw.int(1, 4), draw.int(2, 5)
    label = draw.rng.integers(0, classes, (rows, 1))
    return Case({"X": draw.floats((rows, classes)), "Label": label})


@case("rank_loss")
def _rank_loss(draw: Draw) -> Case:
    shape = (draw.int(1, 4), 1)
    inputs = {slot: draw.floats(shape) for slot in ("Label", "Left", "Right")}
    return Case(inputs, wrt=["Left", "Right"])


@case("margin_rank_loss")
def _margin_rank_loss(draw: Draw) -> Case:
    shape = (draw.int(1, 4), 1)
    inputs = {"X1": draw.apart(shape), "X2": draw.apart(shape) + 0.03}
    inputs["Label"] = np.sign(draw.floats(shape))
    return Case(inputs, {"margin": 0.11}, wrt=["X1", "X2"], targets=["Out"])


@case("center_loss")
def _center_loss(draw: Draw) -> Case:
    rows = draw.int(1, 4)
    inputs = {
        "X": draw.floats((rows, 3)),
        "Label": draw.rng.integers(0, 2, (rows, 1)),
        "Centers": draw.floats((2, 3)),
        "CenterUpdateRate": draw.floats((1,)),
    }
    attrs = {"cluster_num": 2, "need_update": draw.bool()}
    return Case(inputs, attrs, wrt=["X"], targets=["Loss"])


@case("teacher_student_sigmoid_loss")
def _teacher_student(draw: Draw) -> Case:
    # Fluid's gradient has the sign of a gain where the teacher speaks: no such labels here.
    shape = (draw.int(1, 5), 1)
    label = np.where(draw.rng.random(shape) < 0.5, -2.0, -1.0)
    return Case({"X": draw.floats(shape), "Label": label}, wrt=["X"])


@case("cvm")
def _cvm(draw: Draw) -> Case:
    rows = draw.int(1, 4)
    x = draw.floats((rows, 4), 0.2, 2)
    return Case({"X": x, "CVM": np.zeros((rows, 2))}, {"use_cvm": False}, wrt=["X"])


@case("kldiv_loss")
def _kldiv_loss(draw: Draw) -> Case:
    shape = draw.shape()
    inputs = {"X": draw.floats(shape), "Target": draw.floats(shape)}
    reduction = draw.of("none", "mean", "sum", "batchmean")
    return Case(inputs, {"reduction": reduction}, wrt=["X"])


@case("sigmoid_focal_loss")
def _sigmoid_focal_loss(draw: Draw) -> Case:
    rows, classes = draw.int(1, 4), draw.int(1, 3)
    inputs = {
        "X": draw.floats((rows, classes)),
        "Label": draw.rng.integers(-1, classes + 1, (rows, 1)).astype("int32"),
        "FgNum": np.array([3], "int32"),
    }
    return Case(inputs, {"gamma": draw.of(1.5, 2.0), "alpha": 0.25})


# -- large vocabularies ----------------------------------------------------------------------------
@case("nce")
def _nce(draw: Draw) -> Case:
    rows, classes = draw.int(1, 4), 6
    inputs = {
        "Input": draw.floats((rows, 3)),
        "Label": draw.rng.integers(0, classes, (rows, draw.int(1, 2))),
        "Weight": draw.floats((classes, 3)),
        "Bias": draw.floats((classes, 1)),
        "SampleWeight": draw.floats((rows, 1), 0.5, 1),
    }
    attrs = {
        "num_total_classes": classes,
        "sampler": draw.of(0, 1),
        "is_sparse": draw.bool(),
        "custom_neg_classes": [4, 1, 2],
    }
    if draw.bool():
        drawn = np.broadcast_to([4, 1, 2], (rows, 3))
        inputs["Classes"] = np.concatenate([inputs["Label"], drawn], 1)
        inputs |= {slot: inputs[slot][inputs["Classes"]] for slot in ("Weight", "Bias")}
    return Case(inputs, attrs, wrt=["Input", "Weight", "Bias"], targets=["Cost"])


@case("hierarchical_sigmoid")
def _hierarchical_sigmoid(draw: Draw) -> Case:
    rows, classes = draw.int(1, 4), draw.int(2, 7)
    inputs = {"X": draw.floats((rows, 3)), "Label": draw.rng.integers(0, classes, (rows, 1))}
    if draw.bool():
        table = draw.rng.integers(0, classes, (rows, 3))
        table[draw.rng.random(rows) < 0.5, 2] = -1
        code = np.where(table < 0, -1, draw.rng.integers(0, 2, table.shape))
        inputs |= {"PathTable": table, "PathCode": code}
        inputs |= {"W": draw.floats((classes, 3)), "Bias": draw.floats((classes, 1))}
        attrs = {"num_classes": classes, "is_sparse": draw.bool()}
    else:
        inputs |= {"W": draw.floats((classes - 1, 3)), "Bias": draw.floats((classes - 1, 1))}
        attrs = {"num_classes": classes, "is_sparse": False}
    if draw.bool():  # as many rows as a path is long
        long = inputs["PathTable"].shape[1] if "PathTable" in inputs else (classes - 1).bit_length()
        inputs |= {"W": draw.floats((rows, long, 3)), "Bias": draw.floats((rows, long, 1))}
    return Case(inputs, attrs, targets=["Out"])


@case("sample_logits")
def _sample_logits(draw: Draw) -> Case:
    rows = draw.int(1, 4)
    labels = draw.rng.integers(0, 6, (rows, 1))
    drawn = np.broadcast_to(np.array([1, 4, 5]), (rows, 3))
    inputs = {
        "Logits": draw.floats((rows, 6)),
        "Labels": labels,
        "CustomizedSamples": np.concatenate([labels, drawn], 1),
        "CustomizedProbabilities": draw.floats((rows, 4), 0.1, 0.9),
    }
    attrs = {"use_customized_samples": True, "num_samples": 3, "remove_accidental_hits": False}
    return Case(inputs, attrs, wrt=["Logits"], targets=["SampledLogits"])


# -- normalizations --------------------------------------------------------------------------------
@case("group_norm")
def _group_norm(draw: Draw) -> Case:
    layout = draw.of("NCHW", "NHWC")
    shape = (draw.int(1, 3), 6, 2, 2) if layout == "NCHW" else (draw.int(1, 3), 2, 2, 6)
    inputs = {"X": draw.floats(shape)}
    if draw.bool():
        inputs |= {"Scale": draw.floats((6,)), "Bias": draw.floats((6,))}
    attrs = {"groups": draw.of(1, 2, 3), "epsilon": 0.1, "data_layout": layout}
    return Case(inputs, attrs, targets=["Y"])


@case("instance_norm")
def _instance_norm(draw: Draw) -> Case:
    inputs = {"X": draw.floats((draw.int(1, 3), 2, 3, 2))}
    inputs |= {"Scale": draw.floats((2,)), "Bias": draw.floats((2,))}
    return Case(inputs, {"epsilon": 0.1}, targets=["Y"])


@case("affine_channel")
def _affine_channel(draw: Draw) -> Case:
    inputs = {"X": draw.floats((draw.int(1, 3), 3, 2, 3))}
    inputs |= {"Scale": draw.floats((3,)), "Bias": draw.floats((3,))}
    return Case(inputs, {"data_layout": draw.of("NCHW", "NHWC")})


@case("spectral_norm")
def _spectral_norm(draw: Draw) -> Case:
    dim = draw.int(0, 2)
    shape = (2, 3, 4)
    inputs = {
        "Weight": draw.floats(shape, 0.2, 2),
        "U": draw.floats((shape[dim],), 0.2, 1),
        "V": draw.floats((24 // shape[dim],), 0.2, 1),
    }
    return Case(inputs, {"dim": dim, "power_iters": 0}, wrt=["Weight"])


@case("data_norm")
def _data_norm(draw: Draw) -> Case:
    rows = draw.int(1, 4)
    slot_dim = draw.of(-1, 2)
    inputs = {
        "scale_w": draw.floats((4,)),
        "bias": draw.floats((4,)),
        "X": draw.floats((rows, 4)),
        "BatchSize": draw.floats((4,), 1, 2),
        "BatchSum": draw.floats((4,)),
        "BatchSquareSum": draw.floats((4,), 1, 2),
    }
    attrs = {"enable_scale_and_shift": True, "slot_dim": slot_dim}
    return Case(inputs, attrs, wrt=["scale_w", "bias", "X"], targets=["Y"])
