"""Names that Python and NumPy have dropped are there for old scripts, and gone again."""

from __future__ import annotations

import collections
import fractions
import inspect
import time

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
    "np.reshape([1, 2], newshape=(2, 1)).tolist()": [[1], [2]],
    "np.reshape([[1, 2]], -1).tolist()": [1, 2],
    "np.fromstring(b'ab', dtype=np.uint8).tolist()": [97, 98],
    "np.fromstring('abc', 'uint8', 2).tolist()": [97, 98],
    "np.fromstring(b'ab', np.uint8).flags.writeable": True,
    "np.fromstring('1 2', sep=' ').tolist()": [1.0, 2.0],
    "isinstance([], collections.Iterable) and isinstance({}, collections.Mapping)": True,
    "isinstance((), collections.Sequence)": True,
    "fractions.gcd(12, 18)": 6,
    "inspect.getargspec(lambda a, b=2, *c: None).args": ["a", "b"],
    "inspect.getargspec(lambda a, b=2, *c: None).defaults": (2,),
    "0 <= time.clock() <= time.process_time()": True,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_dropped_names_are_there_while_scripts_of_fluid_run(expression):
    modules = [np, collections, fractions, inspect, time]
    before = [dict(vars(module)) for module in modules]
    aspaddle.install()
    try:
        assert eval(expression) == EXPRESSIONS[expression]
    finally:
        aspaddle.uninstall()
    assert [dict(vars(module)) for module in modules] == before
