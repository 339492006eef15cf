"""Rows of distributed tables that are fetched a step ahead."""

from __future__ import annotations

from typing import Any

import pytest

import hpcdist as fluid
from tests.mpi.table_programs import (
    STEPS,
    batch,
    build,
)
from tests.support.job import alone, begin, run_job, values

pytestmark = pytest.mark.mpi(min_size=2)


# -- looking ahead ---------------------------------------------------------------------------------
def looking_ahead(feeds: list[dict[str, Any]], told: list[dict[str, Any]], *, sync_mode: bool):
    """Return a script that trains on ``feeds``, and says that they would be those ``told``."""

    def run(role: Any) -> list[bytes]:
        main, startup, _, fetch = build("sgd")
        exe, program = begin(role, 1, 1, main, startup, sync_mode=sync_mode)
        losses = [
            exe.run(program, feed=feed, fetch_list=fetch[:1])[0].tobytes()
            for feed, _ in zip(feeds, fluid.rows_ahead(told))
        ]
        exe.close()
        return losses

    return run


def apart(step: int) -> dict[str, Any]:
    """Return a batch of ids that the batches beside it do not have."""
    feed = batch(step)
    return feed | {name: feed[name] // 100 * 10 + step % 2 for name in ("a", "b", "pair")}


def local_losses(feeds: list[dict[str, Any]]) -> list[bytes]:
    with alone():
        main, startup, _, fetch = build("sgd")
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        return [exe.run(main, feed=f, fetch_list=fetch[:1])[0].tobytes() for f in feeds]


def test_rows_ahead_are_those_of_one_step_before() -> None:
    feeds = [apart(step) for step in range(STEPS)]
    wanted = local_losses(feeds)
    (got,) = values(run_job(1, 1, looking_ahead(feeds, feeds, sync_mode=False)))
    assert got == wanted, "rows that no step between has moved"
    feeds = [batch(step) for step in range(STEPS)]
    wanted = local_losses(feeds)
    (got,) = values(run_job(1, 1, looking_ahead(feeds, feeds, sync_mode=False)))
    assert got[0] == wanted[0] and got[1:] != wanted[1:]


def test_rows_ahead_that_are_not_wanted_are_not_used() -> None:
    feeds = [batch(step) for step in range(STEPS)]
    told = [batch(step + 70) for step in range(STEPS)]
    wanted = local_losses(feeds)
    (got,) = values(run_job(1, 1, looking_ahead(feeds, told, sync_mode=False)))
    assert got == wanted


def test_synchronous_trainers_do_not_look_ahead() -> None:
    feeds = [batch(step) for step in range(STEPS)]
    wanted = local_losses(feeds)
    (got,) = values(run_job(1, 1, looking_ahead(feeds, feeds, sync_mode=True)))
    assert got == wanted
