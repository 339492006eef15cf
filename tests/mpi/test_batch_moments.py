"""batch_norm over trainers: the moments of the whole batch, equal to those of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.support.device import install
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

SHAPES = [(2, 0), (3, 0), (4, 0), (1, 1), (2, 1), (3, 1), (2, 2)]  # trainers, servers
ROWS = [7, 6, 2, 1, 9, 5]  # in each step: hardly any divides by the trainers
NEAR = 2e-5


def flat() -> Any:
    """One element of a channel and row: a batch of one row is left alone, as in Fluid."""
    x = layers.data("x", [2, 4, 4])
    return layers.batch_norm(layers.fc(x, 6), act="relu")


def images(layout: str = "NCHW") -> Any:
    x = layers.data("x", [2, 4, 4])
    hidden = layers.batch_norm(layers.conv2d(x, 4, 3, bias_attr=False), data_layout=layout)
    return layers.dropout(layers.batch_norm(layers.conv2d(hidden, 3, 2), act="relu"), 0.3)


def channels_last() -> Any:
    return images("NHWC")


def by_running_moments() -> Any:
    x = layers.data("x", [2, 4, 4])
    return layers.batch_norm(layers.fc(layers.scale(x, 0.1), 6), use_global_stats=True)


NETS = {f.__name__: f for f in (flat, images, channels_last, by_running_moments)}


def build(net: Callable[[], Any]) -> tuple[Any, Any, list[Any], list[str]]:
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        guess = layers.fc(net(), 1)
        cost = layers.square_error_cost(guess, layers.data("y", [1]))
        loss = layers.mean(cost)
        fluid.optimizer.Momentum(0.05, 0.9).minimize(loss)
    block = main.global_block()
    kept = [v.name for v in block.vars.values() if v.persistable and "batch_norm" in v.name]
    return main, startup, [loss, guess], sorted(n for n in kept if "velocity" not in n)


def batch(step: int, rows: int, part: slice = slice(None)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    x = rng.normal(5, 2, (rows, 2, 4, 4)).astype(np.float32)
    return {"x": x[part], "y": rng.uniform(-1, 1, (rows, 1)).astype(np.float32)[part]}


def train(net: Callable[[], Any], place: Any = None) -> list[list[np.ndarray]]:
    """Return what was fetched in every step, then parameters and running moments."""
    main, startup, fetch, kept = build(net)
    exe = fluid.Executor(place or fluid.CPUPlace())
    exe.run(startup)
    steps = [exe.run(main, batch(step, rows), fetch) for step, rows in enumerate(ROWS)]
    return [*steps, _held(kept)]


def _held(names: list[str]) -> list[np.ndarray]:
    scope = fluid.global_scope()
    return [np.array(scope.find_var(name).get_tensor()) for name in names]


def check(name: str, trainers: int, servers: int, place: Any = None) -> None:
    with alone():
        wanted = train(NETS[name])
    assert all(np.isfinite(value).all() for step in wanted for value in step)
    jobs = values(run_job(trainers, servers, lambda role: train(NETS[name], place)))
    for got in jobs:
        for step, (mine, one) in enumerate(zip(got, wanted, strict=True)):
            for value, expected in zip(mine, one, strict=True):
                np.testing.assert_allclose(
                    value, expected, rtol=NEAR, atol=NEAR, err_msg=f"step {step}"
                )
        for mine, first in zip(got[-1], jobs[0][-1], strict=True):
            np.testing.assert_array_equal(mine, first, err_msg="trainers keep equal moments")


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
@pytest.mark.parametrize("name", sorted(NETS))
def test_a_plain_script_has_the_moments_of_the_whole_batch(name, trainers, servers):
    check(name, trainers, servers)


def test_a_device_sums_moments_too(monkeypatch):
    install(monkeypatch)
    check("images", 2, 1, fluid.CUDAPlace(0))


@pytest.mark.parametrize("servers", [0, 1])
def test_two_runs_give_the_same_bits(servers):
    first, again = (values(run_job(2, servers, lambda role: train(images))) for _ in range(2))
    for mine, same in zip(first[0], again[0], strict=True):
        for value, expected in zip(mine, same, strict=True):
            np.testing.assert_array_equal(value, expected)


def test_local_moments_are_taken_on_request(monkeypatch):
    monkeypatch.setenv("HPCDIST_BATCH_NORM", "local")
    first, second = values(run_job(2, 0, lambda role: train(images)))
    assert any((mine != other).any() for mine, other in zip(first[-1], second[-1], strict=True))


def test_an_unknown_request_is_refused(monkeypatch):
    monkeypatch.setenv("HPCDIST_BATCH_NORM", "global")
    for outcome in run_job(2, 0, lambda role: train(images), aborts=False):
        assert "HPCDIST_BATCH_NORM: expected batch or local, got 'global'" in outcome.error


# -- scripts that transpile themselves -------------------------------------------------------------
def own_rows(role: Any, how: str, synchronized: bool) -> list[list[np.ndarray]]:
    """Train on rows of this trainer's own, 3 of 6 in each step."""
    main, startup, fetch, kept = build(flat)
    names = "127.0.0.1:6170,127.0.0.1:6171"
    if how == "fleet":
        from hpcdist.fluid.fleet.collective import DistributedStrategy
        from hpcdist.fluid.fleet.collective_settings import plan_collective
        from hpcdist.fluid.fleet.role_maker import UserDefinedCollectiveRoleMaker

        strategy = DistributedStrategy(mode="collective", collective_mode="grad_allreduce")
        strategy.sync_batch_norm = synchronized
        who = UserDefinedCollectiveRoleMaker(role.index, names.split(","))
        program = plan_collective(fetch[0], startup, strategy.collective(), who)
    else:
        config = fluid.DistributeTranspilerConfig()
        config.mode = "nccl2"
        fluid.DistributeTranspiler(config).transpile(
            role.index,
            main,
            trainers=names,
            startup_program=startup,
            current_endpoint=names.split(",")[role.index],
        )
        build_strategy = fluid.BuildStrategy()
        build_strategy.sync_batch_norm = synchronized
        program = fluid.CompiledProgram(main).with_data_parallel(fetch[0].name, build_strategy)
    exe = fluid.Executor()
    exe.run(startup)
    part = slice(3 * role.index, 3 * role.index + 3)
    for step in range(4):
        exe.run(program, batch(step, 6, part), [fetch[0]])
    return _held(kept)


@pytest.mark.parametrize("how", ["compiled", "fleet"])
@pytest.mark.parametrize("synchronized", [True, False])
def test_scripts_that_transpile_themselves_ask_for_it(how, synchronized):
    with alone():
        main, startup, fetch, kept = build(flat)
        exe = fluid.Executor()
        exe.run(startup)
        for step in range(4):
            exe.run(main, batch(step, 6), fetch)
        wanted = _held(kept)
    first, second = values(run_job(2, 0, lambda role: own_rows(role, how, synchronized)))
    same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    near = all(np.allclose(a, b, rtol=NEAR, atol=NEAR) for a, b in zip(first, wanted, strict=True))
    assert (same, near) == (synchronized, synchronized)


def test_with_servers_each_trainer_has_its_own_as_fluid():
    def script(role: Any) -> list[np.ndarray]:
        main, startup, _, kept = build(flat)
        exe, trainer = begin(role, 2, 1, main, startup)
        for step in range(3):
            exe.run(trainer, batch(step + 9 * role.index, 5), [])
        return _held([n for n in kept if ".w_1" in n])

    first, second = values(run_job(2, 1, script))
    assert (first[0] != second[0]).any()


def test_a_trainer_that_does_not_come_is_noticed():
    def script(role: Any) -> None:
        main, startup, fetch, _ = build(flat)
        exe = fluid.Executor()
        exe.run(startup)
        for step in range(3 - role.index):
            exe.run(main, batch(step, 6), fetch)

    early, late = reversed(run_job(2, 0, script, deadline_s=3, aborts=False))
    assert not early.error
    assert "waiting for the other trainers' sums of sync_batch_norm" in late.error
    assert "of step 3" in late.error
