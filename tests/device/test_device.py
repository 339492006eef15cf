"""CUDAPlace over a stand-in for cupy: kernels keep to what cupy offers, and mix no arrays."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import GraphError
from tests.cases.device import DeviceTests
from tests.support.device import MODULE, install


@pytest.fixture(scope="module", autouse=True)
def device():
    patch = pytest.MonkeyPatch()
    install(patch)
    yield
    patch.undo()


class TestStandIn(DeviceTests):
    pass


def test_the_stand_in_refuses_what_cupy_refuses():
    array = MODULE.zeros(3)
    with pytest.raises(TypeError, match="Unsupported type"):
        MODULE.add(array, np.zeros(3))
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(array)
    with pytest.raises(TypeError, match="takes no"):
        MODULE.take(array, 1, mode="clip")
    with pytest.raises(TypeError, match="Wrong arguments"):
        MODULE.add(array, 1, where=True)
    with pytest.raises(AttributeError, match="no attribute 'select'"):
        _ = MODULE.select


def test_a_loop_is_refused_on_a_gpu():
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        three = layers.fill_constant([1], "int64", 3)
        (count,) = layers.while_loop(
            lambda i: i < three, lambda i: [i + 1], [layers.fill_constant([1], "int64", 0)]
        )
    with pytest.raises(GraphError, match=r"run on CPUPlace\(\) only"):
        fluid.Executor(fluid.CUDAPlace(0)).run(main, fetch_list=[count])
