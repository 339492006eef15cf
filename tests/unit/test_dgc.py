"""Deep gradient compression: how much is sent, what an optimizer takes, what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import FleetError, GraphError, GraphTypeError, PlanError
from hpcdist.fleet import DistributedStrategy
from hpcdist.ops.optimize.dgc import compress, most_sent, sent
from hpcdist.transpiler.compressed import compression_of

DGC = fluid.optimizer.DGCMomentumOptimizer


def test_sparsity_rises_in_equal_parts_of_the_ramp():
    counts = [sent(1000, steps, 4, [0.75, 0.9]) for steps in range(6)]
    assert counts == [250, 250, 100, 100, 100, 100]
    assert most_sent(1000, [0.75, 0.9]) == 250
    assert sent(100, 0, 1, [0.999]) == 1


@pytest.mark.parametrize("nesterov", [False, True])
def test_what_is_sent_and_what_is_left_is_all_there_was(nesterov):
    rng = np.random.default_rng(0)
    u, v, grad, param = rng.standard_normal((4, 50)).astype(np.float32)
    wanted_u = 0.9 * (u + 2 * grad) if nesterov else 0.9 * u + 2 * grad
    wanted_v = v + wanted_u + (2 * grad if nesterov else 0)
    values, where = compress(u, v, grad, param, 5, 2, 0.9, nesterov)
    largest = np.argsort(-np.abs(wanted_v))[:5]
    assert sorted(where) == sorted(largest)
    np.testing.assert_allclose(values, wanted_v[where], rtol=1e-5)
    wanted_u[where] = wanted_v[where] = 0
    np.testing.assert_allclose(u, wanted_u, rtol=1e-5)
    np.testing.assert_allclose(v, wanted_v, rtol=1e-5)


def test_small_parameters_and_sparse_gradients_take_momentum():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids = layers.data("ids", [1], dtype="int64")
        found = layers.embedding(ids, [4096, 64], is_sparse=True)
        loss = layers.mean(layers.fc(layers.fc(found, 256), 4))
        DGC(0.1, 0.9, 5, regularization=fluid.regularizer.L1Decay(0.1)).minimize(loss)
    updates = {
        op.input("Param")[0]: op.type for op in main.global_block().ops if op.input("Velocity")
    }
    assert updates.pop("fc_0.w_0") == "dgc_momentum"
    assert {*updates} == {"embedding_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"}
    assert {*updates.values()} == {"momentum"}


@pytest.mark.parametrize(
    ("kind", "how", "words"),
    [
        (GraphError, {"sparsity": [0.5, 1.0]}, "from 0 to below 1"),
        (GraphError, {"sparsity": []}, "from 0 to below 1"),
        (GraphError, {"rampup_begin_step": -1}, "rampup_begin_step"),
        (GraphError, {"rampup_step": 0}, "rampup_step"),
        (GraphTypeError, {"local_grad_clip_norm": 1.0}, "num_trainers, which grad_clip needs"),
        (GraphTypeError, {"grad_clip": fluid.clip.GradientClipByValue(1.0)}, "GradientClipByNorm"),
    ],
)
def test_arguments_that_make_no_sense(kind, how, words):
    with pytest.raises(kind, match=words):
        DGC(**{"learning_rate": 0.1, "momentum": 0.9, "rampup_begin_step": 0, **how})


def test_a_program_compresses_from_one_step_on():
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        hidden = layers.fc(layers.fc(layers.data("x", [128]), 128), 128)
        for begin, name in ((2, "fc_0.w_0"), (5, "fc_1.w_0")):
            DGC(0.1, 0.9, begin).minimize(layers.mean(hidden), parameter_list=[name])
    with pytest.raises(PlanError, match="rampup_begin_step 2 and 5: give all the same"):
        compression_of(main, 2)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (fluid.optimizer.Adam(0.1), "expects a Momentum optimizer, got AdamOptimizer"),
        (
            fluid.optimizer.Momentum(0.1, 0.9, grad_clip=fluid.clip.GradientClipByNorm(1.0)),
            "clips on each worker",
        ),
    ],
)
def test_optimizers_that_a_strategy_cannot_replace(optimizer, words):
    strategy = DistributedStrategy()
    strategy.dgc = True
    with pytest.raises(FleetError, match=words):
        strategy.wrapped(optimizer)
