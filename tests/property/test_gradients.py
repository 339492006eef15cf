"""Every gradient rule against finite differences, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdist.graph import define, registry
from hpcdist.ops.common import grad_by, like_inputs, same
from hpcdist.ops.optimize.mixed_precision import ROUNDINGS
from tests.support.ops import Case, Draw, check_gradient, every_case

CASES = every_case()


def _differentiable() -> list[str]:
    """Operators with gradients; what only runs in loops and branches: tests/training/test_loops.py.

    Modules of torch's: tests/torch/test_torch_module.py. That of rounding is not its slope:
    tests/training/test_mixed_precision.py.
    """
    elsewhere = {"torch_module", *ROUNDINGS}
    known = [(t, registry.lookup(t)) for t in registry.defined() if t not in elsewhere]
    return [type for type, op in known if op.grad is not None and (op.kernel or op.bind)]


def test_every_differentiable_operator_has_a_case() -> None:
    forward = {type for type in _differentiable() if not type.endswith("_grad")}
    assert sorted(forward - CASES.keys()) == []  # the others: tests/unit/test_second_derivatives.py


@pytest.mark.parametrize("type", sorted(CASES))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_gradient_is_the_slope(type: str, data: st.DataObject) -> None:
    check_gradient(type, CASES[type](Draw(data.draw)))


def test_checker_shouts_at_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "operators", dict(registry.operators))
    slots = "X, Out@GRAD -> X@GRAD"
    define(
        "cube",
        "X -> Out",
        infer=same,
        kernel=lambda xp, x, out: xp.power(x, 3, out=out),
        grad=grad_by("cube_grad", slots),
    )
    define(
        "cube_grad",
        slots,
        infer=like_inputs(slots),
        kernel=lambda xp, x, dout, dx: xp.multiply(2 * x * x, dout, out=dx),  # 3, not 2
    )
    with pytest.raises(AssertionError, match="cube: along x_0 the value changes by"):
        check_gradient("cube", Case({"X": np.array([1.0, 2.0])}))
