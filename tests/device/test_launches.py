"""How much a training step asks of a GPU: kernels, copies, and waits of the host for it.

Counted over the stand-in. A limit is what a step takes today: make it smaller when that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from tests.support.counted_models import mlp, resnet50, wide_and_deep, word2vec
from tests.support.device import install
from tests.support.streams import MACHINE, Counts


@dataclass(frozen=True)
class Limit:
    launches: int
    uploads: int  # one for each value that is fed


LIMITS = {
    mlp: Limit(34, 2),
    resnet50: Limit(1874, 2),
    wide_and_deep: Limit(70, 4),
    word2vec: Limit(76, 5),
}


@pytest.mark.parametrize("build", LIMITS, ids=lambda build: build.__name__)
def test_a_step_asks_no_more_of_a_gpu(build, monkeypatch):
    install(monkeypatch)
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss, batch = build()
    exe = fluid.Executor(fluid.CUDAPlace(0))
    exe.run(startup, scope=scope)
    rng = np.random.default_rng(0)

    def step(fetched: list[Any]) -> Counts:
        MACHINE.current().synchronize()  # the step before has ended
        MACHINE.counts.clear()
        exe.run(main, batch(rng), fetched, scope=scope)
        return replace(MACHINE.counts)

    step([])
    quiet = step([])
    assert quiet.waits == quiet.downloads == 0
    assert quiet.hidden == 0
    assert quiet.launches <= LIMITS[build].launches
    assert quiet.uploads == LIMITS[build].uploads
    step([loss])
    told = step([loss])
    assert told.downloads <= 2  # the loss, and whether all ids were inside
    assert told.waits <= 2
