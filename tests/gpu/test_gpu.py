"""On a real GPU: operators, trainings and jobs compute what the CPU does. Skipped without one."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from tests.device_cases import DeviceTests
from tests.golden.loader import golden
from tests.golden.loss_runs import STEPS, build, fed
from tests.gpu.gpus import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "never")


class TestGpu(DeviceTests):
    pass


def test_golden_losses():
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
