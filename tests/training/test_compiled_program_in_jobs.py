"""Compiled programs on the ranks of a job, each of which is one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from tests.support.compiled_network import batch, network
from tests.support.thread_jobs import ranks_as_threads


def ranks(script: Callable[[Any], Any], count: int) -> list[Callable[[], Any]]:
    """Give each rank a network of its own, made before the threads begin: Fluid's default Program
    and the counters of names belong to the process."""
    return [partial(script, network()) for _ in range(count)]


def test_a_job_says_that_its_ranks_are_one_device(caplog):
    def script(built: Any) -> Any:
        main, startup, loss, guess = built
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        two = fluid.CompiledProgram(main).with_data_parallel(
            loss.name, places=[fluid.CPUPlace()] * 2
        )
        fed = {k: v for k, v in batch(0, 6).items() if k != "ids"}
        return [exe.run(two, feed=fed, fetch_list=[loss, guess]) for _ in range(2)]

    with ranks_as_threads() as run:
        for (cost, rows), _ in run(2, 0, ranks(script, 2)):
            assert (cost.shape, rows.shape) == ((1,), (6, 1))
    said = [r.getMessage() for r in caplog.records if "devices requested" in r.getMessage()]
    assert len(said) == 2  # one on each rank, at its first step


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize("servers", [0, 1])
def test_values_that_are_not_merged_are_lists_on_ranks_too(servers, numpy):
    def script(built: Any) -> Any:
        main, startup, loss, guess = built
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        program = fluid.CompiledProgram(main).with_data_parallel(
            loss.name, places=[fluid.CPUPlace()]
        )
        fed = {k: v for k, v in batch(0, 6).items() if k != "ids"}
        asked = {"return_merged": False, "return_numpy": numpy}
        (cost,), (rows,) = exe.run(program, feed=fed, fetch_list=[loss, guess], **asked)
        assert isinstance(rows, fluid.LoDTensor) != numpy
        return [np.array(cost), np.array(rows)]

    with fluid.scope_guard(fluid.Scope()):
        alone = script(network())
    with ranks_as_threads() as run:
        for values in run(2, servers, ranks(script, 2 + servers))[:2]:
            for value, wanted in zip(values, alone, strict=True):
                np.testing.assert_allclose(value, wanted, rtol=1e-5)


def test_ranks_have_no_values_of_several_devices_apart():
    def script(built: Any) -> Any:
        main, startup, loss, _ = built
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        places = [fluid.CPUPlace()] * 2
        program = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=places)
        fed = {k: v for k, v in batch(0, 6).items() if k != "ids"}
        with pytest.raises(fluid.errors.PlanError, match="values of each of 2 devices"):
            exe.run(program, feed=fed, fetch_list=[loss], return_merged=False)

    with ranks_as_threads() as run:
        run(2, 0, ranks(script, 2))
