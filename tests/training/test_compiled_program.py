"""CompiledProgram and ParallelExecutor on the devices of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.base.trace.recorder import recorder
from hpcdist.executor.executor import Executor
from tests.support.compiled_network import batch, network

Scale = fluid.BuildStrategy.GradientScaleStrategy


def trained(
    places: int, rows: int = 6, vocabulary: int = 0, steps: int = 4, **settings: Any
) -> Any:
    """Return losses and parameters after some steps on ``places`` devices; 0: a plain Executor."""
    with fluid.scope_guard(fluid.Scope()):
        main, startup, loss, _ = network(vocabulary=vocabulary)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        program = main
        if places:
            strategy = fluid.BuildStrategy(**settings)
            program = fluid.CompiledProgram(main).with_data_parallel(
                loss, strategy, places=[fluid.CPUPlace()] * places
            )
        losses = []
        for step in range(steps):
            fed = batch(step, 6)
            if not vocabulary:
                del fed["ids"]
            losses.append(exe.run(program, feed=fed, fetch_list=[loss])[0])
        scope = fluid.global_scope()
        return losses, {
            p.name: np.array(scope.find_var(p.name).get_tensor()) for p in main.all_parameters()
        }


@pytest.mark.parametrize("vocabulary", [0, 7])
@pytest.mark.parametrize("places", [1, 2, 3])
def test_devices_train_as_one_on_all_rows(places, vocabulary):
    losses, wanted = trained(0, vocabulary=vocabulary)
    found, parameters = trained(places, vocabulary=vocabulary)
    assert [value.shape for value in found] == [(places,)] * 4
    np.testing.assert_allclose([v.mean() for v in found], np.ravel(losses), rtol=1e-5)
    for name, value in wanted.items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-5, atol=1e-6)


def test_unfused_and_reduced_give_the_same():
    reduce = fluid.BuildStrategy.ReduceStrategy.Reduce
    for settings in ({"fuse_all_reduce_ops": False}, {"reduce_strategy": reduce}):
        found = trained(2, **settings)[0]
        np.testing.assert_array_equal(found, trained(2)[0])


def test_the_loss_gradient_starts_from_one_on_every_device():
    # The sum over two devices instead of the mean: as with twice the learning rate, at first.
    def first_step(places: int, rate: float, **settings: Any) -> np.ndarray:
        with fluid.scope_guard(fluid.Scope()):
            main, startup = fluid.Program(), fluid.Program()
            with fluid.unique_name.guard(), fluid.program_guard(main, startup):
                x = layers.data("x", [3])
                loss = layers.mean(layers.fc(x, 1, param_attr="w", bias_attr=False))
                fluid.optimizer.SGD(rate).minimize(loss)
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            before = np.array(fluid.global_scope().find_var("w").get_tensor())
            compiled = fluid.CompiledProgram(main).with_data_parallel(
                loss.name, fluid.BuildStrategy(**settings), places=[fluid.CPUPlace()] * places
            )
            feed = {"x": batch(0, 4)["x"]}
            if settings.get("gradient_scale_strategy") is Scale.Customized:
                feed[loss.name + "@GRAD"] = np.full(places, 0.25, np.float32)
            exe.run(compiled, feed=feed, fetch_list=[loss.name])
            return before - np.array(fluid.global_scope().find_var("w").get_tensor())

    mean = first_step(2, 0.1)
    np.testing.assert_allclose(
        first_step(2, 0.1, gradient_scale_strategy=Scale.One), 2 * mean, rtol=1e-5
    )
    customized = first_step(2, 0.1, gradient_scale_strategy=Scale.Customized)
    np.testing.assert_allclose(customized, mean / 2, rtol=1e-5)


@pytest.fixture
def ready(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    with fluid.scope_guard(fluid.Scope()):
        main, startup, loss, guess = network()
        fluid.Executor(fluid.CPUPlace()).run(startup)
        yield main, loss, guess


def test_a_dict_is_divided_and_a_list_is_one_per_device(ready):
    main, _, guess = ready
    test = main.clone(for_test=True)
    exe = fluid.ParallelExecutor(False, main_program=test)
    assert exe.device_count == 2
    fed = {k: v for k, v in batch(0, 5).items() if k != "ids"}
    (rows,) = exe.run([guess], feed=fed)
    assert rows.shape == (5, 1)
    (alone,) = fluid.Executor(fluid.CPUPlace()).run(test, feed=fed, fetch_list=[guess])
    np.testing.assert_array_equal(rows, alone)
    parts = [{k: v[:3] for k, v in fed.items()}, {k: v[3:] for k, v in fed.items()}]
    (again,) = exe.run([guess.name], feed_dict=parts)
    np.testing.assert_array_equal(again, rows)
    (weights,) = exe.run(["fc_0.b_0"], feed=fed)
    assert weights.shape == (8,)  # the four of each device


@pytest.mark.parametrize(
    ("devices", "rows", "parts"),
    [(2, 5, [3, 2]), (2, 7, [4, 3]), (3, 7, [3, 3, 1]), (3, 4, [2, 2]), (4, 9, [3, 3, 3])],
)
def test_batches_are_divided_as_fluid_does(devices, rows, parts):
    """Measured with Fluid 1.8.5, for a program that does not train."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        count = layers.reduce_sum(layers.data("x", [1]))
    places = [fluid.CPUPlace()] * devices
    compiled = fluid.CompiledProgram(main).with_data_parallel(places=places)
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        fed = {"x": np.ones((rows, 1), np.float32)}
        (found,) = exe.run(compiled, feed=fed, fetch_list=[count])
    np.testing.assert_array_equal(found, parts)


def test_a_step_leaves_no_device_without_rows():
    losses, parameters = trained(4, steps=1)  # 6 rows: Fluid would take 2, 2, 2
    assert losses[0].shape == (4,)
    assert np.isfinite(parameters["fc_0.w_0"]).all()


def test_values_of_each_device_apart(ready):
    main, loss, guess = ready
    exe = fluid.Executor(fluid.CPUPlace())
    compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name)
    fed = {k: v for k, v in batch(0, 6).items() if k != "ids"}
    ((first, second),) = exe.run(compiled, feed=fed, fetch_list=[guess], return_merged=False)
    assert first.shape == second.shape == (3, 1)


def test_what_devices_share_is_fed_whole(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        rate = layers.create_global_var([1], 1.0, "float32", persistable=True, name="rate")
        loss = layers.mean(layers.fc(fluid.data("x", [None, 3]), 1, bias_attr=False))
        fluid.optimizer.SGD(rate).minimize(loss)
        main = fluid.default_main_program()
        exe = fluid.Executor(fluid.CPUPlace())
        compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name)
        with fluid.scope_guard(fluid.Scope()):
            exe.run(fluid.default_startup_program())
            weights = fluid.global_scope().find_var("fc_0.w_0").get_tensor()
            before = np.array(weights)
            x, quarter = np.ones((2, 3), np.float32), np.array([0.25], np.float32)
            exe.run(compiled, feed={"x": x, "rate": quarter})
            np.testing.assert_allclose(np.array(weights), before - 0.25, 1e-5)
            halves = [{"x": x[:1], "rate": quarter}, {"x": x[1:], "rate": quarter}]
            exe.run(compiled, feed=halves)
            np.testing.assert_allclose(np.array(weights), before - 0.5, 1e-5)
            halves[1]["rate"] = 2 * quarter
            with pytest.raises(ValueError, match="'rate': all 2 devices share it"):
                exe.run(compiled, feed=halves)


def test_the_last_feeds_of_an_evaluation_may_be_fewer_than_devices(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "4")
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 3])
        positive = layers.relu(x)
        compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel()
        assert compiled._program is fluid.default_main_program()
        exe = fluid.Executor(fluid.CPUPlace())
        rows = np.arange(-6, 6, dtype=np.float32).reshape(4, 3)
        for number in (1, 3, 4):
            feeds = [{"x": rows[i : i + 1]} for i in range(number)]
            for feed in (feeds, {"x": rows[:number]}):
                (found,) = exe.run(compiled, feed=feed, fetch_list=[positive])
                np.testing.assert_array_equal(found, np.maximum(rows[:number], 0))
        with pytest.raises(ValueError, match="expected a list of 4 dicts"):
            exe.run(compiled, feed=[{"x": rows}] * 5, fetch_list=[positive])


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        ([{}], "expected a list of 2 dicts, one for each device, got 1"),
        ({"x": np.zeros((1, 3), np.float32)}, "1 rows cannot be divided among 2 devices"),
        ("x", "expected a dict, got str"),
    ],
)
def test_feeds_that_do_not_fit(ready, feed, words):
    main, loss, _ = ready
    with pytest.raises((ValueError, TypeError), match=words):
        fluid.ParallelExecutor(False, loss.name, main).run([loss], feed=feed)


def test_what_is_wrong_is_said_when_it_is_made(ready, monkeypatch):
    main, loss, _ = ready
    with pytest.raises(AssertionError, match="loss_name must be given"):
        fluid.CompiledProgram(main).with_data_parallel()
    cost = next(op.input("X")[0] for op in main.global_block().ops if op.type == "mean")
    for name in ("x", cost):  # as in Fluid: the Program knows what it minimizes
        fluid.CompiledProgram(main).with_data_parallel(name)
    with pytest.raises(ValueError, match=r"no variable 'mean_0.tmp'; did you mean .*mean_0\.tmp_0"):
        fluid.CompiledProgram(main).with_data_parallel("mean_0.tmp")
    with pytest.raises(TypeError, match="expected a Program, got str"):
        fluid.CompiledProgram("main")
    with pytest.raises(TypeError, match="share_vars_from: expected a ParallelExecutor"):
        fluid.ParallelExecutor(False, loss.name, main, share_vars_from=main)
    with pytest.raises(ValueError, match="not transpiled for so many"):
        fluid.ParallelExecutor(False, loss.name, main, num_trainers=2)
    with pytest.raises(ValueError, match="one GPU, got 2 places"):
        places = [fluid.CUDAPlace(0), fluid.CUDAPlace(1)]
        fluid.CompiledProgram(main).with_data_parallel(loss.name, places=places)
    once = fluid.CompiledProgram(main).with_data_parallel(loss.name)
    with pytest.raises(AssertionError, match="data parallel already"):
        once.with_data_parallel(loss.name)
    monkeypatch.setenv("CPU_NUM", "many")
    with pytest.raises(ValueError, match="CPU_NUM: expected an integer >= 1, got 'many'"):
        fluid.ParallelExecutor(False, loss.name, main).run([loss], feed={})


def test_the_loss_of_mixed_precision_is_the_one_that_the_user_made():
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
        loss = layers.mean(layers.fc(layers.data("x", [3]), 1))
        optimizer = fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.1))
        optimizer.minimize(loss)
    for name in (loss.name, optimizer.get_scaled_loss().name):
        fluid.CompiledProgram(main).with_data_parallel(name)


def test_what_devices_keep_for_themselves_begins_alike(ready):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = layers.data("x", [1])
        seen = layers.create_global_var([1], 10.0, "float32", persistable=True, name="seen")
        layers.sums([seen, layers.reduce_sum(x)], out=seen)
        loss = layers.mean(layers.fc(x, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
    fluid.Executor(fluid.CPUPlace()).run(startup)
    exe = fluid.ParallelExecutor(False, loss.name, main)
    x = np.array([[1], [2], [3], [4]], np.float32)
    (kept,) = exe.run(["seen"], feed={"x": x})
    np.testing.assert_array_equal(kept, [13, 17])
    (kept,) = exe.run(["seen"], feed={"x": x})
    np.testing.assert_array_equal(kept, [16, 24])


def test_a_program_for_one_trainer_runs_alone():
    with fluid.scope_guard(fluid.Scope()):
        main, startup, loss, _ = network()
        config = fluid.DistributeTranspilerConfig(mode="nccl2")
        fluid.DistributeTranspiler(config).transpile(
            0, main, trainers="a:1", startup_program=startup, current_endpoint="a:1"
        )
        fluid.Executor(fluid.CPUPlace()).run(startup)
        fed = {k: v for k, v in batch(0, 6).items() if k != "ids"}
        (value,) = fluid.ParallelExecutor(False, loss.name, main).run([loss], feed=fed)
        np.testing.assert_allclose(value, trained(0, steps=1)[0][0], rtol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_sequences_of_all_devices_are_joined_as_tensors(monkeypatch, devices):
    monkeypatch.setenv("CPU_NUM", str(devices))
    main = fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, fluid.Program()):
        x = fluid.data("x", [None, 1], lod_level=1)
        twice, mean = layers.scale(x, 2.0), layers.mean(x)
    fed = fluid.create_lod_tensor(np.arange(6, dtype=np.float32)[:, None], [[1, 3, 2]], None)
    exe = fluid.Executor(fluid.CPUPlace())
    program = fluid.CompiledProgram(main).with_data_parallel()
    rows, means = exe.run(program, {"x": fed}, [twice, mean], return_numpy=False)
    assert rows.recursive_sequence_lengths() == [[1, 3, 2]] and rows._is_initialized()
    np.testing.assert_array_equal(np.array(rows).ravel(), 2 * np.arange(6))
    assert isinstance(means, fluid.LoDTensor) and means.shape() == [devices]


@pytest.mark.parametrize("share", [False, True])
def test_a_test_program_takes_each_devices_running_statistics(share):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        normed = layers.batch_norm(layers.data("x", [2]), momentum=0.0)
        test = main.clone(for_test=True)
        loss = layers.mean(layers.fc(normed, 1))
        fluid.optimizer.SGD(0.0).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    places = [fluid.CPUPlace()] * 2
    train = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=places)
    shared = fluid.CompiledProgram(test).with_data_parallel(
        share_vars_from=train if share else None, places=places
    )
    x = np.random.default_rng(0).normal(3, 2, (8, 2)).astype("float32")
    exe.run(train, {"x": x}, [loss])
    (got,) = exe.run(shared, {"x": x}, [normed])
    wanted = [(part - part.mean(0)) / np.sqrt(part.var(0) + 1e-5) for part in np.split(x, 2)]
    np.testing.assert_allclose(got, np.concatenate(wanted), rtol=1e-4)


def test_steps_of_one_device_are_bound_until_what_divides_them_changes(monkeypatch):
    with fluid.scope_guard(fluid.Scope()):
        main, startup, loss, _ = network()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name)
        taken = []

        def fed(seed):
            return {name: batch(seed, 4)[name] for name in ("x", "y")}

        monkeypatch.setattr(
            exe, "rest_of_step", lambda step: taken.append(step) or Executor.rest_of_step(exe, step)
        )
        for seed in range(6):
            exe.run(compiled, fed(seed), [loss])
        assert compiled.undivided(exe.place) is not None
        monkeypatch.setattr(recorder, "mask", (1 << 20) - 1)
        taken.clear()
        (alone,) = exe.run(compiled, fed(6), [loss])
        assert alone.shape == (1,)
        assert not taken
        monkeypatch.setenv("CPU_NUM", "2")
        assert compiled.undivided(exe.place) is None
        (both,) = exe.run(compiled, fed(7), [loss])
        assert both.shape == (2,)
        (step,) = taken
        assert step.program is not main
