"""Formulas of single elements, traced: the bits of their evaluation, and of no input."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.ops.formulas import sigmoid, softplus, traced

FORMULAS = {
    "one call": lambda xp, x, y: xp.tanh(x),
    "values read twice": lambda xp, x, y: (x + y) * (x - y) / (xp.square(x + y) + 1),
    "a result that dies late": lambda xp, x, y: (x * y) + xp.where(x > y, x * 2, y - 1) - x * y,
    "a choice between numbers": lambda xp, x, y: x * xp.where(y > 0, 1, 0.3),
    "masks": lambda xp, x, y: x * ((x > -1) & ~(x > y)),
    "limits": lambda xp, x, y: xp.clip(x * y, -0.5, None) + xp.clip(y, None, 0.2),
    "formulas of formulas": lambda xp, x, y: softplus(xp, x) * sigmoid(xp, -y) - softplus(xp, y),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS)
def test_a_traced_formula_has_the_bits_of_its_evaluation(formula, dtype):
    rng = np.random.default_rng(3)
    calls = []
    for rows in (3, 700, 1500):  # memory of its own; scratch memory, which moves
        x, y = (rng.normal(0, 2, (rows, 7)).astype(dtype) for _ in range(2))
        kept, out = (x.copy(), y.copy()), np.empty_like(x)
        calls.append((traced(formula, 2)(np, x, y, out), out, formula(np, x, y).astype(dtype)))
        calls[-1][0]()
        assert np.array_equal(kept, (x, y))
    for call, out, expected in calls * 2:
        out.fill(np.nan)
        call()
        assert out.tobytes() == expected.tobytes()
