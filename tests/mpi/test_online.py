"""The daily loop in jobs: the rows and areas of one process, and the same bits after a restart."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import online
from hpcdist.checkpoint import Saver, shrink_tables
from tests.support.job import alone, begin, run_job, values
from tests.support.online_days import DAYS, PASSES, bits_of, dataset_of, network, write_days

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def data(mpi_tmp_path: Path) -> Path:
    """Two days that all ranks see."""
    from hpcdist.comm.world import mpi_world

    world = mpi_world()
    if world.rank == 0:
        write_days(mpi_tmp_path / "data")
    world.barrier()
    return mpi_tmp_path / "data"


def train(data: Path, saved: str, last: str = DAYS[1], start: Any = None) -> list[Any]:
    """The script; ``start`` transpiles it and returns what a trainer runs."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        variables, chance, loss = network()
        fluid.optimizer.Adagrad(0.1).minimize(loss)
    if start is None:
        exe, program = fluid.Executor(), main
        exe.run(startup)
    else:
        exe, program = start(main, startup)
    saver = Saver(exe, data.parent / saved, every=1, main_program=program)
    parts = online.of_dataset(exe, dataset_of(variables), chance, variables[-1], program=program)
    told: list[Any] = []
    online.train(
        data,
        DAYS[0],
        parts,
        saver,
        last=last,
        passes=PASSES,
        shrink=lambda: shrink_tables(main),
        after_pass=lambda report: told.append((report.rows, report.auc)),
    )
    exe.close()
    return told


@pytest.mark.parametrize(
    ("trainers", "servers", "divides"),
    [(2, 0, False), (1, 1, False), (2, 1, False), (1, 1, True), (2, 1, True)],
)
def test_a_job_is_stopped_and_goes_on(data, trainers, servers, divides):
    """``divides``: the script transpiles, and each trainer has samples of its own."""

    def script(role: Any, saved: str, last: str) -> Any:
        start = partial(begin, role, trainers, servers) if divides else None
        return train(data, saved, last, start)

    def job(saved: str, last: str = DAYS[1]) -> list[Any]:
        told = values(run_job(trainers, servers, lambda role: script(role, saved, last)))
        assert all(one == told[0] for one in told)
        return told[0]

    whole = job("whole")
    assert job("parts", DAYS[0]) + job("parts") == whole
    assert bits_of(data.parent / "parts") == bits_of(data.parent / "whole")
    with alone():
        alone_told = train(data, f"alone-{os.getpid()}")
    assert [rows for rows, _ in whole] == [rows for rows, _ in alone_told]
    if trainers == 1 or not divides:
        np.testing.assert_allclose([a for _, a in whole], [a for _, a in alone_told], atol=2e-3)
