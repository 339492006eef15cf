"""A convolutional net over parameter servers learns what one process learns from all the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers, nets
from tests.support.job import begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

ROWS, STEPS = 8, 4


def build() -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        image, label = layers.data("image", [3, 12, 12]), layers.data("label", [1], dtype="int64")
        x = nets.simple_img_conv_pool(image, 6, 3, 2, 2, conv_padding=1, act="relu")
        x = layers.conv2d(x, 12, 3, stride=2, groups=3, act="relu")
        x = layers.conv2d(x, 12, 3, padding="SAME", groups=12, use_cudnn=False)
        x = layers.pool2d(x, pool_type="avg", global_pooling=True)
        scores = layers.fc(x, 5)
        loss = layers.mean(layers.softmax_with_cross_entropy(scores, label))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return main, startup, loss


def batch(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    image = rng.uniform(-1, 1, (ROWS, 3, 12, 12)).astype(np.float32)
    return {"image": image, "label": rng.integers(0, 5, (ROWS, 1))}


def alone() -> list[float]:
    main, startup, loss = build()
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(startup, scope=scope)
    return [float(exe.run(main, batch(s), [loss], scope=scope)[0][0]) for s in range(STEPS)]


def script(trainers: int, servers: int):
    """Return a Fluid script; a trainer returns its losses."""

    def run(role: Any) -> list[float]:
        main, startup, loss = build()
        exe, program = begin(role, trainers, servers, main, startup)
        share = slice(ROWS * role.index // trainers, ROWS * (role.index + 1) // trainers)
        losses = []
        for step in range(STEPS):
            feed = {name: value[share] for name, value in batch(step).items()}
            losses.append(float(exe.run(program, feed, [loss])[0][0]))
        exe.close()
        return losses

    return run


@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 1), (2, 2)])
def test_a_convolutional_net_learns_alike_alone_and_over_servers(trainers, servers):
    told = values(run_job(trainers, servers, script(trainers, servers)))
    np.testing.assert_allclose(np.mean(told, 0), alone(), rtol=1e-5)
