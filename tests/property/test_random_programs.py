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
from hpcdist.executor.scope import Scope, scope_guard
from tests.support.random_programs import assert_near, build, train
from tests.support.thread_jobs import ranks_as_threads

SHAPES = [(2, 0), (3, 0), (2, 1), (3, 2)]  # trainers, servers
GROUP = 10  # programs in one test


def _seeds() -> range:
    first, colon, last = os.environ.get("HPCDIST_TEST_PROGRAMS", "20").rpartition(":")
    return range(int(first) if colon else 0, int(last))


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
                        assert_near(one, other, f"{where}: {name} in step {step}")
    assert len(outcomes) == 1, f"seed {seed}: refused in some jobs, not in others"
    return outcomes.pop()


@pytest.mark.parametrize("first", _seeds()[::GROUP])
def test_a_job_computes_what_one_process_computes_or_refuses(
    first: int, record_property: Any
) -> None:
    seeds = range(first, min(first + GROUP, _seeds().stop))
    outcomes = {seed: check(seed) for seed in seeds}
    refused = [s for s, outcome in outcomes.items() if outcome == "refused" and build(s).plain]
    assert not refused, f"programs that compute row by row were refused: {refused}"
