"""Arrays of a loop that are fetched while a Program trains: lists, alone, on devices, on ranks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.support.thread_jobs import ranks_as_threads

X = np.arange(8, dtype=np.float32).reshape(4, 2)


Built = tuple[fluid.Program, fluid.Program, Any, Any]


def _build() -> Built:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 2])
        hidden = layers.fc(x, 3, param_attr=fluid.initializer.Constant(0.5))
        loss = layers.mean(hidden)
        fluid.optimizer.SGD(0.1).minimize(loss)
        place = layers.zeros([1], "int64")
        array = layers.array_write(loss, place)
        layers.array_write(hidden, layers.increment(place), array)
    return main, startup, loss, array


def _train(return_numpy: bool = True, built: Built | None = None) -> list[list[Any]]:
    main, startup, loss, array = built or _build()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    return [
        exe.run(main, feed={"x": X}, fetch_list=[loss, array], return_numpy=return_numpy)
        for _ in range(2)
    ]


def _same(found: list[list[Any]], wanted: list[list[Any]]) -> None:
    for (loss, array), (wanted_loss, wanted_array) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(loss, wanted_loss, 1e-6)
        assert len(array) == len(wanted_array) == 2
        for value, wanted_value in zip(array, wanted_array):
            np.testing.assert_allclose(value, wanted_value, 1e-6)


def test_an_array_of_a_step_that_trains_is_a_list() -> None:
    (loss, array), _ = _train()
    assert type(array) is list and all(isinstance(value, np.ndarray) for value in array)
    assert array[0] == loss and array[1].shape == (4, 3)
    np.testing.assert_allclose(array[1][:, 0], X.sum(1) / 2)
    (_, tensors), _ = _train(return_numpy=False)
    assert [type(tensor) for tensor in tensors] == [fluid.LoDTensor] * 2
    np.testing.assert_array_equal(np.array(tensors[1]), array[1])


def test_a_nan_in_an_array_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCDIST_ON_NAN", "end")
    main, startup, _, array = _build()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    with pytest.raises(fluid.HpcdistError, match=f"fetched '{array.name}' holds NaN"):
        exe.run(main, feed={"x": X * np.nan}, fetch_list=[array])


def test_arrays_of_devices_are_joined_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "2")
    main, startup, loss, array = _build()
    compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    (joined,) = exe.run(compiled, feed={"x": X}, fetch_list=[array])
    assert [value.shape for value in joined] == [(2,), (4, 3)]
    np.testing.assert_allclose(joined[1][:, 0], X.sum(1) / 2)
    (apart,) = exe.run(compiled, feed={"x": X}, fetch_list=[array], return_merged=False)
    assert [value.shape for values in apart for value in values] == [(1,), (2, 3)] * 2


@pytest.mark.parametrize("servers", [0, 2])
def test_arrays_on_ranks_are_those_of_one_process(servers: int) -> None:
    wanted = _train()
    # Built before there are threads: `program_guard` is the process's.
    scripts = [functools.partial(_train, built=_build()) for _ in range(2 + servers)]
    with ranks_as_threads() as run:
        for found in run(2, servers, scripts):
            _same(found, wanted)
