"""Trainers with unequal numbers of batches, and batches of unequal sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.transpiler.collective import LocalSGD
from tests.mpi.collective_jobs import names, parameters, refused, transpile
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

# Rows of each batch, by trainer: one has none at all, one has a short last batch.
SIZES: dict[int, list[list[int]]] = {2: [[4, 4, 4], [4, 2]], 3: [[3, 3, 1, 2], [], [2, 5]]}
FEATURES, WORDS = 4, 9


def batch(trainer: int, step: int, rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 * step + trainer)
    return {
        "x": rng.uniform(-1, 1, (rows, FEATURES)).astype(np.float32),
        "y": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
        "word": rng.integers(0, WORDS, (rows, 1)),
    }


def batches(trainer: int, sizes: list[list[int]]) -> Iterator[dict[str, np.ndarray]]:
    for step, rows in enumerate(sizes[trainer]):
        yield batch(trainer, step, rows)


def network(optimizer: Callable[[], Any]) -> tuple[Any, Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = layers.data("x", [FEATURES]), layers.data("y", [1])
        word = layers.data("word", [1], dtype="int64")
        rows = layers.embedding(word, [WORDS, 3], is_sparse=True, param_attr="table")
        guess = layers.fc(layers.concat([x, rows], axis=1), 1)
        loss = layers.mean(layers.square_error_cost(guess, y))
        optimizer().minimize(loss)
    return main, startup, loss, guess


def momentum() -> Any:
    rate = layers.exponential_decay(0.2, 1, 0.7)
    clip = fluid.clip.GradientClipByGlobalNorm(0.1)
    return fluid.optimizer.Momentum(rate, 0.9, grad_clip=clip)


def locally(trainers: int) -> dict[str, np.ndarray]:
    """Return the parameters of one process that is fed what all trainers have in each step."""
    sizes = SIZES[trainers]
    with alone():
        main, startup, _, _ = network(momentum)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(max(map(len, sizes))):
            parts = [batch(k, step, rows[step]) for k, rows in enumerate(sizes) if step < len(rows)]
            exe.run(main, feed={n: np.concatenate([p[n] for p in parts]) for n in parts[0]})
        return parameters(main)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("trainers", SIZES)
def test_joining_trains_every_row_once(trainers, compiled):
    def script(role: Any) -> Any:
        main, startup, loss, guess = network(momentum)
        transpile(main, startup, role, trainers, mode="nccl2")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        program = fluid.CompiledProgram(main).with_data_parallel(loss) if compiled else main
        reader = fluid.even_batches(lambda: batches(role.index, SIZES[trainers]), how="join")
        seen = []
        for fed in reader():
            value, rows = exe.run(program, feed=fed, fetch_list=[loss, guess])
            assert rows.shape == (len(fed["x"]) if fed else 0, 1)
            seen.append(bool(np.isfinite(value[0])))
        return seen, parameters(main)

    wanted = locally(trainers)
    found = values(run_job(trainers, 0, script))
    steps = max(map(len, SIZES[trainers]))
    for k, (seen, trained) in enumerate(found):
        rows = SIZES[trainers][k]
        assert seen == [True] * len(rows) + [False] * (steps - len(rows))
        for name, value in wanted.items():
            np.testing.assert_allclose(trained[name], value, rtol=1e-5, atol=1e-5)
            assert trained[name].tobytes() == found[0][1][name].tobytes()


def test_joining_in_local_sgd():
    """By SGD, averaged parameters are those of the mean over all rows."""

    def model() -> tuple[Any, Any]:
        main, startup, _, _ = network(lambda: fluid.optimizer.SGD(0.1))
        return main, startup

    def script(role: Any) -> Any:
        main, startup = model()
        own = names(2)
        LocalSGD().transpile(startup, main, role.index, own, own[role.index])
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for fed in fluid.even_batches(lambda: batches(role.index, SIZES[2]), how="join")():
            exe.run(main, feed=fed or {})
        return parameters(main)

    with alone():
        main, startup = model()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for step in range(3):
            parts = [batch(k, step, n[step]) for k, n in enumerate(SIZES[2]) if step < len(n)]
            exe.run(main, feed={n: np.concatenate([p[n] for p in parts]) for n in parts[0]})
        wanted = parameters(main)
    for trained in values(run_job(2, 0, script)):
        for name, value in wanted.items():
            np.testing.assert_allclose(trained[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("how", "counts"), [("pad", [3, 3]), ("cut", [2, 2])])
def test_both_ways_of_the_seeds_note(how, counts):
    def script(role: Any) -> Any:
        main, startup, _, _ = network(momentum)
        transpile(main, startup, role, 2, mode="nccl2")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        own = list(batches(role.index, SIZES[2]))
        passes = []
        for _ in range(2):
            got = list(fluid.even_batches(lambda: iter(own), how)())
            for fed in got:
                exe.run(main, feed=fed)
            passes.append([next(i for i, b in enumerate(own) if b is fed) for fed in got])
        return passes, parameters(main)

    found = values(run_job(2, 0, script))
    for k, (passes, trained) in enumerate(found):
        for read in passes:
            assert len(read) == counts[k]
            whole = len(SIZES[2][k])
            assert read[:whole] == list(range(whole))[: counts[k]]  # its own first, in order
            assert set(read) <= set(range(whole))
        np.testing.assert_array_equal(trained["table"], found[0][1]["table"])


def test_a_trainer_without_any_batch_cannot_repeat_one():
    def script(role: Any) -> None:
        list(fluid.even_batches(lambda: batches(role.index, [[1], []]))())

    refused(script, "trainer 1 has no batch at all that could be repeated")


def test_joining_needs_rows_on_one_device(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")

    def script(role: Any) -> None:
        main, startup, loss, _ = network(momentum)
        transpile(main, startup, role, 2, mode="nccl2")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        program = fluid.CompiledProgram(main).with_data_parallel(loss)
        for fed in fluid.even_batches(lambda: batches(role.index, SIZES[2]), how="join")():
            exe.run(program, feed=fed or {})

    refused(script, "on one device of each trainer")


def test_alone_a_reader_gives_what_it_gives():
    with alone():
        for how in ("pad", "cut", "join"):
            assert list(fluid.even_batches(lambda: iter([1, 2]), how)()) == [1, 2]
        with pytest.raises(ValueError, match="one of pad, cut, join, got 'drop'"):
            fluid.even_batches(lambda: iter([]), "drop")
