"""Losses over large vocabularies, gradients sparse, in jobs: equal to one process or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import CommError
from tests.thread_jobs import ranks_as_threads

CLASSES = 20


def nce(hidden: Any, label: Any) -> Any:
    how = {"num_neg_samples": 5, "seed": 3, "is_sparse": True}
    return fluid.layers.nce(hidden, label, CLASSES, sampler="log_uniform", **how)


def paths(hidden: Any, label: Any) -> Any:
    layers = fluid.layers
    table = layers.cast(layers.concat([label * 0, label * 0 + 1, label * 0 + 2], 1), "int64")
    code = layers.cast(layers.concat([label * 0 + 1, label * 0, label * 0 + 1], 1), "int64")
    how = {"path_table": table, "path_code": code, "is_custom": True, "is_sparse": True}
    return layers.hsigmoid(hidden, label, CLASSES, **how)


def sampled(hidden: Any, label: Any) -> Any:
    logits = fluid.layers.fc(hidden, CLASSES)
    return fluid.layers.sampled_softmax_with_cross_entropy(logits, label, 7, seed=3)


def trained(cost: Callable[[Any, Any], Any]) -> Callable[[], list[float]]:
    """Build a Program of its own; return what trains it. Ranks that are threads build nothing."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1], dtype="int64")
        loss = fluid.layers.mean(cost(fluid.layers.fc(x, 6, act="tanh"), y))
        fluid.optimizer.SGD(0.5).minimize(loss)

    def script() -> list[float]:
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        losses = []
        for step in range(4):
            rng = np.random.default_rng(step)
            rows = rng.normal(size=(6, 4)).astype("float32")
            feed = {"x": rows, "y": rng.integers(0, CLASSES, (6, 1))}
            losses.append(float(exe.run(main, feed=feed, fetch_list=[loss])[0][0]))
        return losses

    return script


@pytest.mark.parametrize("cost", [nce, paths, sampled])
def test_trainers_that_sum_their_gradients_learn_what_one_process_does(cost: Any) -> None:
    with fluid.scope_guard(fluid.Scope()):
        alone = trained(cost)()
    with ranks_as_threads() as run:
        for losses in run(2, 0, [trained(cost) for _ in range(2)]):
            np.testing.assert_allclose(losses, alone, rtol=1e-5)


def test_servers_learn_what_one_process_does_or_refuse_by_name() -> None:
    with fluid.scope_guard(fluid.Scope()):
        alone = trained(sampled)()
    with ranks_as_threads() as run:
        for losses in run(2, 1, [trained(sampled) for _ in range(3)]):
            np.testing.assert_allclose(losses, alone, rtol=1e-5)
        for cost, table in ((nce, "nce_0"), (paths, "hierarchical_sigmoid_0")):
            with pytest.raises(
                CommError, match=f"table .{table}.*is_sparse=True, but is not only looked"
            ):
                run(2, 1, [trained(cost) for _ in range(3)])
