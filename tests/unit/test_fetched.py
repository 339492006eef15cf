"""What is fetched converts to numbers as scripts of any age expect."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base.fetched import as_fetched
from hpcdist.compat import one_element


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


@pytest.fixture
def converting():
    one_element.install()
    yield
    one_element.uninstall()


@pytest.mark.usefixtures("converting")
def test_a_copy_of_what_was_fetched_converts_and_nothing_else_does():
    loss = as_fetched(np.full(1, 1.5, np.float32))
    tensor = fluid.create_lod_tensor(np.full((1, 1), 2.5, np.float32), [[1]], fluid.CPUPlace())
    scope = fluid.Scope()
    scope.var("w").get_tensor().set(np.full(1, 3.5), fluid.CPUPlace())
    sources = [loss, [loss], tensor, scope.find_var("w").get_tensor()]
    for source, expected in zip(sources, [1.5, 1.5, 2.5, 3.5]):
        for copy in (np.array(source), np.asarray(source), np.array(source, dtype="float64")):
            assert float(copy) == expected
            assert "%.1f" % copy == str(expected)  # noqa: UP031
            assert isinstance(copy, np.ndarray) and copy.size == 1
    assert np.array(loss) is not loss and np.array(loss, copy=True).base is not loss
    if not one_element.converts():
        for other in ([1.5], np.ones(1), [[loss, loss]]):
            with pytest.raises(TypeError):
                float(np.array(other))
    assert type(np.array([1.5, 2.5])) is np.ndarray and type(np.array(1.5)) is np.ndarray


def test_numpys_functions_are_theirs_again():
    before = np.array
    one_element.install()
    assert np.array == before and hash(np.array) == hash(before)
    one_element.uninstall()
    assert np.array is before


@pytest.mark.usefixtures("converting")
def test_compiled_functions_find_numpys_own():
    numba = pytest.importorskip("numba")

    @numba.njit
    def doubled(x):
        return np.array([2 * x, x])

    assert doubled(3).tolist() == [6, 3]
