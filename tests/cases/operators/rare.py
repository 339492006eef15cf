"""Cases of operators that only stored models and Fluid's own tests use."""

from __future__ import annotations

import numpy as np

from tests.support.ops import Case, Draw, case


@case("reshape")
def _reshape(draw: Draw) -> Case:
    return Case({"X": draw.floats((draw.int(1, 3), 2, 6))}, {"shape": draw.of([-1, 4], [0, 3, 4])})


@case("flatten")
def _flatten(draw: Draw) -> Case:
    return Case({"X": draw.floats((draw.int(1, 3), 2, 3))}, {"axis": draw.int(0, 3)})


@case("squeeze")
def _squeeze(draw: Draw) -> Case:
    return Case({"X": draw.floats((draw.int(2, 3), 1, 3, 1))}, {"axes": draw.of([], [1], [-1, 1])})


@case("unsqueeze")
def _unsqueeze(draw: Draw) -> Case:
    return Case({"X": draw.floats((draw.int(1, 3), 2))}, {"axes": draw.of([0], [1, 2], [-1])})


@case("transpose")
def _transpose(draw: Draw) -> Case:
    return Case({"X": draw.floats((2, draw.int(1, 3), 3))}, {"axis": draw.of([0, 2, 1], [2, 0, 1])})


@case("minus")
def _minus(draw: Draw) -> Case:
    shape = draw.shape()
    return Case({"X": draw.floats(shape), "Y": draw.floats(shape)})


@case("hinge_loss")
def _hinge_loss(draw: Draw) -> Case:
    rows = draw.int(1, 4)
    labels = draw.rng.integers(0, 2, (rows, 1)).astype("float64")
    logits = draw.floats((rows, 1), avoid=[-1, 1])
    return Case({"Logits": logits, "Labels": labels}, wrt=["Logits"])


@case("modified_huber_loss")
def _modified_huber_loss(draw: Draw) -> Case:
    rows = draw.int(1, 4)
    labels = draw.rng.integers(0, 2, (rows, 1)).astype("float64")
    x = draw.floats((rows, 1), avoid=[-1, 1])
    return Case({"X": x, "Y": labels}, wrt=["X"], targets=["Out"])


@case("squared_l2_distance")
def _squared_l2_distance(draw: Draw) -> Case:
    rows, rest = draw.int(1, 4), draw.shape(1, 2)
    y = draw.floats((draw.of(1, rows), *rest))
    return Case({"X": draw.floats((rows, *rest)), "Y": y}, targets=["Out"])


@case("l1_norm", "squared_l2_norm")
def _l1_norm(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), avoid=[0])})


@case("nll_loss")
def _nll_loss(draw: Draw) -> Case:
    rows, pixels = draw.int(1, 3), draw.of((), (2, 3))
    label = draw.rng.integers(0, 3, (rows, *pixels))
    inputs = {"X": draw.floats((rows, 3, *pixels), -3, -0.1), "Label": label}
    if draw.bool():
        inputs["Weight"] = draw.floats((3,), 0.2, 2)
    label.flat[1:2] = -100  # not the only one
    attrs = {"reduction": draw.of("mean", "sum", "none")}
    return Case(inputs, attrs, wrt=["X"], targets=["Out"])


@case("p_norm")
def _p_norm(draw: Draw) -> Case:
    shape = draw.shape()
    order = draw.of(1.0, 2.0, 3.0, 0.0, float("inf"), float("-inf"))
    x = np.where(draw.rng.random(shape) < 0.5, -1, 1) * (np.abs(draw.apart(shape)) + 0.3)
    x = x + draw.floats(shape, 0, 0.01)
    attrs = {"porder": order, "axis": draw.int(-len(shape), len(shape) - 1)}
    return Case({"X": x}, {**attrs, "keepdim": draw.bool()})


@case("frobenius_norm")
def _frobenius_norm(draw: Draw) -> Case:
    shape = draw.shape(2, 4)
    attrs = {"dim": draw.of([0], [0, 1], [-1]), "keep_dim": draw.bool(), "reduce_all": draw.bool()}
    return Case({"X": draw.floats(shape, 0.2, 2)}, attrs)


@case("unbind")
def _unbind(draw: Draw) -> Case:
    shape = draw.shape(2, 3)
    axis = draw.int(-len(shape), len(shape) - 1)
    return Case({"X": draw.floats(shape)}, {"axis": axis}, outputs={"Out": shape[axis]})


@case("partial_concat", "partial_sum")
def _partial(draw: Draw) -> Case:
    rows, count = draw.int(1, 3), draw.int(1, 3)
    attrs = draw.of(
        {"start_index": 0, "length": -1},
        {"start_index": 1, "length": 2},
        {"start_index": -2, "length": -1},
    )
    return Case({"X": [draw.floats((rows, 4)) for _ in range(count)]}, attrs)


@case("unpool")
def _unpool(draw: Draw) -> Case:
    images = draw.int(1, 2)
    places = [draw.rng.permutation(16)[:4].reshape(2, 2) for _ in range(images * 2)]
    indices = np.stack(places).reshape(images, 2, 2, 2).astype("int32")
    attrs = {"ksize": [2, 2], "strides": [2, 2]}
    return Case({"X": draw.floats((images, 2, 2, 2)), "Indices": indices}, attrs)


@case("conv_shift")
def _conv_shift(draw: Draw) -> Case:
    rows = draw.int(1, 3)
    return Case({"X": draw.floats((rows, 5)), "Y": draw.floats((rows, draw.of(1, 3, 5)))})


@case("fused_elemwise_activation")
def _fused(draw: Draw) -> Case:
    binary, unary = draw.of("elementwise_add", "elementwise_mul"), draw.of("scale", "tanh", "relu")
    functors = draw.of([binary, unary], [unary, binary])
    rows = draw.int(1, 3)
    y = draw.floats(draw.of((rows, 2, 3), (1, 2, 3)), 0.1, 2)
    attrs = {"functor_list": functors, "scale": 0.3}
    return Case({"X": draw.floats((rows, 2, 3), 0.1, 2), "Y": y}, attrs, targets=["Out"])
