"""Scripts that know nothing of ranks: as a job they compute what one process computes."""

from __future__ import annotations

from typing import Any

import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.mpi.plain_models import (
    CLASSES,
    FEATURES,
    MODELS,
    Model,
    batch,
    check_job,
    embedded,
    momentum_with_schedule,
    regression,
    sgd,
)
from tests.support.device import install
from tests.support.job import run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (3, 0), (4, 0), (1, 1), (2, 1), (3, 1), (2, 2), (1, 3)]  # trainers, servers


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_job_fetches_what_one_process_fetches(name, trainers, servers):
    check_job(MODELS[name], trainers, servers)


def weight_normalized() -> list[Any]:
    """One direction is so large that two servers cut it."""
    x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
    hidden = layers.fc(x, 2000, param_attr=fluid.WeightNormParamAttr(dim=1, name="wide"))
    guess = layers.fc(hidden, 1, param_attr=fluid.WeightNormParamAttr(dim=None, name="narrow"))
    return [layers.mean(layers.square_error_cost(guess, y)), guess]


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (1, 1), (1, 2)])
def test_lengths_of_weights_begin_as_norms_wherever_they_lie(trainers, servers):
    def minimize(loss: Any) -> None:
        fluid.optimizer.Momentum(1e-4, 0.9).minimize(loss)

    check_job(Model(weight_normalized, minimize), trainers, servers)


def three_regressions() -> list[Any]:
    x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
    guesses = [layers.fc(layers.fc(x, 3, act="tanh"), 1) for _ in range(3)]
    return [layers.mean(layers.square_error_cost(guess, y)) for guess in guesses]


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (3, 0), (2, 1)])
def test_each_of_several_optimizers_of_a_program_has_the_gradients_of_all(trainers, servers):
    """Each has a backward pass of its own, and updates before the next begins."""

    def minimize(first: Any) -> None:
        block = first.block
        losses = [op.output("Out")[0] for op in block.ops if op.type == "mean"]
        for loss in losses:
            fluid.optimizer.Momentum(0.1, 0.9).minimize(block.var(loss))

    check_job(Model(three_regressions, minimize), trainers, servers)


@pytest.mark.parametrize("servers", [0, 1])
def test_values_stay_as_they_were_fetched(servers):
    """Batches of one row, which one trainer has: what is kept of a step is not written again."""

    def script(role: Any) -> Any:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
            cost = layers.square_error_cost(layers.fc(x, 1), y)
            fetch = [layers.reduce_sum(cost), layers.reduce_max(cost)]
            sgd(fetch[0])
        exe = fluid.Executor()
        exe.run(startup)
        kept, copies = [], []
        for step in range(5):
            feed = {name: batch(step, 1)[name] for name in ("x", "y")}
            kept += exe.run(main, feed=feed, fetch_list=fetch)
            copies += [value.copy() for value in kept[-2:]]
        return kept, copies

    for kept, copies in values(run_job(2, servers, script)):
        assert len({float(value[0]) for value in copies}) == 5
        assert [v.tobytes() for v in kept] == [v.tobytes() for v in copies]


@pytest.mark.parametrize("name", ["softmax", "sparse"])
def test_trainers_may_compute_on_a_device(name, monkeypatch):
    """Over a stand-in for cupy: messages leave from, and arrive in, host memory."""
    install(monkeypatch)
    check_job(MODELS[name], 2, 1, fluid.CUDAPlace(0))


def root_of_mean() -> list[Any]:
    return [layers.sqrt(regression()()[0])]


def turned_round() -> list[Any]:
    x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
    return [layers.mean(layers.square_error_cost(layers.fc(layers.reverse(x, [0]), 1), y))]


def within_batch() -> list[Any]:
    """Rows are scored against all rows of the batch."""
    x = layers.data("x", [FEATURES])
    ours, theirs = layers.fc(x, 3), layers.fc(x, 3)
    likely = layers.softmax(layers.matmul(ours, theirs, transpose_y=True))
    return [layers.reduce_mean(layers.log(likely)), ours]


def weighted_by_tokens() -> list[Any]:
    """The loss of a Transformer: a sum over the tokens, divided by how many there are."""
    x, label = layers.data("x", [FEATURES]), layers.data("label", [1], dtype="int64")
    cost = layers.cross_entropy(layers.fc(x, CLASSES, act="softmax"), label)
    weights = layers.cast(layers.reduce_sum(x, dim=1, keep_dim=True) > 0.0, "float32")
    weights = weights + 0.5
    return [layers.reduce_sum(cost * weights) / layers.reduce_sum(weights)]


def sized_by_batch() -> list[Any]:
    x = layers.data("x", [FEATURES])
    ones = layers.fill_constant([layers.shape(x)[0], 1], "float32", 1.0)
    cost = layers.square_error_cost(layers.fc(x, 1), ones)
    return [layers.reduce_sum(cost) / layers.cast(layers.shape(x)[0], "float32")]


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize(
    "net", [root_of_mean, turned_round, within_batch, weighted_by_tokens, sized_by_batch]
)
def test_batches_whose_rows_mix_are_computed_whole_everywhere(net, servers):
    check_job(Model(net, sgd), 2, servers)


@pytest.mark.parametrize("servers", [0, 1])
def test_values_that_cannot_be_joined_are_those_of_whole_batches(servers):
    def net() -> list[Any]:
        loss, guess, _ = regression()()
        return [loss, layers.reverse(guess, [0]), guess]

    check_job(Model(net, sgd), 2, servers)


def with_own_updates(loss: Any) -> None:
    """As scripts do that look at gradients between the backward and the updates."""
    clip = fluid.clip.GradientClipByGlobalNorm(1.0)
    fluid.optimizer.SGD(0.1).apply_gradients(clip(fluid.backward.append_backward(loss)))


@pytest.mark.parametrize("servers", [0, 1])
def test_a_script_may_apply_gradients_by_itself(servers):
    check_job(Model(lambda: list(regression()()), with_own_updates), 2, servers)


def test_what_only_servers_hold_is_not_fetched_from_trainers():
    def script(role: Any) -> Any:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss, _ = embedded()
            momentum_with_schedule(loss)
        exe = fluid.Executor()
        exe.run(startup)
        feed = {n: v for n, v in batch(0, 4).items() if n != "label"}
        return exe.run(main, feed=feed, fetch_list=[loss, "table_velocity_0"])

    errors = [o.error for o in run_job(2, 1, script) if "FeedError" in o.error_types]
    assert errors and all("cannot fetch 'table_velocity_0'" in error for error in errors)
    assert len(values(run_job(2, 0, script))) == 2


@pytest.mark.parametrize(("scale", "devices"), [("Customized", 1), ("One", 2)])
def test_scales_that_one_process_would_take_for_each_device_are_refused(scale, devices):
    def script(role: Any) -> None:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
            loss = layers.mean(layers.square_error_cost(layers.fc(x, 1), y))
            sgd(loss)
        build = fluid.BuildStrategy()
        build.gradient_scale_strategy = build.GradientScaleStrategy[scale]
        program = fluid.CompiledProgram(main).with_data_parallel(
            loss.name, build, places=fluid.cpu_places(devices)
        )
        exe = fluid.Executor()
        exe.run(startup)
        exe.run(program, {n: v for n, v in batch(0, 4).items() if n in "xy"}, [loss])

    for outcome in run_job(2, 0, script, aborts=False):
        assert "PlanError" in outcome.error_types
        assert f"gradient_scale_strategy is {scale} for {devices} devices" in outcome.error
