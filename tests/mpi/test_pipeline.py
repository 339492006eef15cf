"""Stages of a Program on ranks of their own: the step is that of one process."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import CommError, FeedError, HpcdistError
from hpcdist.fleet import DistributedStrategy, Fleet
from hpcdist.launch import environment
from hpcdist.runtime.pipeline import stage_steps
from hpcdist.runtime.pipeline.rank_stage import RankStage
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

STEPS = 4


def mlp() -> Any:
    x, y = fluid.data("x", [None, 6]), fluid.data("y", [None, 1])
    first = layers.fc(x, 5, act="tanh")
    second = layers.fc(first, 4, act="relu")
    joined = layers.concat([second, first], axis=1)  # past a stage, if there are three
    guess = layers.fc(joined, 1)
    loss = layers.mean(layers.square_error_cost(guess, y))
    return [[first], [second], [loss]], [guess, second, first]


def convolutions() -> Any:
    x, y = fluid.data("x", [None, 6]), fluid.data("y", [None, 1])
    image = layers.reshape(layers.fc(x, 32, act="relu"), [-1, 2, 4, 4])
    first = layers.conv2d(image, 3, 3, padding=1, act="relu")
    pooled = layers.pool2d(layers.dropout(first, 0.3), 2, "max", 2)
    second = layers.conv2d(pooled, 2, 1, act="tanh")
    loss = layers.mean(layers.square_error_cost(layers.fc(second, 1), y))
    return [[first], [pooled], [loss]], [second]


def embeddings() -> Any:
    ids, y = fluid.data("ids", [None, 3], "int64"), fluid.data("y", [None, 1])
    rows = fluid.embedding(ids, [20, 4])
    first = layers.fc(rows, 6, num_flatten_dims=2, act="tanh")
    second = layers.fc(layers.reduce_mean(first, dim=1), 4)
    loss = layers.reduce_sum(layers.square_error_cost(layers.fc(second, 1), y))
    return [[rows], [first], [loss]], [second]


def momentum() -> Any:
    rate = layers.exponential_decay(0.1, 2, 0.5, staircase=True)
    decay = fluid.regularizer.L2Decay(0.1)
    clip = fluid.clip.GradientClipByGlobalNorm(0.3)
    return fluid.optimizer.Momentum(rate, 0.9, regularization=decay, grad_clip=clip)


def adam() -> Any:
    return fluid.optimizer.Adam(0.05)


def batch(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    rows = 11 if step == 1 else 8
    return {
        "x": rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        "ids": rng.integers(0, 20, (rows, 3)),
        "y": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
    }


class Script:
    """Trains a network whose ``cuts`` are those of its stages; with a root it saves, or goes on."""

    def __init__(self, net: Any, optimizer: Any = adam, stages: int = 2, **how: Any) -> None:
        self.net, self.optimizer, self.stages, self.how = net, optimizer, stages, how
        self.begin, self.end = 0, STEPS
        self.root: Any = None

    def build(self) -> tuple[Any, Any, Any, list[Any]]:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            cuts, fetched = self.net()
            loss = cuts[-1][0]
            test = main.clone(for_test=True)
            chosen = cuts if self.stages == 3 else cuts[1:]
            made = fluid.optimizer.PipelineOptimizer(self.optimizer(), chosen, **self.how)
            made.minimize(loss)
        return main, startup, test, [loss, *fetched]

    def __call__(self, role: Any) -> Any:
        main, startup, test, fetched = self.build()
        exe = fluid.Executor()
        exe.run(startup)
        if self.begin:
            assert fluid.checkpoint.restore(exe, self.root, main_program=main).step == self.begin
        seen = []
        for step in range(self.begin, self.end):
            feed = {n: v for n, v in batch(step).items() if n in main.global_block().vars}
            if step > self.begin:
                exe.run(test, feed=feed, fetch_list=fetched[:1])  # draws nothing
            seen.append(exe.run(main, feed=feed, fetch_list=fetched))
        scope = fluid.global_scope()
        kept = [var.name for var in main.list_vars() if var.persistable]
        held = {n for n in kept if (v := scope.find_var(n)) is not None and v.value is not None}
        if self.root is not None and not self.begin:
            fluid.checkpoint.save(exe, self.root, self.end, main_program=main)
        kept = [v.name for v in main.all_parameters()]
        seen.append(exe.run(test, feed=feed, fetch_list=[fetched[0], *kept]))
        return seen, held


def near(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for got, expected in zip(found, wanted):
        for one, other in zip(got, expected):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


NETS = {"mlp": (mlp, momentum), "conv": (convolutions, momentum), "embedding": (embeddings, adam)}


@pytest.mark.parametrize(("ranks", "stages"), [(2, 2), (3, 3), (4, 2)])
@pytest.mark.parametrize("net", NETS)
def test_a_step_of_stages_is_that_of_one_process(net, ranks, stages):
    script = Script(*NETS[net], stages)
    with alone():
        wanted, whole = script(None)
    found = values(run_job(ranks, 0, script))
    for seen, _ in found:
        near(seen, wanted)
    own = [held for _, held in found[:stages]]
    shared = set.intersection(*own)
    assert set.union(*own) == whole
    assert sum(len(held - shared) for held in own) == len(whole - shared)
    assert not [name for name in shared if ".w_" in name or ".b_" in name]


# -- what is saved -------------------------------------------------------------------------------
def part(script: Script, root: Any, begin: int, end: int) -> Script:
    script.root, script.begin, script.end = root, begin, end
    return script


@pytest.mark.parametrize(("ranks", "stages"), [(2, 2), (3, 3), (4, 2)])
def test_checkpoints_of_stages_fit_other_jobs(mpi_tmp_path, ranks, stages):
    with alone():
        wanted, _ = Script(convolutions)(None)
    values(run_job(ranks, 0, part(Script(convolutions, stages=stages), mpi_tmp_path, 0, 2)))
    for seen, _ in values(run_job(2, 0, part(Script(convolutions), mpi_tmp_path, 2, STEPS))):
        near(seen, wanted[2:])
    with alone():
        seen, _ = part(Script(convolutions), mpi_tmp_path, 2, STEPS)(None)
    near(seen, wanted[2:])


def test_what_stages_save_together_one_process_loads(mpi_tmp_path):
    def script(role: Any) -> Any:
        main, startup, _, fetched = Script(mlp, momentum).build()
        exe = fluid.Executor()
        exe.run(startup)
        losses = []
        for step in range(STEPS):
            feed = {n: v for n, v in batch(step).items() if n != "ids"}
            losses.append(exe.run(main, feed=feed, fetch_list=fetched[:1]))
            if step == 1 and role is not None:
                fluid.io.save_persistables(exe, str(mpi_tmp_path / "all"), main)
                guess = fetched[1:2]
                fluid.io.save_inference_model(str(mpi_tmp_path / "model"), ["x"], guess, exe, main)
        return losses

    found = values(run_job(2, 0, script))

    def resumed(role: Any) -> Any:
        main, startup, _, fetched = Script(mlp, momentum).build()
        exe = fluid.Executor()
        exe.run(startup)
        fluid.io.load_persistables(exe, str(mpi_tmp_path / "all"), main)
        feeds = [{n: v for n, v in batch(step).items() if n != "ids"} for step in (2, 3)]
        return [exe.run(main, feed=feed, fetch_list=fetched[:1]) for feed in feeds]

    with alone():
        wanted = script(None)
        rest = resumed(None)
        program, feeds, targets = fluid.io.load_inference_model(str(mpi_tmp_path / "model"), None)
        (guess,) = fluid.Executor().run(program, {"x": batch(0)["x"]}, targets)
    assert feeds == ["x"] and guess.shape == (8, 1)
    for losses in found:
        near(losses, wanted)
    near(rest, wanted[2:])
    for losses in values(run_job(2, 0, resumed)):
        near(losses, wanted[2:])


# -- fleet ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 4])
def test_devices_are_stages_of_fleet(ranks, monkeypatch):
    def script(role: Any) -> Any:
        cluster = Cluster(tuple(range(ranks)))
        for name, value in environment.variables(cluster, role.index if role else 0).items():
            monkeypatch.setenv(name, value)
        fleet, strategy = Fleet(), DistributedStrategy()
        fleet.init(is_collective=True)
        strategy.pipeline = True
        strategy.pipeline_configs = {"micro_batch": 3}
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            with fluid.device_guard("gpu:0"):
                x, y = fluid.data("x", [None, 6]), fluid.data("y", [None, 1])
                first = layers.fc(x, 5, act="tanh")
            with fluid.device_guard("gpu:1"):
                loss = layers.mean(layers.square_error_cost(layers.fc(first, 1), y))
            if role is None:
                momentum().minimize(loss)
            else:
                fleet.distributed_optimizer(momentum(), strategy).minimize(loss)
        exe = fluid.Executor()
        exe.run(startup)
        program = main if role is None else fleet.main_program
        feeds = [{n: v for n, v in batch(k).items() if n != "ids"} for k in range(STEPS)]
        return [exe.run(program, feed=feed, fetch_list=[loss, first]) for feed in feeds]

    with alone():
        wanted = script(None)
    for seen in values(run_job(ranks, 0, script)):
        near(seen, wanted)


# -- what is refused -----------------------------------------------------------------------------
def other_net(change: Any) -> Any:
    def net() -> Any:
        x, y = fluid.data("x", [None, 6]), fluid.data("y", [None, 1])
        first = layers.fc(x, 4, act="tanh")
        loss, second = change(first, y)
        return [[first], [second], [loss]], []

    return net


def with_batch_norm(first: Any, y: Any) -> Any:
    second = layers.batch_norm(first)
    return layers.mean(layers.square_error_cost(layers.fc(second, 1), y)), second


def with_shared(first: Any, y: Any) -> Any:
    attr = fluid.ParamAttr(name="shared")
    second = layers.fc(first, 4, param_attr=attr)
    third = layers.fc(layers.tanh(second), 4, param_attr=attr)
    return layers.mean(layers.square_error_cost(layers.fc(third, 1), y)), second


def with_mixed_rows(first: Any, y: Any) -> Any:
    second = layers.fc(first, 4)
    return layers.mean(layers.matmul(second, second, transpose_y=True)), second


def ordinary(first: Any, y: Any) -> Any:
    second = layers.fc(first, 4)
    return layers.mean(layers.square_error_cost(layers.fc(second, 1), y)), second


def merged() -> Any:
    return fluid.optimizer.GradientMergeOptimizer(adam(), 2)


REFUSALS = {
    "batch_norm": (with_batch_norm, adam, 3, 3, "batch_norm changes 'batch_norm_0.w_1'"),
    "shared": (with_shared, adam, 3, 3, r"stages [1, 2] share 'shared'"),
    "rows": (with_mixed_rows, adam, 3, 3, "batches cannot be divided into 6 micro-batches"),
    "ranks": (ordinary, adam, 2, 3, "cut into 2 stages, which 3 ranks cannot share"),
    "merged": (ordinary, merged, 2, 2, "cannot be combined with gradient merge"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_pipeline_cannot_do_is_refused_by_name(name):
    change, optimizer, stages, ranks, words = REFUSALS[name]
    script = Script(other_net(change), optimizer, stages)
    outcomes = run_job(ranks, 0, script, deadline_s=20, aborts=False)
    assert all(words in o.error and "PlanError" in o.error_types for o in outcomes), outcomes


def test_a_pipeline_has_no_servers():
    outcomes = run_job(1, 1, Script(mlp), deadline_s=20, aborts=False)
    assert all("a pipeline has no parameter servers" in o.error for o in outcomes), outcomes


def after_a_step() -> tuple[Any, ...]:
    """Train one step; return the executor, both programs, what was fed and what was fetched."""
    main, startup, _, fetched = Script(mlp).build()
    exe = fluid.Executor()
    exe.run(startup)
    feed = {n: v for n, v in batch(0).items() if n != "ids"}
    exe.run(main, feed=feed, fetch_list=fetched)
    return exe, main, startup, feed, fetched


def test_ranks_that_are_fed_or_fetch_something_else_are_named():
    def script(role: Any) -> Any:
        exe, main, _, feed, fetched = after_a_step()
        errors = []
        for wrong, asked in (({"y": feed["y"] + role.index}, []), ({}, fetched[: 1 + role.index])):
            with pytest.raises(FeedError) as error:
                exe.run(main, feed=feed | wrong, fetch_list=asked)
            errors.append(str(error.value))
        return errors

    first, second = values(run_job(2, 0, script))
    assert "trainer 1 feeds another 'y' than trainer 0" in first[0]
    assert "rank 1 fetches other values than" in first[1]
    assert "rank 0 fetches other values than" in second[1]


def test_a_rank_of_a_pipeline_cannot_be_without_rows():
    def script(role: Any) -> Any:
        _, _, _, feed, _ = after_a_step()
        with pytest.raises(HpcdistError) as error:
            next(fluid.even_batches(lambda: iter([feed]), how="join")())
        return str(error.value)

    for message in values(run_job(2, 0, script)):
        assert "every rank of a pipeline is fed whole batches" in message


def test_ranks_that_do_something_else_are_named(mpi_tmp_path):
    def script(role: Any) -> Any:
        exe, main, startup, feed, fetched = after_a_step()
        errors = []
        for alone_does in (
            lambda: fluid.io.save_params(exe, str(mpi_tmp_path / "alone"), main),
            lambda: exe.run(startup),
        ):
            with pytest.raises(CommError) as error:
                if role.index == 1:
                    alone_does()
                exe.run(main, feed=feed, fetch_list=fetched)
            errors.append(str(error.value))
        return errors

    first, second = values(run_job(2, 0, script))
    assert "rank 0 trains, but rank 1 does something else" in first[0]
    assert "rank 1 asks for the other stages" in second[0]
    assert "runs of the startup program until step 2: 1 by rank 0, 2 by rank 1" in first[1]
    assert "runs of the startup program until step 2: 2 by rank 1, 1 by rank 0" in second[1]


def test_a_test_that_draws_random_numbers_is_named(caplog):
    caplog.set_level(logging.WARNING, "hpcdist")

    def told(role: Any) -> list[str]:
        main, startup, test, _ = Script(mlp, momentum).build()
        noisy = fluid.Program()
        with fluid.program_guard(noisy, fluid.Program()):
            noise = layers.gaussian_random([2, 3])
        exe = fluid.Executor()
        exe.run(startup)
        feed = {n: v for n, v in batch(0).items() if n != "ids"}
        exe.run(main, feed=feed)
        exe.run(test, feed=feed)
        for _ in range(2):
            exe.run(noisy, fetch_list=[noise])
        return [text for text in caplog.messages if "draws random numbers" in text]

    first, second = values(run_job(2, 0, told))
    (text,) = first
    assert "(gaussian_random)" in text
    assert second == []


def test_the_step_whose_shape_was_fed_longest_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(stage_steps, "CACHE_SIZE", 2)
    made = []
    program = RankStage.program
    monkeypatch.setattr(RankStage, "program", lambda *args: made.append(args[0]) or program(*args))

    def script(role: Any) -> int:
        exe, main, _, feed, _ = after_a_step()
        mine = [stage for stage in made if stage.stage == role.index]
        for rows in (7, 8, 6, 8):  # 8 is fed by `after_a_step`, too
            exe.run(main, feed={name: value[:rows] for name, value in feed.items()})
        return sum(stage.stage == role.index for stage in made) - len(mine)

    assert values(run_job(2, 0, script)) == [2, 2]
