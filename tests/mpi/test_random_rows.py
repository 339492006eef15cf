"""Random numbers over trainers: those of one process where batches are shared, else independent."""

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
ROWS = [7, 6, 7, 2, 1, 5]  # in each step: hardly any divides by the trainers
LONGEST = 5


def dense() -> list[Any]:
    """Masks of values whose rows are those of the batch, of more rows, and of a parameter."""
    x, y = layers.data("x", [6]), layers.data("y", [1])
    hidden = layers.dropout(layers.fc(x, 9, act="tanh"), 0.4)
    parts = layers.dropout(layers.reshape(hidden, [-1, 3]), 0.3)  # three rows of each
    joined = layers.reshape(parts, [-1, 9])
    weight = layers.dropout(layers.create_parameter([9, 1], "float32", name="weight"), 0.2)
    loss = layers.mean(layers.square_error_cost(layers.mul(joined, weight), y))
    return [loss, *_masks("dropout")]


def seeded() -> list[Any]:
    x, y = layers.data("x", [6]), layers.data("y", [1])
    hidden = layers.dropout(layers.fc(x, 9), 0.4, seed=5)
    column = layers.sampling_id(layers.softmax(hidden), seed=6)
    label = layers.cast(layers.scale(layers.abs(y), 9.9), "int64")
    chances = [(k + 1) / 55 for k in range(10)]
    how = [("uniform", None), ("log_uniform", None), ("custom_dist", chances)]
    costs = [
        layers.nce(hidden, label, 10, num_neg_samples=3, seed=7, sampler=name, custom_dist=dist)
        for name, dist in how
    ]
    loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
    return [loss + layers.mean(layers.sum(costs)), column, *_masks("dropout")]


def ragged() -> list[Any]:
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    rows = layers.dropout(layers.embedding(words, [20, 3]), 0.4)
    pooled = layers.dropout(layers.sequence_pool(rows, "sum"), 0.3)
    y = layers.data("y", [1])
    return [layers.mean(layers.square_error_cost(layers.fc(pooled, 1), y)), *_masks("dropout")]


def ragged_drawn() -> list[Any]:
    """Noise, columns and classes for words of sentences: every trainer draws for all of them."""
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    rows = layers.embedding(words, [20, 3])
    noise = layers.gaussian_random_batch_size_like(rows, [-1, 3], std=0.1)
    column = layers.sampling_id(layers.softmax(rows))
    cost = layers.nce(rows, words, 20, num_neg_samples=4)
    (op,) = [op for op in cost.block.ops if op.type == "nce"]
    classes = cost.block.var(op.output("SampleLabels")[0])
    return [layers.mean(cost) + layers.mean(noise), noise, column, classes]


def noisy() -> list[Any]:
    x, y = layers.data("x", [6]), layers.data("y", [1])
    noise = layers.gaussian_random_batch_size_like(x, [-1, 6], std=0.1)
    shift = layers.uniform_random_batch_size_like(x, [-1, 6], min=-0.1, max=0.1)
    scale = layers.uniform_random([6], min=0.5, max=1.5)
    guess = layers.fc(layers.elementwise_mul(x + noise + shift, scale, axis=1), 1)
    return [layers.mean(layers.square_error_cost(guess, y)), noise, shift, scale]


def drawn() -> list[Any]:
    """Pieces of samples, columns of rows, classes that are no label: each drawn by its row."""
    x, y = layers.data("x", [6]), layers.data("y", [1])
    piece = layers.random_crop(layers.reshape(x, [-1, 2, 3]), [2, 2])
    hidden = layers.fc(layers.reshape(piece, [-1, 4]), 5, act="tanh")
    column = layers.sampling_id(layers.softmax(hidden))
    label = layers.cast(layers.scale(layers.abs(y), 9.9), "int64")
    costs = [
        layers.nce(hidden, label, 10, num_neg_samples=4, sampler="log_uniform", is_sparse=sparse)
        for sparse in (False, True)
    ]
    block = fluid.default_main_program().global_block()
    classes = [op.output("SampleLabels")[0] for op in block.ops if op.type == "nce"]
    return [layers.mean(layers.sum(costs)), piece, column, *map(block.var, classes)]


def _masks(kind: str) -> list[Any]:
    block = fluid.default_main_program().global_block()
    return [block.var(op.output("Mask")[0]) for op in block.ops if op.type == kind]


NETS = {net.__name__: net for net in (dense, drawn, seeded, ragged, ragged_drawn, noisy)}


def batch(step: int, rows: int, fed: list[str]) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    lengths = rng.integers(0, LONGEST, rows)
    lengths[0] = 1
    words = rng.integers(0, 20, (int(lengths.sum()), 1))
    made = {
        "x": rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        "y": rng.uniform(-1, 1, (rows, 1)).astype(np.float32),
        "words": fluid.create_lod_tensor(words, [lengths.tolist()], fluid.CPUPlace()),
    }
    return {name: made[name] for name in fed}


def build(net: Callable[[], list[Any]]) -> tuple[Any, Any, list[Any], list[str]]:
    main, startup = fluid.Program(), fluid.Program()
    startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        fetch = net()
        fluid.optimizer.SGD(0.1).minimize(fetch[0])
    return main, startup, fetch, [n for n, v in main.global_block().vars.items() if v.is_data]


def train(net: Callable[[], list[Any]], place: Any = None) -> list[list[np.ndarray]]:
    main, startup, fetch, fed = build(net)
    exe = fluid.Executor(place or fluid.CPUPlace())
    exe.run(startup)
    feeds = [batch(step, rows, fed) for step, rows in enumerate(ROWS)]
    return [exe.run(main, feed=feed, fetch_list=fetch) for feed in feeds]


def check(net: Callable[[], list[Any]], trainers: int, servers: int, place: Any = None) -> None:
    with alone():
        wanted = train(net)
    for got in values(run_job(trainers, servers, lambda role: train(net, place))):
        for step, (mine, one) in enumerate(zip(got, wanted, strict=True)):
            where = f"step {step}"
            np.testing.assert_allclose(mine[0], one[0], rtol=1e-5, err_msg=where)
            for drawn, expected in zip(mine[1:], one[1:], strict=True):
                np.testing.assert_array_equal(drawn, expected, err_msg=where)


@pytest.mark.parametrize(("trainers", "servers"), SHAPES)
@pytest.mark.parametrize("name", sorted(NETS))
def test_trainers_of_shared_batches_draw_what_one_process_draws(name, trainers, servers):
    if name == "seeded":
        with alone():
            masks = [fetched[-1][:1] for fetched in train(seeded)]
        np.testing.assert_array_equal(masks[0], masks[1], err_msg="Fluid's: the same in every step")
    check(NETS[name], trainers, servers)


@pytest.mark.parametrize("name", sorted(NETS))
def test_a_device_draws_what_the_cpu_draws(name, monkeypatch):
    install(monkeypatch)
    check(NETS[name], 2, 1, fluid.CUDAPlace(0))


def test_a_fixed_mask_of_sequences_is_drawn_for_whole_batches():
    def net() -> list[Any]:
        fluid.default_main_program().random_seed = 7
        return ragged()

    check(net, 2, 0)


@pytest.mark.parametrize("servers", [0, 1])
def test_trainers_that_read_their_own_data_draw_independent_masks(servers):
    def script(role: Any) -> list[list[np.ndarray]]:
        main, startup, fetch, fed = build(dense)
        if servers:
            exe, trainer = begin(role, 2, servers, main, startup)
        else:
            names = "127.0.0.1:6170,127.0.0.1:6171"
            config = fluid.DistributeTranspilerConfig()
            config.mode = "collective"
            config.collective_mode = "grad_allreduce"
            at = names.split(",")[role.index]
            fluid.DistributeTranspiler(config).transpile(
                role.index, main, trainers=names, startup_program=startup, current_endpoint=at
            )
            exe, trainer = fluid.Executor(), main
            exe.run(startup)
        return [exe.run(trainer, batch(step, 64, fed), fetch)[1:] for step in range(2)]

    first, second = values(run_job(2, servers, script))
    again, _ = values(run_job(2, servers, script))
    for step in range(2):
        for ours, theirs, same in zip(first[step], second[step], again[step], strict=True):
            np.testing.assert_array_equal(ours, same)
            kept = ours.mean()
            differ = (ours != theirs).mean()
            assert ours.size < 100 or abs(differ - 2 * kept * (1 - kept)) < 0.1
