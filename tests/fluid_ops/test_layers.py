"""Layers and their gradients give what they give in Fluid 1.8.5: values made by `make.py`."""

from __future__ import annotations

import gzip
import itertools
import json

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.graph.registry import defined, lookup
from tests.fluid_ops import replay


@pytest.mark.parametrize("family", replay.families())
def test_family(family: str) -> None:
    if replay.needs_torch(family):
        pytest.importorskip("torch")
    with gzip.open(replay.path(family), "rt") as file:
        kept = [json.loads(line) for line in file]
    drawn = replay.cases(family)
    assert [text for text, _ in drawn] == [text for text, _ in kept], "run tests/fluid_ops/make.py"
    wrong = []
    for (expression, inputs), (_, wanted) in zip(drawn, kept):
        try:
            found = replay.runner(family)(fluid, expression, inputs)
        except Exception as error:
            wrong.append(f"{expression}: {type(error).__name__}: {error}")
            continue
        for name in wanted:  # there may be gradients that Fluid has not
            if name not in found:
                wrong.append(f"{expression}: no {name}")
                continue
            difference = replay.differs(found[name], wanted[name])
            if difference:
                wrong.append(f"{expression}: {name}: {difference}")
    assert not wrong, f"{len(wrong)} of {len(drawn)} differ:\n" + "\n".join(wrong)


def test_every_attribute_that_may_be_a_value_is_tried_in_every_slot() -> None:
    # Fluid fails for the first (see tests/unit/test_extents.py), and no operators of the others.
    messages = {("graph_send_recv", "Out_size"), ("graph_send_recv_grad", "Out_size")}
    tried = {("crop_tensor", "Offsets"), *messages}
    for expression, inputs in itertools.chain(*map(replay.cases, replay.families())):
        if not any(spec.startswith(("n ", "m ", "e ")) for spec in inputs.values()):
            continue
        main = replay.built(fluid, expression, inputs, np.random.RandomState(7))[0]
        for op in main.global_block().ops:
            tried |= {(op.type, slot) for slot in lookup(op.type).giving if op.input(slot)}
    declared = {(type, slot) for type in defined() for slot in lookup(type).giving}
    assert not {(type, slot) for type, slot in declared - tried if not type.endswith("_grad")}
    assert not {type for type, _ in declared} - {type for type, _ in tried}
