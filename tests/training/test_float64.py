"""float64: steps of jobs are those of one process to the rounding of float64; ranks are threads.

What is computed in float32 somewhere differs by 1e-8, what is summed in another order by 1e-15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers, optimizer
from hpcdist.clip import GradientClipByGlobalNorm, GradientClipByNorm, GradientClipByValue
from hpcdist.errors import PlanError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.regularizer import L1Decay, L2Decay
from tests.support.thread_jobs import ranks_as_threads

SHAPES = [(2, 0), (3, 2)]  # trainers, servers
ROWS = [7, 6, 1, 3]  # parts of three rows, and of none
NEAR = 2e-13  # where float32 comes in, it is 1e-8

Minimize = Callable[[Any], Any]

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": optimizer.SGD,
    "momentum": lambda rate, **others: optimizer.Momentum(rate, 0.9, **others),
    "nesterov": lambda rate, **others: optimizer.Momentum(rate, 0.9, use_nesterov=True, **others),
    "lars": lambda rate, **others: optimizer.LarsMomentum(rate, 0.9, **others),
    "adagrad": optimizer.Adagrad,
    "decayed_adagrad": optimizer.DecayedAdagrad,
    "adam": lambda rate, **others: optimizer.Adam(rate, epsilon=0.1, **others),
    "lazy_adam": lambda rate, **others: optimizer.Adam(rate, epsilon=0.1, lazy_mode=True, **others),
    "adamax": optimizer.Adamax,
    "rmsprop": lambda rate, **others: optimizer.RMSProp(rate, centered=True, **others),
    "ftrl": lambda rate, **others: optimizer.Ftrl(rate, l1=0.01, l2=0.02, **others),
    "ftrl_by_power": lambda rate, **others: optimizer.Ftrl(rate, lr_power=-0.4, **others),
    "adadelta": optimizer.Adadelta,
    "lamb": optimizer.Lamb,
}
SPARSE = ("sgd", "momentum", "nesterov", "adagrad", "adam", "lazy_adam", "rmsprop", "lamb")
CLIPS = {
    "global norm": GradientClipByGlobalNorm(0.05),
    "norm": GradientClipByNorm(0.02),
    "value": GradientClipByValue(0.01),
}
SCHEDULES = {
    "exponential": lambda: layers.exponential_decay(0.1, 2, 0.5),
    "noam": lambda: layers.noam_decay(8, 3),
    "piecewise": lambda: layers.piecewise_decay([1, 3], [0.1, 0.05, 0.01]),
    "polynomial": lambda: layers.polynomial_decay(0.1, 4),
    "cosine": lambda: layers.cosine_decay(0.1, 2, 3),
    "warm-up": lambda: layers.linear_lr_warmup(0.1, 3, 0.01, 0.1),
}


def dense(x: Any, ids: Any) -> Any:
    return layers.fc(layers.fc(x, 3, act="tanh"), 1)


def with_table(x: Any, ids: Any, **facts: Any) -> Any:
    rows = layers.embedding(ids, [11, 3], dtype="float64", **facts)
    return layers.fc(layers.fc(x, 3, act="tanh") + layers.reshape(rows, [-1, 3]), 1)


def sparse(x: Any, ids: Any) -> Any:
    return with_table(x, ids, is_sparse=True)


def normalized(x: Any, ids: Any) -> Any:
    return layers.fc(layers.layer_norm(layers.batch_norm(layers.fc(x, 4))), 1)


def dropped(x: Any, ids: Any) -> Any:
    return layers.fc(layers.dropout(layers.fc(x, 4), 0.3), 1)


def training(minimize: Minimize, net: Callable[..., Any] = dense) -> Callable[[], Any]:
    """Return what trains a network of float64, and runs its test program after each step."""
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, ids = fluid.data("x", [None, 5], "float64"), fluid.data("ids", [None, 1], "int64")
        out = net(x, ids)
        # Two losses of one: their weights must be float64 in both.
        loss = layers.mean(layers.square(out)) + layers.mean(layers.fc(x, 1))
        fetched = [loss, out, *(f(out) for f in (layers.reduce_sum, layers.reduce_max))]
        test = main.clone(for_test=True)
        minimize(loss)

    def script() -> list[np.ndarray]:
        exe = Executor()
        exe.run(startup)
        found: list[np.ndarray] = []
        for step, rows in enumerate(ROWS):
            rng = np.random.default_rng(step)
            feed = {"x": rng.uniform(-1, 1, (rows, 5)), "ids": rng.integers(0, 11, (rows, 1))}
            feed = {name: v for name, v in feed.items() if main.global_block().has_var(name)}
            for program in (main, test):
                found += exe.run(program, feed=feed, fetch_list=fetched)
        return [np.array(value) for value in found]

    return script


def check(make: Callable[[], Callable[[], Any]], shapes: Any = SHAPES) -> None:
    with scope_guard(Scope()):
        wanted = make()()
    assert {value.dtype for value in wanted} == {np.dtype("float64")}
    with ranks_as_threads() as run:
        for trainers, servers in shapes:
            scripts = [make() for _ in range(trainers + servers)]
            for results in run(trainers, servers, scripts):
                for got, value in zip(results, wanted, strict=True):
                    where = f"{trainers} trainers, {servers} servers"
                    assert got.dtype == value.dtype, where
                    np.testing.assert_allclose(got, value, rtol=NEAR, atol=NEAR, err_msg=where)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_move_as_in_one_process_to_the_rounding_of_float64(name: str) -> None:
    for net in (dense, sparse) if name in SPARSE else (dense,):
        check(lambda net=net: training(OPTIMIZERS[name](0.1).minimize, net))


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("decay", [None, L1Decay(0.01), L2Decay(0.1)])
def test_gradients_are_clipped_to_the_rounding_of_float64(clip: str, decay: Any) -> None:
    for name in ("momentum", "lars"):
        facts = {"grad_clip": CLIPS[clip], "regularization": decay}
        check(lambda n=name, f=facts: training(OPTIMIZERS[n](0.1, **f).minimize))
    facts = {"grad_clip": CLIPS[clip], "regularization": decay}
    check(lambda: training(OPTIMIZERS["adam"](0.1, **facts).minimize, sparse), [(2, 2)])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_are_those_of_one_process(schedule: str) -> None:
    check(lambda: training(lambda loss: optimizer.SGD(SCHEDULES[schedule]()).minimize(loss)))


@pytest.mark.parametrize("net", [sparse, with_table, normalized, dropped])
def test_layers_compute_in_float64(net: Any) -> None:
    check(lambda: training(optimizer.SGD(0.1).minimize, net))


def merged(loss: Any) -> None:
    optimizer.GradientMergeOptimizer(optimizer.Momentum(0.1, 0.9), k_steps=2).minimize(loss)


def averaged(loss: Any) -> None:
    optimizer.Momentum(0.1, 0.9).minimize(loss)
    optimizer.ExponentialMovingAverage(0.9).update()


def compressed(loss: Any) -> None:
    optimizer.DGCMomentumOptimizer(0.1, 0.9, rampup_begin_step=100).minimize(loss)


def clipped_by_parameter(loss: Any) -> None:
    fluid.clip.set_gradient_clip(GradientClipByGlobalNorm(0.05))
    optimizer.SGD(0.1).minimize(loss)


@pytest.mark.parametrize("minimize", [merged, averaged, compressed, clipped_by_parameter])
def test_wrappers_keep_float64(minimize: Minimize) -> None:
    check(lambda: training(minimize))


def test_a_distributed_table_of_float64_is_refused_before_the_first_step() -> None:
    def net(x: Any, ids: Any) -> Any:
        return with_table(x, ids, is_sparse=True, is_distributed=True)

    for trainers, servers in ((1, 0), *SHAPES):
        with ranks_as_threads() as run:
            scripts = [training(optimizer.SGD(0.1).minimize, net)] * (trainers + servers)
            with pytest.raises(PlanError, match="its rows are float32, got dtype float64"):
                run(trainers, servers, scripts)


def test_the_rate_is_not_rounded_to_float32() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), scope_guard(Scope()):
        x = fluid.data("x", [None, 1], "float64")
        w = layers.create_parameter([1], "float64", "w")
        optimizer.SGD(0.1).minimize(layers.mean(x * w))
        exe = Executor()
        exe.run(startup)
        begin = np.array(exe.run(main, feed={"x": np.ones((2, 1))}, fetch_list=["w"])[0])
        end = np.array(exe.run(main, feed={"x": np.ones((2, 1))}, fetch_list=["w"])[0])
    assert abs((begin - end)[0] - 0.1) < 1e-15
