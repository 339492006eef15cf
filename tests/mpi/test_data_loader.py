"""Loaders in jobs: plain scripts that read from them compute what one process computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

PASSES = 2


def samples() -> Any:
    rng = np.random.default_rng(7)
    for _ in range(23):
        x = rng.uniform(-1, 1, 5).astype("float32")
        yield x, x[:1] * 2 + 1


def net() -> tuple[Any, list[Any]]:
    x, y = fluid.data("x", [None, 5]), fluid.data("y", [None, 1])
    loss = layers.mean(layers.square_error_cost(layers.fc(x, 1), y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss, [x, y]


def read(start: Any, fetch: Any, reset: Any) -> list[float]:
    losses = []
    for _ in range(PASSES):
        start()
        try:
            while True:
                losses.append(float(fetch()[0][0]))
        except fluid.core.EOFException:
            reset()
    return losses


def iterable(loss: Any, data: list[Any], exe: Any) -> list[float]:
    loader = fluid.io.DataLoader.from_generator(feed_list=data, capacity=3)
    loader.set_sample_generator(samples, batch_size=6, drop_last=False, places=fluid.CPUPlace())
    return [
        float(exe.run(feed=batch, fetch_list=[loss])[0][0])
        for _ in range(PASSES)
        for batch in loader()
    ]


def not_iterable(loss: Any, data: list[Any], exe: Any) -> list[float]:
    loader = fluid.io.DataLoader.from_generator(feed_list=data, capacity=3, iterable=False)
    loader.set_sample_list_generator(fluid.batch(samples, 6))
    return read(loader.start, lambda: exe.run(fetch_list=[loss]), loader.reset)


def compiled(loss: Any, data: list[Any], exe: Any) -> list[float]:
    loader = fluid.layers.create_py_reader_by_data(capacity=3, feed_list=data)
    loader.decorate_paddle_reader(fluid.batch(samples, 6))
    program = fluid.CompiledProgram(fluid.default_main_program())
    program = program.with_data_parallel(loss_name=loss.name)
    return read(loader.start, lambda: exe.run(program, fetch_list=[loss]), loader.reset)


def train(way: Any) -> list[float]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss, data = net()
        exe = fluid.Executor()
        exe.run(startup)
        return way(loss, data, exe)


@pytest.mark.parametrize(("trainers", "servers"), [(2, 0), (1, 1), (3, 0), (2, 2)])
@pytest.mark.parametrize("way", [iterable, not_iterable, compiled])
def test_a_job_that_reads_computes_what_one_process_computes(way, trainers, servers):
    with alone():
        expected = train(way)
    assert len(expected) == 4 * PASSES
    for losses in values(run_job(trainers, servers, lambda role: train(way))):
        np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)


def test_a_trainer_that_transpiles_reads_batches_of_its_own():
    def own(role: Any) -> Any:
        return fluid.batch(fluid.reader.shard(samples, 2, role.index), 4)

    def script(role: Any, reads: bool) -> list[float]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss, data = net()
            loader = fluid.io.PyReader(feed_list=data, capacity=2, iterable=not reads)
            loader.decorate_sample_list_generator(own(role))
        exe, trainer = begin(role, 2, 1, main, startup)
        if reads:
            run = loader.start, lambda: exe.run(trainer, fetch_list=[loss]), loader.reset
            losses = read(*run)
        else:
            feeds = [batch for _ in range(PASSES) for batch in loader()]
            losses = [float(exe.run(trainer, feed=f, fetch_list=[loss])[0][0]) for f in feeds]
        exe.close()
        return losses

    got = values(run_job(2, 1, lambda role: script(role, True)))
    assert got == values(run_job(2, 1, lambda role: script(role, False)))
    assert len(got[0]) == 3 * PASSES and got[0] != got[1]


def test_ranks_whose_batches_have_several_devices_are_refused():
    def script(role: Any) -> None:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            loss, data = net()
            loader = fluid.io.PyReader(feed_list=data, capacity=2, iterable=False)
            loader.decorate_sample_list_generator(fluid.batch(samples, 4))
            exe = fluid.Executor()
            exe.run(startup)
            program = fluid.CompiledProgram(main)
            program = program.with_data_parallel(loss.name, places=fluid.cpu_places(2))
            loader.start()
            exe.run(program, fetch_list=[loss])

    for outcome in run_job(2, 0, script, aborts=False):
        assert "PlanError" in outcome.error_types
        assert "a batch for each of its 2 devices" in outcome.error
