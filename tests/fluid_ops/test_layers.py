"""Layers and their gradients give what they give in Fluid 1.8.5: values made by `make.py`."""

from __future__ import annotations

import gzip
import json

import pytest

import hpcdist as fluid
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
