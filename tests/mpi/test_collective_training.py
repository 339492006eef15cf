"""Scripts that transpile for training without servers: against one process on all batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.transpiler.collective import GradAllReduce, LocalSGD
from tests.mpi.collective_jobs import (
    STEPS,
    batch,
    check,
    locally,
    momentum_clipped_with_decay,
    names,
    network,
    parameters,
    refused,
    transpile,
)
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SIZES = [2, 3, 4]


def sgd(loss: Any) -> None:
    fluid.optimizer.SGD(0.1).minimize(loss)


MINIMIZE = {"sgd": sgd, "momentum": momentum_clipped_with_decay}


@pytest.mark.parametrize("trainers", SIZES)
@pytest.mark.parametrize("name", MINIMIZE)
def test_nccl2_with_parallel_executor(name, trainers):
    def script(role: Any) -> Any:
        main, startup, loss = network(MINIMIZE[name], seed=3 if role.index == 0 else 40)
        transpile(main, startup, role, trainers, mode="nccl2", nccl_comm_num=2)
        fluid.Executor(fluid.CPUPlace()).run(startup)
        exe = fluid.ParallelExecutor(
            False, loss.name, main, num_trainers=trainers, trainer_id=role.index
        )
        losses = [
            float(exe.run([loss.name], batch(step, role.index))[0][0]) for step in range(STEPS)
        ]
        return losses, parameters(main)

    check(trainers, MINIMIZE[name], script)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_parallel_executor_takes_over_the_values_of_trainer_0(devices, monkeypatch):
    monkeypatch.setenv("CPU_NUM", str(devices))

    def script(role: Any) -> Any:
        main, startup, loss = network(momentum_clipped_with_decay, seed=3 + role.index)
        transpile(main, startup, role, 2, mode="nccl2")
        fluid.Executor(fluid.CPUPlace()).run(startup)
        before = parameters(main)
        exe = fluid.ParallelExecutor(False, loss.name, main, num_trainers=2, trainer_id=role.index)
        after = parameters(main)
        exe.run([loss.name], batch(0, role.index))
        return before, after, parameters(main)

    first, second = values(run_job(2, 0, script))
    for name, value in first[0].items():
        assert first[1][name].tobytes() == second[1][name].tobytes() == value.tobytes()
        assert first[2][name].tobytes() == second[2][name].tobytes()
    assert any((first[0][name] != second[0][name]).any() for name in first[0])


@pytest.mark.parametrize("reduce", fluid.BuildStrategy.ReduceStrategy)
@pytest.mark.parametrize("devices", [1, 2])
def test_nccl2_with_a_compiled_program(devices, reduce, monkeypatch):
    monkeypatch.setenv("CPU_NUM", str(devices))

    def script(role: Any) -> Any:
        main, startup, loss = network(sgd)
        transpile(main, startup, role, 2, mode="nccl2")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        strategy = fluid.BuildStrategy()
        strategy.num_trainers, strategy.trainer_id = 2, role.index
        strategy.reduce_strategy = reduce
        compiled = fluid.CompiledProgram(main).with_data_parallel(loss.name, strategy)
        losses = []
        for step in range(STEPS):
            (value,) = exe.run(compiled, feed=batch(step, role.index), fetch_list=[loss])
            assert value.shape == (devices,)
            losses.append(float(value.mean()))
        return losses, parameters(main)

    check(2, sgd, script)


@pytest.mark.parametrize("how", ["transpiler", "class", "executor alone"])
@pytest.mark.parametrize("trainers", SIZES)
def test_grad_allreduce(trainers, how):
    def script(role: Any) -> Any:
        main, startup, loss = network(momentum_clipped_with_decay, seed=3 + role.index)
        if how == "class":
            own = names(trainers)
            GradAllReduce().transpile(startup, main, role.index, own, own[role.index], False)
        elif how == "transpiler":
            mode = {"mode": "collective", "collective_mode": "grad_allreduce"}
            transpile(main, startup, role, trainers, **mode)
        else:
            transpile(main, startup, role, trainers, mode="nccl2")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        losses = [
            float(exe.run(main, feed=batch(step, role.index), fetch_list=[loss])[0][0])
            for step in range(STEPS)
        ]
        return losses, parameters(main)

    check(trainers, momentum_clipped_with_decay, script)


@pytest.mark.parametrize("trainers", SIZES)
def test_local_sgd_averages_parameters_after_every_update(trainers):
    def script(role: Any) -> Any:
        main, startup, _ = network(sgd, seed=3 + role.index)
        own = names(trainers)
        LocalSGD().transpile(startup, main, role.index, own, own[role.index])
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(STEPS):
            exe.run(main, feed=batch(step, role.index))
        return parameters(main)

    # By SGD a mean of updated parameters is an update by the mean gradient.
    wanted = locally(trainers, sgd)[1]
    found = values(run_job(trainers, 0, script))
    for trained in found:
        for name, value in wanted.items():
            np.testing.assert_allclose(trained[name], value, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(trained[name], found[0][name])


def words(step: int, trainer: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 * step + trainer)
    rows = 3 + 2 * trainer  # of each trainer another number
    return {"word": rng.integers(0, 9, (rows, 1)), "y": rng.random((rows, 1), np.float32)}


def sparse_table(**settings: Any) -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        word, y = layers.data("word", [1], dtype="int64"), layers.data("y", [1])
        rows = layers.embedding(word, [9, 4], is_sparse=True, param_attr="table")
        loss = layers.mean(layers.square_error_cost(layers.fc(rows, 1), y))
        fluid.optimizer.Momentum(0.1, 0.9, **settings).minimize(loss)
    return main, startup, loss


CHANGED: dict[str, dict[str, Any]] = {
    "l1": {"regularization": fluid.regularizer.L1Decay(0.05)},
    "l2": {"regularization": fluid.regularizer.L2Decay(0.05)},
    "by value": {"grad_clip": fluid.clip.GradientClipByValue(0.02)},
    "by norm": {"grad_clip": fluid.clip.GradientClipByNorm(0.05)},
    "by global norm": {"grad_clip": fluid.clip.GradientClipByGlobalNorm(0.1)},
}


@pytest.mark.parametrize("how", [None, "grad_allreduce"])
@pytest.mark.parametrize("changed", CHANGED)
def test_a_sparse_gradient_is_clipped_and_regularized(changed, how):
    settings = CHANGED[changed]

    def script(role: Any) -> Any:
        main, startup, loss = sparse_table(**settings)
        mode = "collective" if how else "nccl2"
        transpile(main, startup, role, 2, mode=mode, collective_mode=how)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(STEPS):
            exe.run(main, feed=words(step, role.index), fetch_list=[loss])
        return parameters(main)

    found = values(run_job(2, 0, script))
    with alone():  # each trainer's mean counts 1/2, whatever its number of rows
        main, startup, _ = two_means(settings)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(STEPS):
            exe.run(main, feed=words(step, 0) | renamed(words(step, 1)))
        for name, value in parameters(main).items():
            np.testing.assert_allclose(found[0][name], value, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(found[0][name], found[1][name])


def renamed(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{name}_of_1": value for name, value in feed.items()}


def two_means(settings: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Build what both trainers do as one network: the mean of their two losses."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        means = []
        for suffix in ("", "_of_1"):
            word = layers.data("word" + suffix, [1], dtype="int64")
            y = layers.data("y" + suffix, [1])
            rows = layers.embedding(word, [9, 4], is_sparse=True, param_attr="table")
            out = layers.fc(rows, 1, param_attr="fc_0.w_0", bias_attr="fc_0.b_0")
            means.append(layers.mean(layers.square_error_cost(out, y)))
        loss = layers.scale(layers.sums(means), 0.5)
        fluid.optimizer.Momentum(0.1, 0.9, **settings).minimize(loss)
    return main, startup, loss


@pytest.mark.parametrize("flag", ["FLAGS_cpu_deterministic", "FLAGS_cudnn_deterministic"])
def test_the_same_bits_from_run_to_run(flag, monkeypatch):
    monkeypatch.setenv(flag, "1")

    def script(role: Any) -> Any:
        main, startup, _ = network(sgd)
        transpile(main, startup, role, 3, mode="nccl2")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(STEPS):
            exe.run(main, feed=batch(step, role.index))
        return {name: value.tobytes() for name, value in parameters(main).items()}

    first, second = (values(run_job(3, 0, script)) for _ in range(2))
    assert first == second == [first[0]] * 3


def test_a_flag_that_a_script_sets_by_itself_counts(monkeypatch):
    def script(role: Any) -> None:
        main, startup, _ = network(sgd)
        transpile(main, startup, role, 2, mode="nccl2")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        monkeypatch.setenv("FLAGS_cpu_deterministic", str(role.index))
        exe.run(main, feed=batch(0, role.index))

    refused(script, "with equal settings and FLAGS_")


def test_persistable_values_that_the_forward_pass_keeps_are_each_ranks_own():
    def count_rows(loss: Any) -> None:
        seen = layers.create_global_var([1], 0.0, "float32", persistable=True, name="seen")
        x = loss.block.program.global_block().var("x")
        layers.sums([seen, layers.reduce_sum(x)], out=seen)
        fluid.optimizer.SGD(0.1).minimize(loss)

    def script(role: Any) -> Any:
        main, startup, loss = network(count_rows)
        transpile(main, startup, role, 2, mode="nccl2")
        fluid.Executor(fluid.CPUPlace()).run(startup)
        exe = fluid.ParallelExecutor(False, loss.name, main)
        exe.run([loss.name], batch(0, role.index))
        return float(np.array(fluid.global_scope().find_var("seen").get_tensor())[0])

    found = values(run_job(2, 0, script))
    np.testing.assert_allclose(found, [batch(0, k)["x"].sum() for k in range(2)], rtol=1e-5)


def test_a_job_of_another_size_is_refused():
    def script(role: Any) -> None:
        main, startup, _ = network(sgd)
        transpile(main, startup, role, 3, mode="nccl2")
        fluid.Executor(fluid.CPUPlace()).run(startup)

    refused(script, "is trainer 0 of 2, but the script transpiles for trainer 0 of 3")


def test_programs_for_servers_are_refused_where_there_are_none():
    def script(role: Any) -> None:
        main, startup, _ = network(sgd)
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(role.index, main, "a:1", 2, startup_program=startup)
        fluid.Executor(fluid.CPUPlace()).run(startup)

    refused(script, "talks to parameter servers, but this job has none")


def test_trainers_that_build_different_programs_are_refused():
    def script(role: Any) -> None:
        rate = 0.1 * (role.index + 1)
        main, startup, _ = network(lambda loss: fluid.optimizer.Momentum(0.1, rate).minimize(loss))
        transpile(main, startup, role, 2, mode="nccl2")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        exe.run(main, feed=batch(0, role.index))

    refused(script, "differs from that of trainers [1]")


def test_a_trainer_that_ends_early_is_named():
    def script(role: Any) -> None:
        main, startup, _ = network(sgd)
        transpile(main, startup, role, 2, mode="nccl2")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(2 + role.index):
            exe.run(main, feed=batch(step, role.index))
        exe.close()

    refused(script, "the script of trainer 0 has ended after 2 steps")


def test_ragged_numbers_of_trainers_are_checked_by_parallel_executor():
    def script(role: Any) -> None:
        main, startup, loss = network(sgd)
        transpile(main, startup, role, 2, mode="nccl2")
        fluid.ParallelExecutor(False, loss.name, main, num_trainers=3, trainer_id=role.index)

    refused(script, "num_trainers: expected 2, as many as transpile() was given endpoints, got 3")
