"""Sparse gradients whose rows are divided over trainers and servers: a step is that of one process.

Fluid's Momentum and RMSProp miss rows by the order of a batch's ids, and its servers leave out a
step in which they get no rows, though moments move by themselves. Neither may happen on ranks.
"""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import PlanError
from hpcdist.executor.scope import Scope, scope_guard
from tests.support.thread_jobs import ranks_as_threads

HEIGHT, WIDTH, STEPS = 3000, 8, 6  # large enough for two servers to have a part of the table each
SIZES = (9, 2, 1)  # of batches in turn: with fewer rows than trainers, or servers, some get none
SHAPES = [(3, 0), (2, 2), (1, 3)]  # trainers, servers
Decayed = fluid.contrib.extend_with_decoupled_weight_decay(fluid.optimizer.Adam)
OPTIMIZERS = {
    "sgd": lambda **how: fluid.optimizer.SGD(0.1, **how),
    "momentum": lambda **how: fluid.optimizer.Momentum(0.1, 0.9, **how),
    "rmsprop": lambda **how: fluid.optimizer.RMSProp(0.05, momentum=0.5, **how),
    "adam": lambda **how: fluid.optimizer.Adam(0.05, **how),
    "lazy adam": lambda **how: fluid.optimizer.Adam(0.05, lazy_mode=True, **how),
    "adagrad": lambda **how: fluid.optimizer.Adagrad(0.1, **how),
    "decayed adam": lambda **how: Decayed(weight_decay=0.01, learning_rate=0.05, **how),
}
HOWS = {
    "plain": dict,
    "clip by value": lambda: {"grad_clip": fluid.clip.GradientClipByValue(0.1)},
    "clip by norm": lambda: {"grad_clip": fluid.clip.GradientClipByNorm(0.1)},
    "clip by global norm": lambda: {"grad_clip": fluid.clip.GradientClipByGlobalNorm(0.1)},
    "decay": lambda: {"regularization": fluid.regularizer.L2Decay(0.01)},
}
REFUSED = "without servers a sparse gradient cannot be"


def _built(optimizer: str, look_ups: int, how: str = "plain"):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        label = fluid.data("label", [None, 1])
        rows = [
            fluid.layers.embedding(
                fluid.data(f"ids{i}", [None, 1], "int64"),
                [HEIGHT, WIDTH],
                is_sparse=True,
                param_attr="table",
            )
            for i in range(look_ups)
        ]
        predicted = fluid.layers.fc(fluid.layers.concat(rows, 1), 1)
        loss = fluid.layers.reduce_mean(fluid.layers.square_error_cost(predicted, label))
        OPTIMIZERS[optimizer](**HOWS[how]()).minimize(loss)
    return main, startup, loss


def _losses(main, startup, loss, look_ups: int, repeats: int) -> list[float]:
    """Train on ids in no order; look-ups have no id in common, and ``repeats`` of a batch's own."""
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    rng = np.random.default_rng(0)
    pools = rng.permutation(HEIGHT)[:40].reshape(2, 20)
    losses = []
    for step in range(STEPS):
        size = SIZES[step % len(SIZES)]
        feed = {"label": rng.normal(size=(size, 1)).astype("float32")}
        for i in range(look_ups):
            ids = rng.choice(pools[i], size, replace=False)
            ids[1 : 1 + repeats] = ids[0]
            feed[f"ids{i}"] = ids[:, None]
        losses.append(float(exe.run(main, feed, [loss])[0][0]))
    return losses


def check(optimizer: str, look_ups: int, repeats: int, how: str, shapes) -> None:
    """Compare jobs with one process."""
    with scope_guard(Scope()):
        wanted = _losses(*_built(optimizer, look_ups, how), look_ups, repeats)
    for trainers, servers in shapes:
        built = [_built(optimizer, look_ups, how) for _ in range(trainers + servers)]
        scripts = [lambda b=b: _losses(*b, look_ups, repeats) for b in built]
        with ranks_as_threads() as run:
            try:
                results = run(trainers, servers, scripts)
            except PlanError as error:
                assert REFUSED in str(error) and not servers
                continue
        for found in results:
            where = f"{trainers} trainers, {servers} servers"
            np.testing.assert_allclose(found, wanted, rtol=2e-5, err_msg=where)


@pytest.mark.parametrize("repeats", [0, 1])
@pytest.mark.parametrize("look_ups", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_row_is_used_however_ranks_divide_a_batch(optimizer, look_ups, repeats):
    check(optimizer, look_ups, repeats, "plain", SHAPES)


@pytest.mark.parametrize("how", sorted({*HOWS} - {"plain"}))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_servers_without_rows_clip_and_decay_as_one_process(optimizer, how):
    check(optimizer, 1, 0, how, [(1, 2), (2, 2)])


@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop"])
def test_rows_that_are_to_be_missed_are_refused_on_ranks(monkeypatch, optimizer):
    monkeypatch.setenv("HPCDIST_SPARSE_ROWS", "fluid")
    for trainers, servers in [(2, 0), (1, 1)]:
        built = [_built(optimizer, 1) for _ in range(trainers + servers)]
        scripts = [lambda b=b: _losses(*b, 1, 0) for b in built]
        with ranks_as_threads() as run, pytest.raises(PlanError, match="miss rows of 'table'"):
            run(trainers, servers, scripts)
    with scope_guard(Scope()):
        as_fluid = _losses(*_built(optimizer, 1), 1, 0)
    monkeypatch.delenv("HPCDIST_SPARSE_ROWS")
    with scope_guard(Scope()):
        assert _losses(*_built(optimizer, 1), 1, 0) != as_fluid
