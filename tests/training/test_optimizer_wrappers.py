"""What optimizers that hold another one leave to it, one within the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.contrib import mixed_precision
from hpcdist.errors import GraphAssertionError, GraphError, GraphTypeError, PlanError

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


def deep(outputs: list[Any]) -> Any:
    """Return a loss; its first layer is read near the end, too, so it passes over checkpoints."""
    value = layers.data("x", [3])
    for _ in range(8):
        value = layers.fc(value, 4, act="relu")
        outputs.append(value)
    return layers.mean(layers.fc(layers.elementwise_add(value, outputs[0]), 1))


@pytest.mark.parametrize("outside", [False, True])
def test_recomputation_and_mixed_precision_hold_each_other(outside: bool) -> None:
    def trained(again: bool) -> tuple[list[bytes], int]:
        main, startup, outputs = fluid.Program(), fluid.Program(), []
        main.random_seed = startup.random_seed = 3
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            loss = deep(outputs)
            optimizer: Any = fluid.optimizer.SGD(0.1)
            if not again or outside:
                optimizer = mixed_precision.decorate(optimizer)
            if again:
                optimizer = fluid.optimizer.RecomputeOptimizer(optimizer)
                optimizer._set_checkpoints([outputs[1], outputs[4]])
            if again and not outside:
                optimizer = mixed_precision.decorate(optimizer)
            optimizer.minimize(loss)
        ops = loss.block.ops
        made = next(i for i, op in enumerate(ops) if loss.name in op.output_arg_names)
        copies = [i for i, op in enumerate(ops) if "@RECOMPUTED" in "".join(op.output_arg_names)]
        assert all(i > made for i in copies)
        exe, scope = fluid.Executor(), fluid.Scope()
        exe.run(startup, scope=scope)
        rows = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
        run = [exe.run(main, {"x": rows}, [loss], scope=scope)[0].tobytes() for _ in range(3)]
        return run, len(copies)

    losses, copies = trained(True)
    assert losses == trained(False)[0]
    assert copies > 8  # products, sums and roundings of the layers before the two checkpoints


def of_sgd(wrapped: Decorate) -> Callable[[Any], Any]:
    return lambda loss: wrapped(fluid.optimizer.SGD(0.1)).minimize(loss)


def with_amp(**how: Any) -> Callable[[Any], Any]:
    return of_sgd(lambda inner: mixed_precision.decorate(inner, **how))


def in_lists(name: str) -> Callable[[Any], Any]:
    return lambda _: mixed_precision.AutoMixedPrecisionLists(**{f"custom_{name}": "mul"})


def merge(loss: Any, *args: Any, **how: Any) -> Any:
    return merging(fluid.optimizer.SGD(0.1)).minimize(loss, *args, **how)


MISTAKES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "loss": (lambda _: merge("loss"), GraphAssertionError, "minimize: the loss must be a Variable"),
    "backward": (
        lambda _: merging(fluid.optimizer.SGD(0.1)).backward("loss"),
        GraphTypeError,
        "the loss must be a Variable, got 'loss'",
    ),
    "loss of rows": (lambda x: merge(x), GraphAssertionError, r"must have shape \(1,\)"),
    "clip": (lambda loss: merge(loss, grad_clip="x"), GraphTypeError, "grad_clip: expected"),
    "clip, a number": (
        lambda loss: mixed_precision.decorate(fluid.optimizer.SGD(0.1)).minimize(loss, grad_clip=1),
        GraphTypeError,
        "grad_clip: expected",
    ),
    "lists": (with_amp(amp_lists=["mul"]), GraphTypeError, "amp_lists: expected AutoMixed"),
    "no lists": (with_amp(amp_lists=[]), GraphTypeError, "amp_lists: expected AutoMixed"),
    "white": (
        in_lists("white_list"),
        GraphTypeError,
        "custom_white_list: expected a list",
    ),
    "black": (in_lists("black_varnames"), GraphTypeError, "custom_black_varnames: expected"),
    "scale": (with_amp(init_loss_scaling="x"), GraphTypeError, "init_loss_scaling: expected"),
    "no scale": (with_amp(init_loss_scaling=0.0), GraphError, "init_loss_scaling: expected"),
    "steps": (with_amp(incr_every_n_steps=0), GraphError, "incr_every_n_steps: expected"),
    "ratio": (with_amp(incr_ratio=-1), GraphError, "incr_ratio: expected a number above 0, got -1"),
    "twice": (
        of_sgd(lambda inner: mixed_precision.decorate(merging(mixed_precision.decorate(inner)))),
        GraphError,
        "OptimizerWithMixedPrecision: the optimizer given holds one already",
    ),
    "merged twice": (
        of_sgd(lambda inner: merging(merging(inner))),
        GraphError,
        "holds one already",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    call, error, words = MISTAKES[name]
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss = layers.data("x", [3]) if name == "loss of rows" else net()
        with pytest.raises(error, match=words):
            call(loss)


def test_a_loss_scale_belongs_to_one_program() -> None:
    optimizer = mixed_precision.decorate(fluid.optimizer.SGD(0.1))
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        optimizer.minimize(net())
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        pytest.raises(GraphError, match="decorate another one for a second program"),
    ):
        optimizer.minimize(net())


def test_local_sgd_refuses_mixed_precision() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        mixed_precision.decorate(fluid.optimizer.SGD(0.1)).minimize(net())
    config = fluid.DistributeTranspilerConfig(mode="collective", collective_mode="local_sgd")
    with pytest.raises(PlanError, match="in mixed precision each would scale its loss"):
        fluid.DistributeTranspiler(config).transpile(
            0, main, trainers="a:1,b:1", startup_program=startup, current_endpoint="a:1"
        )
