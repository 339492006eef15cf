"""Tables of every optimizer in one program, any ids: the same bits on any servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers, optimizer
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)

ENDS = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
STEPS, ROWS = 4, 12
# Each table's optimizer and width.
TABLES: dict[str, tuple[Any, int]] = {
    "sgd": (optimizer.SGD, 1),
    "momentum": (lambda rate: optimizer.Momentum(rate, 0.9), 3),
    "adagrad": (optimizer.Adagrad, 16),
    "adam": (lambda rate: optimizer.Adam(rate, lazy_mode=True), 7),
    "ftrl": (lambda rate: optimizer.Ftrl(rate, l1=0.01, l2=0.01), 20),
}


def build() -> tuple[fluid.Program, fluid.Program, list[Any]]:
    """A model of five tables over the same ragged and single ids, and a loss for each."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    losses = []
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        one = layers.data("one", [1], dtype="int64")
        many = layers.data("many", [1], dtype="int64", lod_level=1)
        y = layers.data("y", [1])
        for name, (make, width) in TABLES.items():
            how = {"is_sparse": True, "is_distributed": True}
            begin = fluid.initializer.Normal(0.0, 0.3)
            attr = fluid.ParamAttr(name, initializer=begin, learning_rate=0.5)
            single = layers.embedding(one, [-1, width], param_attr=attr, **how)
            bag = layers.sequence_pool(
                layers.embedding(many, [-1, width], param_attr=attr, **how), "sum"
            )
            guess = layers.fc([single, bag], 1, param_attr=f"{name}_w", bias_attr=False)
            loss = layers.mean(layers.square_error_cost(guess, y))
            rate = layers.exponential_decay(0.1, 2, 0.5)
            kept = [name, *(p.name for p in main.all_parameters() if f"{name}_w" in p.name)]
            make(rate).minimize(loss, parameter_list=kept)
            losses.append(loss)
    return main, startup, losses


def batch(step: int, rows: int) -> dict[str, Any]:
    generator = np.random.default_rng(step)
    pool = np.array([*ENDS, *generator.integers(-(2**63), 2**63 - 1, 5)])
    lengths = generator.integers(0, 4, rows).tolist()
    return {
        "one": generator.choice(pool, (rows, 1)),
        "many": fluid.create_lod_tensor(generator.choice(pool, (sum(lengths), 1)), [lengths]),
        "y": generator.normal(size=(rows, 1)).astype(np.float32),
    }


def train(role: Any = None, sizes: Sequence[int] = (ROWS,) * STEPS) -> list[np.ndarray]:
    main, startup, losses = build()
    exe = fluid.Executor()
    exe.run(startup)
    told = [
        np.array(exe.run(main, feed=batch(step, rows), fetch_list=losses))
        for step, rows in enumerate(sizes)
    ]
    exe.close()
    return told


@pytest.mark.parametrize("trainers", [1, 2, 3])
def test_any_number_of_servers_gives_the_same_bits(trainers: int) -> None:
    from hpcdist.comm.world import mpi_world

    with alone():
        wanted = train()
    assert all(np.isfinite(losses).all() for losses in wanted)
    assert not np.array_equal(wanted[0], wanted[-1])
    told = {}
    for servers in (1, 2, 3):
        if servers > 1 and mpi_world().size < trainers + servers:
            continue
        for got in values(run_job(trainers, servers, train)):
            np.testing.assert_allclose(got, wanted, 5e-5, 5e-5)
            told[servers] = np.array(got).tobytes()
    assert len(set(told.values())) == 1
    if trainers == 1:
        assert told[1] == np.array(wanted).tobytes(), "one trainer is one process"


def test_rates_of_tables_are_those_of_the_step_in_batches_of_any_size() -> None:
    """Each size has temporaries of its own, in which its steps compute the rates."""
    sizes = [12, 5, 12, 7, 5, 12]
    with alone():
        wanted = train(sizes=sizes)
    for trainers in (1, 2):
        for got in values(run_job(trainers, 0, lambda role: train(role, sizes))):
            np.testing.assert_allclose(got, wanted, 5e-5, 5e-5)
