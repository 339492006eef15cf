"""Gradient cases of rarer activations."""

from __future__ import annotations

from tests.support.ops import Case, Draw, case


@case("asinh", "atan", "cosh", "erf", "expm1", "mish", "sinh", "stanh", "tanh_shrink")
def _smooth(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -4, 4)})


@case("acos", "asin", "atanh", "log1p", "tan")
def _within_one(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -0.9, 0.9)})


@case("acosh", "log10", "log2")
def _from_one_on(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), 1.2, 4)})


@case("brelu")
def _brelu(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), avoid=[-1, 1])}, {"t_min": -1.0, "t_max": 1.0})


@case("soft_relu")
def _soft_relu(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), -3, 3)}, {"threshold": 40.0})


@case("hard_shrink", "thresholded_relu")
def _cut_off(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), avoid=[-0.7, 0.7])}, {"threshold": 0.7})


@case("softshrink")
def _softshrink(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), avoid=[-0.7, 0.7])}, {"lambda": 0.7})


@case("hard_swish")
def _hard_swish(draw: Draw) -> Case:
    attrs = {"threshold": 2.0, "scale": 2.0, "offset": 1.0}
    return Case({"X": draw.floats(draw.shape(), avoid=[-1, 1])}, attrs)


@case("selu")
def _selu(draw: Draw) -> Case:
    return Case({"X": draw.floats(draw.shape(), avoid=[0])}, {"scale": draw.of(1.0507, 2.0)})


@case("drawn_leaky_relu")
def _drawn_leaky_relu(draw: Draw) -> Case:
    x = draw.apart(draw.shape()) + 0.05
    attrs = {"lower": 0.1, "upper": 0.5, "is_test": draw.bool()}
    return Case({"X": x, "Chance": draw.rng.random(x.shape)}, attrs, wrt=["X"])


@case("prelu")
def _prelu(draw: Draw) -> Case:
    shape = draw.shape(2)
    mode = draw.of("all", "channel", "element")
    slopes = {"all": (1,), "channel": (1, shape[1]), "element": (1, *shape[1:])}[mode]
    inputs = {"X": draw.floats(shape, avoid=[0]), "Alpha": draw.floats(slopes)}
    return Case(inputs, {"mode": mode})


@case("maxout")
def _maxout(draw: Draw) -> Case:
    groups = draw.int(2, 3)
    shape = list(draw.shape(1, 4, 3))
    axis = draw.int(0, len(shape) - 1)
    shape[axis] *= groups
    return Case({"X": draw.apart(shape)}, {"groups": groups, "axis": axis - draw.of(0, len(shape))})
