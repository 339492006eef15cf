"""Names that NumPy has dropped are there for scripts of Fluid's time, and gone again."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.compat import aspaddle

EXPRESSIONS = {
    "np.zeros(2, np.int).dtype.kind": "i",
    "np.zeros(2, dtype=np.float).dtype": np.float64,
    "np.array([1], np.bool).dtype": np.bool_,
    "np.array(['a'], dtype=np.object).dtype.kind": "O",
    "int(np.product([2, 3]))": 6,
    "bool(np.alltrue([1, 0]))": False,
    "bool(np.sometrue([1, 0]))": True,
    "np.in1d([1, 5], [5]).tolist()": [False, True],
    "np.asscalar(np.array([3.0]))": 3.0,
    "float(np.Inf - np.PINF) != 0": True,
    "float(np.trapz([0.0, 2.0]))": 1.0,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_dropped_names_are_there_while_scripts_of_fluid_run(expression):
    before = set(vars(np))
    aspaddle.install()
    try:
        assert eval(expression) == EXPRESSIONS[expression]
    finally:
        aspaddle.uninstall()
    assert set(vars(np)) == before
