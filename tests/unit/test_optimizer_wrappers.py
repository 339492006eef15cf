"""What optimizers that hold another one leave to it, one within the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.contrib import mixed_precision

Decorate = Callable[[Any], Any]


def merging(inner: Any) -> Any:
    return fluid.optimizer.GradientMergeOptimizer(inner, 2)


def recomputing(inner: Any) -> Any:
    optimizer = fluid.optimizer.RecomputeOptimizer(inner)
    optimizer._set_checkpoints(["fc_0.tmp_1"])
    return optimizer


def net() -> Any:
    x = layers.data("x", [3])
    hidden = layers.fc(x, 4, act="relu", bias_attr=False)
    start = fluid.ParamAttr("w", initializer=fluid.initializer.Constant(1.0))
    return layers.mean(layers.fc(hidden, 1, param_attr=start, bias_attr=False))


@pytest.mark.parametrize(
    ("wrapped", "updates"),
    [
        (merging, 2),
        (recomputing, 4),
        (mixed_precision.decorate, 4),
        (lambda inner: mixed_precision.decorate(merging(inner)), 2),
    ],
)
def test_weights_decay_with_every_update(wrapped: Decorate, updates: int) -> None:
    main, startup = fluid.Program(), fluid.Program()
    decaying = fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.SGD)
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        wrapped(decaying(weight_decay=0.25, learning_rate=0.0)).minimize(net())
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    for _ in range(4):
        exe.run(main, feed={"x": np.ones((2, 3), "float32")}, scope=scope)
    found = np.array(scope.find_var("w").get_tensor())
    np.testing.assert_array_equal(found, np.full((4, 1), 0.75**updates, "float32"))
