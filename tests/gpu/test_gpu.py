"""On a real GPU: operators, trainings and jobs compute what the CPU does. Skipped without one."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base.device import AHEAD
from tests.cases.device import DeviceTests
from tests.golden.loader import golden
from tests.golden.loss_runs import STEPS, build, fed
from tests.gpu.gpus import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "never")


class TestGpu(DeviceTests):
    pass


def test_large_feeds_one_after_the_other_are_each_read_by_their_own_step():
    """They go up beside the kernels of the step before: each step adds to twice the total."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.data("x", [None, 1024], "float32")
        total = fluid.layers.create_global_var([1024], 0, "float32", True, name="total")
        summed = fluid.layers.elementwise_add(
            fluid.layers.scale(total, 2.0), fluid.layers.reduce_mean(x, 0)
        )
        fluid.layers.assign(fluid.layers.elementwise_sub(summed, total), total)
    exe, rows = fluid.Executor(fluid.CUDAPlace(0)), np.empty((8192, 1024), np.float32)
    assert rows.nbytes > 4 * AHEAD
    exe.run(startup, scope=scope)
    for number in range(40):
        rows[:] = number
        exe.run(main, {"x": rows}, scope=scope)
    (found,) = exe.run(main, {"x": rows}, ["total"], scope=scope)
    assert (found == sum(range(40)) + 39).all()


def test_golden_losses(monkeypatch):
    monkeypatch.setenv("HPCDIST_SPARSE_ROWS", "fluid")  # Fluid's Momentum misses rows
    for name, run in sorted(golden("losses.json")["runs"].items()):
        setting = run["setting"]
        main, startup, loss = build(setting)
        exe, scope = fluid.Executor(fluid.CUDAPlace(0)), fluid.Scope()
        exe.run(startup, scope=scope)
        losses = [
            float(exe.run(main, fed(setting, step), [loss], scope=scope)[0][0])
            for step in range(STEPS)
        ]
        np.testing.assert_allclose(losses, run["local"]["loss"], rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("name", ["momentum", "adam", "softmax", "sparse"])
def test_trainers_on_the_gpu_and_servers_on_the_cpu(name, shape):
    from tests.mpi.plain_models import MODELS, check_job

    check_job(MODELS[name], *shape, place=fluid.CUDAPlace(0))


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(fluid.HpcdistError, match=r"CUDAPlace\(99\): this process sees \d+ GPUs"):
        fluid.Executor(fluid.CUDAPlace(99))
