"""Averages of parameters and slow copies: where they cannot be, and metrics of chunks and edits."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import GraphError, GraphTypeError, HpcdistError
from hpcdist.initializer import Bilinear

BILINEAR = [
    0.0625,
    0.28125,
    0.375,
    0.15625,
    0.1875,
    0.65625,
    0.75,
    0.21875,
    0.1875,
    0.46875,
    0.375,
    0.09375,
    0.0625,
    0.09375,
    0.0,
    -0.03125,
]
WRAPPED = {
    "ExponentialMovingAverage": lambda: fluid.optimizer.ExponentialMovingAverage(0.9).update(),
    "ModelAverage": lambda: fluid.optimizer.ModelAverage(0.5),
    "LookaheadOptimizer": None,
}
WHY = {
    "ExponentialMovingAverage": "only synchronous training.*sync_mode=True",
    "ModelAverage": "only synchronous training.*sync_mode=True",
    "LookaheadOptimizer": "moves parameters in every step.*without servers",
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_follows_parameters_is_refused_where_servers_move_them_at_any_time(name: str) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 4])
        loss = fluid.layers.mean(fluid.layers.fc(x, 1))
        optimizer = fluid.optimizer.SGD(0.1)
        if name == "LookaheadOptimizer":
            optimizer = fluid.optimizer.LookaheadOptimizer(optimizer)
        optimizer.minimize(loss)
        after = WRAPPED[name]
        if after is not None:
            after()
    transpiler = fluid.DistributeTranspiler()
    with pytest.raises(HpcdistError, match=f"{name} .*{WHY[name]}"):
        transpiler.transpile(0, main, "a:1,b:2", 2, sync_mode=False, startup_program=startup)


@pytest.mark.parametrize("name", ["ModelAverage", "ExponentialMovingAverage"])
def test_before_the_first_update_the_average_is_the_parameter(name: str) -> None:
    """With gradients merged over steps nothing is averaged in the first of them."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 4]), 1))
        test = main.clone(for_test=True)
        inner = fluid.optimizer.SGD(0.1)
        fluid.optimizer.GradientMergeOptimizer(inner, k_steps=2).minimize(loss)
        if name == "ModelAverage":
            average = fluid.optimizer.ModelAverage(0.5, 2, 3)
        else:
            average = fluid.optimizer.ExponentialMovingAverage(0.5)
            average.update()
    exe, feed = fluid.Executor(), {"x": np.ones((2, 4), "float32")}
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        of_steps = [exe.run(main, feed=feed, fetch_list=[loss])[0]]
        for averaged in ("nothing yet", "one update"):
            own = exe.run(test, feed=feed, fetch_list=[loss])[0]
            with average.apply(exe):
                (of_average,) = exe.run(test, feed=feed, fetch_list=[loss])
            np.testing.assert_allclose(of_average, own, rtol=1e-6, err_msg=averaged)
            of_steps += exe.run(main, feed=feed, fetch_list=[loss])
    assert of_steps[0] == of_steps[1] != of_steps[2]


def test_averages_need_parameters() -> None:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        pytest.raises(GraphError, match="no parameter to average"),
    ):
        fluid.optimizer.ModelAverage(0.5)


def test_decay_extends_optimizers_only() -> None:
    with pytest.raises(GraphTypeError, match="expected a class of optimizers"):
        fluid.contrib.extend_with_decoupled_weight_decay(dict)


def test_bilinear_weights_are_those_of_fluid() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        attr = fluid.ParamAttr("w", initializer=Bilinear())
        fluid.layers.create_parameter([1, 1, 4, 4], "float32", attr=attr)
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        fluid.Executor().run(startup)
        found = np.array(scope.find_var("w").get_tensor()).ravel()
    # Measured with Fluid 1.8.5: a row is a fraction that grows within it.
    np.testing.assert_allclose(found, BILINEAR, atol=1e-6)


def test_chunks_and_edits_add_up() -> None:
    chunks = fluid.metrics.ChunkEvaluator()
    chunks.update(10, np.array([8]), 4)
    assert chunks.eval() == (0.4, 0.5, pytest.approx(4 / 9))
    edits = fluid.metrics.EditDistance("edits")
    edits.update(np.array([[0.0], [3.0], [1.0]]), 3)
    edits.update(np.array([[0.0]]), np.array([1]))
    assert edits.eval() == (1.0, 0.5)
    with pytest.raises(ValueError, match="there is no data"):
        fluid.metrics.EditDistance("new").eval()


def test_the_noise_of_dpsgd_is_normal_and_the_same_again() -> None:
    moves = []
    for _ in range(2):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            attr = fluid.ParamAttr("w", initializer=fluid.initializer.Constant(0.0))
            w = fluid.layers.create_parameter([1], "float32", attr=attr)
            x = fluid.data("x", [None, 1])
            loss = fluid.layers.mean(fluid.layers.elementwise_mul(x, w))
            optimizer = fluid.optimizer.Dpsgd(1.0, 1.0, 1.0, 2.0)
            optimizer.minimize(loss)
            assert optimizer._accumulators == {}  # Fluid's name
        scope, exe = fluid.Scope(), fluid.Executor()
        exe.run(startup, scope=scope)
        seen = []
        for _ in range(400):
            exe.run(main, feed={"x": np.zeros((1, 1), np.float32)}, scope=scope)
            seen.append(float(np.array(scope.find_var("w").get_tensor())[0]))
        moves.append(np.diff(seen))
    np.testing.assert_array_equal(*moves)
    assert abs(moves[0].mean()) < 0.4 and 1.7 < moves[0].std() < 2.3


@pytest.mark.parametrize("kept", [True, False])
def test_running_means_are_averaged_too_unless_that_is_not_wanted(kept: bool) -> None:
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(scope):
        x = fluid.data("x", [None, 2])
        normal = fluid.layers.batch_norm(x, do_model_average_for_mean_and_var=kept)
        loss = fluid.layers.mean(fluid.layers.fc(normal, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        average = fluid.optimizer.ExponentialMovingAverage(0.5)
        average.update()
        executor = fluid.Executor()
        executor.run(startup)
        for value in (1.0, 2.0):
            executor.run(main, feed={"x": np.full((2, 2), value, "float32")}, fetch_list=[loss])
        mean = scope.find_var("batch_norm_0.w_1").get_tensor()
        np.testing.assert_allclose(mean, 0.29, rtol=1e-6)  # 0.1, then 0.9 * 0.1 + 0.1 * 2
        with average.apply(executor):
            averaged = (0.1 * 0.25 + 0.29 * 0.5) / 0.75 if kept else 0.29
            np.testing.assert_allclose(mean, averaged, rtol=1e-6)
        np.testing.assert_allclose(mean, 0.29, rtol=1e-6)
