"""Trainers that save memory train as those that do not, with servers that know nothing of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.cluster import PSERVER
from tests.support.job import begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

WIDTH, DEPTH, ROWS, STEPS = 96, 5, 64, 4
WORDS = 40
SHAPES = [(1, 1), (2, 1), (1, 2), (2, 2)]  # trainers, servers


def build(clip: Any, rate: Any) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids, y = layers.data("ids", [1], dtype="int64"), layers.data("y", [1])
        hidden = layers.embedding(ids, [WORDS, WIDTH], is_sparse=True)
        for _ in range(DEPTH):
            hidden = layers.fc(hidden, WIDTH, act="relu")
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        if clip:
            fluid.clip.set_gradient_clip(fluid.clip.GradientClipByValue(clip))
        fluid.optimizer.Momentum(rate() if callable(rate) else rate, 0.9).minimize(loss)
    return main, startup, loss


def batch(step: int, trainer: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([step, trainer])
    ids = rng.integers(0, WORDS, (ROWS, 1))
    return {"ids": ids, "y": rng.uniform(-1, 1, (ROWS, 1)).astype(np.float32)}


def script(trainers: int, servers: int, saves: bool, sync: bool, clip: Any, rate: Any):
    """Return a Fluid script; a trainer returns losses, a gradient, and its pool's size."""

    def run(role: Any) -> tuple[list[bytes], int]:
        main, startup, loss = build(clip, rate)
        if saves and role.kind != PSERVER:
            fluid.memory_optimize(main, skip_grads=True)
        exe, program = begin(role, trainers, servers, main, startup, sync_mode=sync)
        told = []
        for step in range(STEPS):
            fetched = exe.run(program, batch(step, role.index), [loss, "fc_1.tmp_1@GRAD"])
            told += [value.tobytes() for value in fetched]
        pool = exe.forms()[-1].compiled.pool_bytes
        exe.close()
        return told, pool

    return run


@pytest.mark.parametrize("rate", [0.05, lambda: layers.exponential_decay(0.05, 2, 0.5)])
@pytest.mark.parametrize("clip", [None, 0.001])
@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
def test_synchronous_trainers_make_the_same_bits_with_less(trainers, servers, clip, rate):
    plain, saving = (
        values(run_job(trainers, servers, script(trainers, servers, saves, True, clip, rate)))
        for saves in (False, True)
    )
    for (told, pool), (again, smaller) in zip(plain, saving, strict=True):
        assert again == told
        assert smaller <= pool - (DEPTH - 2) * 4 * ROWS * WIDTH


def test_an_asynchronous_trainer_makes_the_same_bits_with_less():
    ((told, pool),), ((again, smaller),) = (
        values(run_job(1, 1, script(1, 1, saves, False, None, 0.05))) for saves in (False, True)
    )
    assert again == told
    assert smaller < pool
