"""Clip and Lars with servers: plain scripts take norms of the mean gradient, over all servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.clip import (
    GradientClipBase,
    GradientClipByGlobalNorm,
    GradientClipByNorm,
    GradientClipByValue,
    set_gradient_clip,
)
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 3)]  # trainers, servers
ROWS = [7, 6, 7, 2, 1, 5, 8, 9]
WIDE = 150  # so that two servers share the weight of a layer
NEAR = 2e-5


def net(sparse: bool = False) -> Any:
    x, y = layers.data("x", [WIDE]), layers.data("y", [1])
    hidden = layers.fc(x, WIDE, act="tanh")
    if sparse:
        word = layers.data("word", [1], dtype="int64")
        rows = layers.embedding(word, [40, 6], is_sparse=True, param_attr="table")
        hidden = layers.concat([hidden, rows], axis=1)
    return layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))


def by_global_norm(loss: Any) -> None:
    set_gradient_clip(GradientClipByGlobalNorm(0.3))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)


def by_global_norm_of_some(loss: Any) -> None:
    clip = GradientClipByGlobalNorm(0.3, need_clip=lambda p: "w_0" in p.name)
    decay = fluid.regularizer.L2Decay(0.1)
    fluid.optimizer.SGD(0.1, regularization=decay, grad_clip=clip).minimize(loss)


def by_norm(loss: Any) -> None:
    fluid.optimizer.Adam(0.01, grad_clip=GradientClipByNorm(0.2)).minimize(loss)


def by_value(loss: Any) -> None:
    rate = layers.exponential_decay(0.1, 2, 0.5)
    fluid.optimizer.SGD(rate, grad_clip=GradientClipByValue(0.02)).minimize(loss)


def lars(loss: Any) -> None:
    fluid.optimizer.LarsMomentum(0.5, 0.9, lars_coeff=0.02).minimize(loss)


def lars_by_global_norm(loss: Any) -> None:
    rate = layers.piecewise_decay([3], [0.5, 0.2])
    clip, decay = GradientClipByGlobalNorm(0.3), fluid.regularizer.L2Decay(0.01)
    fluid.optimizer.LarsMomentum(
        rate, 0.9, lars_coeff=0.02, regularization=decay, grad_clip=clip
    ).minimize(loss)


HOW: dict[str, Callable[[Any], None]] = {
    f.__name__: f
    for f in (by_global_norm, by_global_norm_of_some, by_norm, by_value, lars, lars_by_global_norm)
}


def batch(step: int, rows: int, fed: list[str]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    made = {
        "x": rng.uniform(-1, 1, (rows, WIDE)).astype(np.float32),
        "y": rng.uniform(-3, 3, (rows, 1)).astype(np.float32),
        "word": rng.integers(0, 9, (rows, 1)),
    }
    return {name: made[name] for name in fed}


def build(minimize: Callable[[Any], None], sparse: bool = False) -> tuple[Any, Any, Any, list[str]]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = net(sparse)
        minimize(loss)
    return main, startup, loss, [n for n, v in main.global_block().vars.items() if v.is_data]


def train(minimize: Callable[[Any], None], sparse: bool = False) -> np.ndarray:
    main, startup, loss, fed = build(minimize, sparse)
    exe = fluid.Executor()
    exe.run(startup)
    return np.array([exe.run(main, batch(k, n, fed), [loss])[0][0] for k, n in enumerate(ROWS)])


def unclipped(loss: Any) -> None:
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
@pytest.mark.parametrize("name", sorted(HOW))
def test_a_plain_script_clips_as_one_process(name, trainers, servers):
    with alone():
        wanted = train(HOW[name])
        if name == "by_global_norm":
            assert np.abs(wanted - train(unclipped)).max() > 0.01, "the clip must matter"
    for got in values(run_job(trainers, servers, lambda role: train(HOW[name]))):
        np.testing.assert_allclose(got, wanted, rtol=NEAR)


@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("name", ["by_global_norm", "by_norm", "by_value"])
def test_sparse_gradients_count_their_rows_of_all_trainers(name, trainers, servers):
    with alone():
        wanted = train(HOW[name], sparse=True)
    for got in values(run_job(trainers, servers, lambda role: train(HOW[name], sparse=True))):
        np.testing.assert_allclose(got, wanted, rtol=NEAR)


def test_one_and_two_servers_add_up_alike_in_every_run():
    runs = [values(run_job(1, 2, lambda role: train(by_global_norm)))[0] for _ in range(2)]
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize("name", ["by_global_norm_of_some", "lars_by_global_norm"])
@pytest.mark.parametrize(
    ("before", "after"), [((1, 1), (1, 2)), ((1, 2), (2, 1)), ((1, 2), (2, 0))]
)
def test_a_job_goes_on_from_a_checkpoint(mpi_tmp_path, name, before, after):
    def script(steps: range, restored: bool) -> Callable[[Any], Any]:
        def run(role: Any) -> Any:
            main, startup, loss, fed = build(HOW[name])
            exe = fluid.Executor()
            exe.run(startup)
            if restored:
                assert fluid.checkpoint.restore(exe, mpi_tmp_path, main).step == steps.start
            found = [exe.run(main, batch(k, ROWS[k], fed), [loss])[0][0] for k in steps]
            if not restored:
                fluid.checkpoint.save(exe, mpi_tmp_path, steps.stop, main)
            return np.array(found)

        return run

    with alone():
        wanted = train(HOW[name])
    values(run_job(*before, script(range(5), restored=False)))
    for got in values(run_job(*after, script(range(5, 8), restored=True))):
        np.testing.assert_allclose(got, wanted[5:], rtol=NEAR)


class ByLargest(GradientClipBase):
    """Scale by the largest element: servers cannot compute that from parts."""

    def _create(self, param: Any, grad: Any, context: Any = None) -> Any:
        return layers.elementwise_div(grad, layers.reduce_max(layers.abs(grad)))


def by_largest(loss: Any) -> None:
    fluid.optimizer.SGD(0.1, grad_clip=ByLargest()).minimize(loss)


def test_what_servers_cannot_compute_on_parts_is_refused_before_the_first_step():
    for outcome in run_job(1, 1, lambda role: train(by_largest), aborts=False):
        assert "PlanError" in outcome.error_types
        assert "train without servers, or clip by value or norms" in outcome.error


def test_scripts_that_transpile_themselves_clip_as_fluid():
    """Each trainer its own gradient, before sending it: the mean of clipped ones is shorter."""

    def script(role: Any) -> np.ndarray:
        main, startup, _, fed = build(by_global_norm)
        exe, trainer = begin(role, 1, 1, main, startup)
        clips = [op.type for op in trainer.global_block().ops]
        assert "elementwise_max" in clips and clips.index("elementwise_max") < clips.index("send")
        for k, n in enumerate(ROWS):
            exe.run(trainer, batch(k, n, fed), [])
        return np.array(fluid.global_scope().find_var("fc_1.w_0").get_tensor())

    (got,) = values(run_job(1, 1, script))
    with alone():
        main, startup, _, fed = build(by_global_norm)
        exe = fluid.Executor()
        exe.run(startup)
        for k, n in enumerate(ROWS):
            exe.run(main, batch(k, n, fed), [])
        wanted = np.array(fluid.global_scope().find_var("fc_1.w_0").get_tensor())
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
