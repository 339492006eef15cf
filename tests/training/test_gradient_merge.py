"""Gradients merged over steps: by numbers, with all that follows them, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import CheckpointError, GraphError, GraphTypeError, PlanError
from hpcdist.runtime.batches.analysis import SharedProgram

ROWS, STEPS = 4, 12


def momentum(rate: Any = 0.1) -> Any:
    clip = fluid.clip.GradientClipByGlobalNorm(0.3)
    decay = fluid.regularizer.L2Decay(0.1)
    return fluid.optimizer.Momentum(rate, 0.9, regularization=decay, grad_clip=clip)


def scheduled_adam() -> Any:
    return fluid.optimizer.Adam(layers.exponential_decay(0.1, 2, 0.5, staircase=True))


def build(make: Any) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x, y = layers.data("x", [5]), layers.data("y", [1])
        guess = layers.fc(layers.fc(x, 6, act="tanh"), 1)
        loss = layers.mean(layers.square_error_cost(guess, y))
        make().minimize(loss)
    return main, startup, loss


def batches() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.normal(size=(ROWS, 5)).astype("float32"),
            "y": rng.normal(size=(ROWS, 1)).astype("float32"),
        }
        for _ in range(STEPS)
    ]


def trained(make: Any, feeds: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    main, startup, loss = build(make)
    exe = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        losses = [float(exe.run(main, feed=f, fetch_list=[loss])[0][0]) for f in feeds]
        return losses, parameters(main)


def parameters(main: Any) -> dict[str, np.ndarray]:
    held = fluid.global_scope()
    return {p.name: np.array(held.find_var(p.name).get_tensor()) for p in main.all_parameters()}


@pytest.mark.parametrize("inner", [momentum, scheduled_adam])
@pytest.mark.parametrize("k", [1, 3, 4])
def test_k_steps_are_one_step_of_a_larger_batch(inner: Any, k: int) -> None:
    """With clip, decay and a schedule, which see one step."""
    fed = batches()
    large = [
        {name: np.concatenate([f[name] for f in fed[i : i + k]]) for name in ("x", "y")}
        for i in range(0, STEPS, k)
    ]
    losses, found = trained(lambda: fluid.optimizer.GradientMergeOptimizer(inner(), k), fed)
    wanted_losses, wanted = trained(inner, large)
    means = np.reshape(losses, (-1, k)).mean(axis=1)
    np.testing.assert_allclose(means, wanted_losses, rtol=1e-5)
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_the_sum_of_gradients_may_update() -> None:
    rate = 0.01

    def merged() -> Any:
        return fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(rate), 3, avg=False)

    _, found = trained(merged, batches())
    _, wanted = trained(
        lambda: fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(3 * rate), 3), batches()
    )
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_only_the_last_of_the_steps_moves_anything() -> None:
    main, startup, _ = build(
        lambda: fluid.optimizer.GradientMergeOptimizer(scheduled_adam(), k_steps=3)
    )
    merging = ("gradient_merge", "GRADIENT_MERGE")
    kept = [
        v.name
        for v in main.list_vars()
        if v.persistable and not any(word in v.name for word in merging)
    ]
    exe = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)

        def state() -> dict[str, bytes]:
            held = fluid.global_scope()
            return {n: np.array(held.find_var(n).get_tensor()).tobytes() for n in kept}

        for number, feed in enumerate(batches(), 1):
            before = state()
            exe.run(main, feed=feed)
            moved = {name for name, value in state().items() if value != before[name]}
            if number % 3:
                assert not moved
            else:
                assert moved >= {p.name for p in main.all_parameters()} | {"@LR_DECAY_COUNTER@"}


def in_one_scope(k: int) -> list[list[bool]]:
    """Train two programs of one startup in turns; return which of them moved, by round."""
    startup = fluid.Program()
    programs = []
    for name in ("a", "b"):
        main = fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            x, y = layers.data("x", [5]), layers.data("y", [1])
            guess = layers.fc(x, 1, param_attr=f"{name}.w", bias_attr=f"{name}.b")
            loss = layers.mean(layers.square_error_cost(guess, y))
            fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), k).minimize(loss)
        programs.append(main)
    exe, rounds = fluid.Executor(), []
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        for feed in batches()[:6]:
            moved = []
            for main in programs:
                before = parameters(main)
                exe.run(main, feed=feed)
                moved.append(any((parameters(main)[n] != v).any() for n, v in before.items()))
            rounds.append(moved)
    return rounds


@pytest.mark.parametrize("k", [1, 2, 3])
def test_programs_of_one_scope_count_their_steps_apart(k: int) -> None:
    assert in_one_scope(k) == [[number % k == 0] * 2 for number in range(1, 7)]


def test_gradients_of_a_program_are_merged_once() -> None:
    main, startup, loss = build(merged_sgd)
    with (
        fluid.program_guard(main, startup),
        pytest.raises(GraphError, match="this program's gradients are merged already"),
    ):
        merged_sgd().minimize(loss)


def test_a_model_that_is_saved_between_updates_is_without_merged_gradients(tmp_path: Any) -> None:
    def merged() -> Any:
        return fluid.optimizer.GradientMergeOptimizer(momentum(), 3)

    main, startup, _ = build(merged)
    exe = fluid.Executor()
    feeds = batches()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        for feed in feeds[:4]:
            exe.run(main, feed=feed)
        fluid.io.save_persistables(exe, str(tmp_path), main)
        fluid.save(main, str(tmp_path / "whole"))
    for load in (
        lambda: fluid.io.load_persistables(exe, str(tmp_path), main),
        lambda: fluid.load(main, str(tmp_path / "whole"), exe),
    ):
        with fluid.scope_guard(fluid.Scope()):
            exe.run(startup)
            load()
            for feed in feeds[3:]:
                exe.run(main, feed=feed)
            found = parameters(main)
        _, wanted = trained(merged, feeds)
        for name in wanted:
            assert found[name].tobytes() == wanted[name].tobytes()


@pytest.mark.parametrize("whole", [False, True])
def test_a_job_that_loads_merges_anew(tmp_path: Any, whole: bool) -> None:
    """Also one that has merged two of three steps when it loads."""
    main, startup, _ = build(lambda: fluid.optimizer.GradientMergeOptimizer(momentum(), 3))
    exe, feeds = fluid.Executor(), batches()
    path = str(tmp_path / "model")
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        fluid.save(main, path)
        fluid.io.save_persistables(exe, path, main)
        for feed in feeds[:5]:
            exe.run(main, feed=feed)
        if whole:
            fluid.load(main, path, exe)
        else:
            fluid.io.load_persistables(exe, path, main)
        for feed in feeds[:3]:
            exe.run(main, feed=feed)
        found = parameters(main)
    _, wanted = trained(lambda: fluid.optimizer.GradientMergeOptimizer(momentum(), 3), feeds[:3])
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(("merged", "k_steps"), [(3, 4), (3, 5), (0, 2), (0, 1)])
def test_steps_that_were_merged_count_when_a_checkpoint_is_restored(
    tmp_path: Any, merged: int, k_steps: int
) -> None:
    interrupted(tmp_path, merged)
    resumed(tmp_path, k_steps)


@pytest.mark.parametrize("k_steps", [1, 2, 3])
def test_more_steps_than_an_update_takes_are_not_restored(tmp_path: Any, k_steps: int) -> None:
    interrupted(tmp_path, 3)
    words = f"gradients of 3 steps had been merged, this program updates after {k_steps}"
    with pytest.raises(CheckpointError, match=words):
        resumed(tmp_path, k_steps)


def merging(k_steps: int) -> Any:
    return build(lambda: fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), k_steps))


def interrupted(directory: Any, steps: int) -> None:
    """Save a job that updates after four steps, after some."""
    main, startup, _ = merging(4)
    exe = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        for feed in batches()[:steps]:
            exe.run(main, feed=feed)
        fluid.checkpoint.save(exe, directory, steps, main_program=main)


def resumed(directory: Any, k_steps: int) -> None:
    """Go on with that job until it updates; it does by the mean of the ``k_steps`` first steps."""
    main, startup, _ = merging(k_steps)
    exe = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        restored = fluid.checkpoint.restore(exe, directory, main_program=main)
        assert restored is not None
        for feed in batches()[restored.step : k_steps]:
            exe.run(main, feed=feed)
        found = parameters(main)
    _, wanted = trained(
        lambda: fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), k_steps),
        batches()[:k_steps],
    )
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def test_trainers_divide_its_batches() -> None:
    main, _, _ = build(lambda: fluid.optimizer.GradientMergeOptimizer(momentum(), 3))
    assert not SharedProgram(main, 2).why_whole


# -- refused ---------------------------------------------------------------------------------------
def test_rows_of_tables_are_not_merged() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        ids = layers.data("ids", [1], dtype="int64")
        loss = layers.mean(layers.embedding(ids, [7, 2], is_sparse=True, param_attr="table"))
        with pytest.raises(GraphError, match="gradients of 'table' are rows.*is_sparse=False"):
            fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), 2).minimize(loss)


def test_a_loss_without_parameters_trains_nothing_and_says_so() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss = layers.mean(layers.data("x", [5]))
        optimizer = fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), 2)
        with pytest.warns(UserWarning, match="depends on no trainable parameter: nothing"):
            assert optimizer.minimize(loss) == ([], [])


def test_what_it_is_made_of_is_checked() -> None:
    with pytest.raises(GraphTypeError, match="GradientMergeOptimizer: expected an optimizer"):
        fluid.optimizer.GradientMergeOptimizer("sgd")
    for k_steps, error in ((0, GraphError), (True, GraphTypeError), (1.5, GraphTypeError)):
        with pytest.raises(error, match="GradientMergeOptimizer: k_steps: expected"):
            fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), k_steps)
    made = fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), np.int64(2))
    assert type(made.k_steps) is int


def merged_sgd() -> Any:
    return fluid.optimizer.GradientMergeOptimizer(fluid.optimizer.SGD(0.1), 2)


def test_local_sgd_and_geo_are_refused() -> None:
    main, startup, _ = build(merged_sgd)
    config = fluid.DistributeTranspilerConfig(mode="collective", collective_mode="local_sgd")
    with pytest.raises(PlanError, match="local SGD averages parameters after updates"):
        fluid.DistributeTranspiler(config).transpile(
            0, main, trainers="a:1,b:1", startup_program=startup, current_endpoint="a:1"
        )
    geo = fluid.transpiler.GeoSgdTranspiler()
    with pytest.raises(PlanError, match="GEO exchanges what updates have changed"):
        geo.transpile(0, main, "c:1", 2, False, startup)
        geo.get_trainer_program()


def test_several_devices_of_a_process_are_refused(monkeypatch: Any) -> None:
    monkeypatch.setenv("CPU_NUM", "2")
    main, startup, loss = build(merged_sgd)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(startup)
        compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name)
        with pytest.raises(PlanError, match="merged over steps on one device"):
            exe.run(compiled, feed=batches()[0])
