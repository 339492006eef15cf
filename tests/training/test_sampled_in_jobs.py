"""Losses over large vocabularies, gradients sparse, in jobs: equal to one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from tests.support.thread_jobs import ranks_as_threads

CLASSES = 20


def nce(hidden: Any, label: Any, **how: Any) -> Any:
    how = {"num_neg_samples": 5, "seed": 3, "is_sparse": True, **how}
    return fluid.layers.nce(hidden, label, CLASSES, sampler="log_uniform", **how)


def nce_table(hidden: Any, label: Any) -> Any:
    return nce(hidden, label, is_distributed=True)


def unseeded(hidden: Any, label: Any) -> Any:
    chances = (np.arange(CLASSES) + 1.0) / sum(range(CLASSES + 1))
    how = {"sampler": "custom_dist", "custom_dist": chances, "is_sparse": True}
    return fluid.layers.nce(hidden, label, CLASSES, num_neg_samples=3, **how)


def tree_table(hidden: Any, label: Any) -> Any:
    how = {"is_sparse": True, "is_distributed": True}
    return fluid.layers.hsigmoid(hidden, label, CLASSES, **how)


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


def alone(cost: Callable[[Any, Any], Any]) -> list[float]:
    with fluid.scope_guard(fluid.Scope()):
        return trained(cost)()


@pytest.mark.parametrize("servers", [0, 1, 2])
@pytest.mark.parametrize("cost", [nce, unseeded, paths, sampled, nce_table, tree_table])
def test_trainers_learn_what_one_process_does(cost: Any, servers: int) -> None:
    wanted = alone(cost)
    with ranks_as_threads() as run:
        for losses in run(2, servers, [trained(cost) for _ in range(2 + servers)]):
            np.testing.assert_allclose(losses, wanted, rtol=1e-5)


@pytest.mark.parametrize("cost", [nce, paths, tree_table])
def test_one_trainer_with_servers_has_the_bits_of_one_process(cost: Any) -> None:
    wanted = alone(cost)
    with ranks_as_threads() as run:
        assert run(1, 2, [trained(cost) for _ in range(3)]) == [wanted]


def test_sparse_gradients_train_as_dense_ones_do() -> None:
    assert alone(nce) == alone(lambda hidden, label: nce(hidden, label, is_sparse=False))
