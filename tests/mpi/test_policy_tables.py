"""Tables that admit, forget and keep to a budget, in whole jobs: the bits of one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import checkpoint, layers
from hpcdist.comm.world import mpi_world
from hpcdist.fluid.fleet import Fleet
from tests.support.job import alone, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)
FULL = fluid.RowPolicy(
    admit_after=2,
    until_admitted="zeros",
    budget_rows=120,
    score=fluid.ClickScore(delete_threshold=0.45),
    shows=("show", "click"),
    shrink_every=4,
)
BYTES: dict[str, Any] = {"rows": "int8", "state": "float16"}  # of one of the two tables


def build(policy: Any) -> tuple[Any, ...]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 11
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids = layers.data("ids", [3], dtype="int64")
        for name in ("show", "click"):
            layers.data(name, [1])
        attr = fluid.ParamAttr("ctr", row_policy=policy)
        rows = fluid.embedding(ids, [-1, 4], True, True, None, attr)
        words = layers.data("words", [1], dtype="int64", lod_level=1)
        attr = fluid.ParamAttr("words_table", row_policy=policy and replace(policy, **BYTES))
        pooled = layers.sequence_pool(
            fluid.embedding(words, [-1, 4], True, True, None, attr), "sum"
        )
        pooled = layers.reshape(pooled, [-1, 4])
        chance = layers.fc([layers.reshape(rows, [-1, 12]), pooled], 1, act="sigmoid")
        cost = layers.square_error_cost(chance, layers.data("y", [1]))
        loss = layers.mean(cost)
        test = main.clone(for_test=True)
        fluid.optimizer.Adagrad(0.1).minimize(loss)
    return main, startup, test, loss


def batch(step: int) -> dict[str, Any]:
    random = np.random.RandomState(step)
    ids = random.zipf(1.3, (24, 3)) % 3000
    lengths = random.randint(0, 4, 24)
    words = random.zipf(1.3, (lengths.sum(), 1)) % 300
    feed = {
        "words": fluid.create_lod_tensor(words, [lengths.tolist()]),
        "ids": ids,
        "y": (ids[:, :1] % 2).astype("float32"),
    }
    feed["show"] = random.randint(1, 4, (24, 1)).astype("float32")
    feed["click"] = random.randint(0, 2, (24, 1)).astype("float32")
    return feed


def train(policy: Any = FULL, steps: int = 10, folder: str = "", first: int = 0) -> list[float]:
    """Return losses from step ``first`` on, of a checkpoint in ``folder``; there is one after 4."""
    main, startup, test, loss = build(policy)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    told: list[float] = []
    if first:
        checkpoint.restore(exe, folder, main)
    for step in range(first, steps):
        if step == 4 and folder and not first:
            checkpoint.save(exe, folder, step, main)
        (value,) = exe.run(main, feed=batch(step), fetch_list=[loss])
        told.append(float(value.reshape(-1)[0]))
        if step == 5:
            told += checkpoint.shrink_tables(main).values()
    (value,) = exe.run(test, feed=batch(0), fetch_list=[loss])
    return [*told, float(value.reshape(-1)[0])]


@pytest.mark.parametrize(("trainers", "servers"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 0)])
def test_a_job_computes_what_one_process_computes(trainers: int, servers: int) -> None:
    with alone():
        wanted = train()
    assert min(wanted[6:8]) > 0, "nothing expired"
    for got in values(run_job(trainers, servers, lambda role: train())):
        if trainers == 1:
            np.testing.assert_array_equal(got, wanted)
        else:
            np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)


def test_two_trainers_get_the_same_bits_from_any_number_of_servers() -> None:
    first, second = (values(run_job(2, servers, lambda role: train())) for servers in (1, 2))
    np.testing.assert_array_equal(first, second)


def test_rows_that_widen_go_on_when_restored_on_another_number(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A table whose rows all are narrow, or all wide, would have other losses."""
    own = str(tmp_path_factory.mktemp("checkpoint")).encode()
    folder = mpi_world().broadcast_bytes(own if mpi_world().rank == 0 else None).decode()
    policy = replace(FULL, admit_after=1, widen_at=0.9)
    with alone():
        wanted = train(policy)
        others = [train(replace(policy, widen_at=at)) for at in (0.0, 1e9)]
    assert not any(np.allclose(wanted, losses, 1e-5, 1e-5) for losses in others)
    for got in values(run_job(2, 0, lambda role: train(policy, folder=folder))):
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
    with alone():
        restored = train(policy, folder=folder, first=4)
    np.testing.assert_allclose(restored, wanted[4:], 1e-5, 1e-5)


def test_too_many_servers_are_refused_before_the_first_step() -> None:
    policy = fluid.RowPolicy(budget_rows=1000, parts=7)
    outcomes = run_job(1, 2, lambda role: train(policy, 1))
    assert any("shared by 7 parts" in outcome.error for outcome in outcomes)


def test_a_job_without_such_tables_has_nothing_to_shrink() -> None:
    def script(role: Any) -> str:
        main, startup, _, _ = build(None)
        fluid.Executor(fluid.CPUPlace()).run(startup)
        with pytest.raises(fluid.HpcdistError, match="no table has a policy"):
            checkpoint.shrink_tables(main)
        return "refused"

    assert values(run_job(2, 0, script)) == ["refused"] * 2


def test_fleet_knows_no_threshold() -> None:
    with pytest.raises(fluid.HpcdistError, match="shrink"):
        Fleet().shrink(0.5)
