"""Every optimizer with every clip, regularizer, schedule, average and table: jobs, and one process.

`make test` meets every pair of these once, in jobs of changing sizes. HPCDIST_TEST_UPDATES=pairs in
the environment of pytest tries each in all sizes, HPCDIST_TEST_UPDATES=all all combinations (hours;
0:500 the first 500 of them).
"""

from __future__ import annotations

import itertools
import os
from collections import Counter

import numpy as np
import pytest

from hpcdist.errors import CommError, GraphError, PlanError
from hpcdist.executor.scope import Scope, scope_guard
from tests.support.thread_jobs import ranks_as_threads
from tests.support.update_programs import Choice, build, choices, train

SHAPES = [(1, 1), (2, 2), (2, 0)]  # trainers, servers
GROUPS = 8
ASKED = os.environ.get("HPCDIST_TEST_UPDATES", "")
REFUSED = (  # before the first step
    "LookaheadOptimizer moves parameters in every step",
    "has is_sparse=True, but operators other than lookups read it",
    "would run on parameter servers, but reads",
)


def _choices() -> list[Choice]:
    if ASKED in ("", "pairs"):
        return list(choices())
    begin, _, end = ASKED.rpartition(":")
    last = None if end == "all" else int(end)
    return list(itertools.islice(choices(pairs=False), int(begin or 0), last))


def check(choice: Choice, shapes: list[tuple[int, int]]) -> Counter[str]:
    """Compare jobs with one process; count what is "equal", "refused", or "fails alone"."""
    try:
        with scope_guard(Scope()):
            wanted = train(build(choice))
    except (GraphError, PlanError):
        return Counter(["fails alone"])
    assert all(np.isfinite(value).all() for value in wanted.values()), choice
    outcomes: Counter[str] = Counter()
    for trainers, servers in shapes:
        where = f"{trainers} trainers, {servers} servers: {choice}"
        programs = [build(choice) for _ in range(trainers + servers)]
        with ranks_as_threads() as run:
            try:
                results = run(trainers, servers, [lambda p=p: train(p) for p in programs])
            except (PlanError, CommError) as error:
                assert any(words in str(error) for words in REFUSED), f"{where}: {error}"
                outcomes["refused"] += 1
                continue
            except Exception as error:
                raise AssertionError(where) from error
        for found in results:
            assert found.keys() == wanted.keys(), where
            for name, value in wanted.items():
                scale = max(1.0, float(np.abs(value).max()))
                np.testing.assert_allclose(
                    found[name], value, rtol=2e-5, atol=2e-5 * scale, err_msg=f"{where}: {name}"
                )
        outcomes["equal"] += 1
    return outcomes


@pytest.mark.parametrize("group", range(GROUPS))
def test_updates_of_jobs_are_those_of_one_process(group):
    outcomes: Counter[str] = Counter()
    for number, choice in enumerate(_choices()):
        if number % GROUPS == group:
            turn = [SHAPES[(number // GROUPS + group) % len(SHAPES)]]
            outcomes += check(choice, SHAPES if ASKED else turn)
    assert outcomes["equal"] >= outcomes["refused"], outcomes
