"""Twenty steps in one process: losses and parameters as Fluid 1.8.5 has them."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from tests.golden.loader import golden
from tests.golden.loss_runs import STEPS, build, fed, tolerance

RUNS = golden("losses.json")["runs"]


@pytest.mark.parametrize("name", sorted(RUNS))
def test_losses_and_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCDIST_SPARSE_ROWS", "fluid")  # Fluid's Momentum misses rows
    setting, want = RUNS[name]["setting"], RUNS[name]["local"]
    main, startup, loss = build(setting)
    exe, scope = Executor(), Scope()
    exe.run(startup, scope=scope)
    losses = [
        float(exe.run(main, fed(setting, step), [loss], scope=scope)[0][0]) for step in range(STEPS)
    ]
    near = tolerance(setting)
    np.testing.assert_allclose(losses, want["loss"], rtol=0, atol=near)
    for parameter, facts in want["params"].items():
        value = np.array(scope.find_var(parameter).get_tensor())
        assert list(value.shape) == facts["shape"]
        first = value.reshape(-1)[: len(facts["first"])]
        np.testing.assert_allclose(first, facts["first"], rtol=0, atol=near)
        bound = near * max(1, value.size**0.5)
        np.testing.assert_allclose(value.sum(dtype=np.float64), facts["sum"], rtol=0, atol=bound)
