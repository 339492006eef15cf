"""Random Programs of random operators: a job computes what one process computes, or refuses.

`make test` runs 20 of them. HPCDIST_TEST_PROGRAMS=2000, or 2000:4000, in the environment of pytest
runs others.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from hpcdist.errors import FeedError, GraphError, PlanError
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, scope_guard
from tests.random_programs import RandomProgram, build
from tests.thread_jobs import ranks_as_threads

NEAR = 1e-5
SHAPES = [(2, 0), (3, 0), (2, 1), (3, 2)]  # trainers, servers
GROUP = 10  # programs in one test


def _seeds() -> range:
    first, colon, last = os.environ.get("HPCDIST_TEST_PROGRAMS", "20").rpartition(":")
    return range(int(first) if colon else 0, int(last))


def train(program: RandomProgram) -> list[list[np.ndarray]]:
    """The plain script: return what was fetched in every step, and from the test program after."""
    exe = Executor()
    exe.run(program.startup)
    runs = [(program.main, feed, program.fetch) for feed in program.feeds]
    runs.append((program.test, program.feeds[0], [*program.fetch, *program.parameters]))
    return [
        [np.asarray(v) for v in exe.run(main, feed=feed, fetch_list=fetch)]
        for main, feed, fetch in runs
    ]


def check(seed: int) -> str:
    """Compare the jobs of a seed with one process; return "equal" or "refused", or why neither."""
    try:
        with scope_guard(Scope()):
            steps = train(build(seed))
    except (GraphError, FeedError):
        return "fails alone"  # extents that meet only for some numbers of rows
    if not all(np.isfinite(v).all() for fetched in steps for v in fetched if v.dtype.kind == "f"):
        return "no numbers"
    outcomes = set()
    with ranks_as_threads() as run:
        for trainers, servers in SHAPES:
            programs = [build(seed) for _ in range(trainers + servers)]
            where = f"seed {seed}, {trainers} trainers, {servers} servers: {programs[0].ops}"
            try:
                results = run(trainers, servers, [lambda p=p: train(p) for p in programs])
            except (PlanError, FeedError) as error:
                assert "share" in str(error), where
                outcomes.add("refused")
                continue
            except Exception as error:
                raise AssertionError(where) from error
            outcomes.add("equal")
            for got_steps in results:
                for step, (got, wanted) in enumerate(zip(got_steps, steps, strict=True)):
                    names = [v.name for v in programs[0].fetch + programs[0].parameters]
                    names = names[: len(wanted)]
                    for name, one, other in zip(names, got, wanted, strict=True):
                        _assert_near(one, other, f"{where}: {name} in step {step}")
    assert len(outcomes) == 1, f"seed {seed}: refused in some jobs, not in others"
    return outcomes.pop()


def _assert_near(got: Any, wanted: Any, where: str) -> None:
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), where
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(got, wanted, rtol=NEAR, atol=NEAR * scale, err_msg=where)


@pytest.fixture(autouse=True)
def every_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fluid's Momentum loses rows of a sparse gradient, by how ids are ordered and repeated."""
    monkeypatch.setenv("HPCDIST_SPARSE_ROWS", "exact")


@pytest.mark.parametrize("first", _seeds()[::GROUP])
def test_a_job_computes_what_one_process_computes_or_refuses(
    first: int, record_property: Any
) -> None:
    seeds = range(first, min(first + GROUP, _seeds().stop))
    outcomes = {seed: check(seed) for seed in seeds}
    refused = [s for s, outcome in outcomes.items() if outcome == "refused" and build(s).plain]
    assert not refused, f"programs that compute row by row were refused: {refused}"
