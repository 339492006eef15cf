"""Operators that read only an operand's shape give the same bits whatever is in it."""

import numpy as np
import pytest

import hpcdist  # noqa: F401, it fills the table of operators
from hpcdist.graph.registry import arguments, defined, lookup, own_attrs

IN, OUT = (4, 6), {"reduce_sum": (4, 1), "reduce_mean": (4, 1), "mean": (1,), "slice": (2, 6)}
OUT |= {"gather": (3, 6), "expand": (8, 12)}
ATTRS = {
    "reduce_sum": {"dim": [1]},
    "reduce_mean": {"dim": [1]},
    "slice": {"axes": [0], "starts": [1], "ends": [3]},
    "expand": {"expand_times": [2, 2]},
}
TYPES = [type for type in defined() if lookup(type).shape_only]


def result(type, filling):
    """Return the gradients of an operator whose shape-only operands hold ``filling``."""
    definition = lookup(type)
    rng = np.random.default_rng(0)
    ins, outs = {}, {}
    for slot in definition.inputs:
        shape = OUT.get(type.removesuffix("_grad"), IN) if slot.name == "Out@GRAD" else IN
        array = rng.uniform(-1, 1, shape).astype(np.float32)
        if slot.name == "Index":
            array = np.array([0, 2, 2])
        if slot.name in definition.shape_only:
            array[...] = filling
        ins[slot.name] = [array]
    for slot in definition.outputs:
        outs[slot.name] = [np.full(IN, 77, np.float32)]
    order = [*arguments(definition.inputs, ins), *arguments(definition.outputs, outs)]
    definition.bind(np, *order, **own_attrs(definition, ATTRS.get(type[:-5], {})))()
    return [array.tobytes() for (array,) in outs.values()]


@pytest.mark.parametrize("type", TYPES)
def test_values_do_not_matter(type):
    assert result(type, np.nan) == result(type, 0.5)


def test_those_that_networks_are_made_of_are_among_them():
    assert {"elementwise_add_grad", "mean_grad", "concat_grad"} <= set(TYPES)
