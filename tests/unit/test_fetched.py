"""What is fetched converts to numbers as scripts of any age expect."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.fetched import as_fetched


def test_a_loss_of_one_element_converts_and_prints():
    main = fluid.Program()
    with fluid.program_guard(main):
        x = fluid.layers.data("x", [2])
        loss = fluid.layers.mean(x)
    exe = fluid.Executor(fluid.CPUPlace())
    fed = {"x": np.array([[1, 2]], np.float32)}
    (value,) = exe.run(main, feed=fed, fetch_list=[loss])
    assert isinstance(value, np.ndarray) and value.shape == (1,) and value.dtype == np.float32
    assert float(value) == 1.5 and int(value) == 1 and "%.2f" % value == "1.50"  # noqa: UP031
    assert float(value / 3) == 0.5 and float(sum([value, value])) == 3.0
    assert type(value[0]) is np.float32 and complex(value) == 1.5
    again = pickle.loads(pickle.dumps(value))
    assert float(again) == 1.5


def test_more_elements_are_plain_arrays_and_do_not_convert():
    assert type(as_fetched(np.zeros(2))) is np.ndarray
    assert type(as_fetched(np.zeros(()))) is np.ndarray
    with pytest.raises((TypeError, ValueError)):
        float(as_fetched(np.zeros(1)).repeat(2))
