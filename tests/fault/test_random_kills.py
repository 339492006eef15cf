"""Processes that end at random moments: jobs go on as promised, or end at once and say why.

HPCDIST_KILLS is how many jobs (16), HPCDIST_KILLS_FROM the first one's number (0); see kills.py.
"""

from __future__ import annotations

import os

import pytest

from tests.fault.kills import HYBRID, draw, run
from tests.support.jobs import needs_mpirun

pytestmark = needs_mpirun

FIRST = int(os.environ.get("HPCDIST_KILLS_FROM", "0"))
COUNT = int(os.environ.get("HPCDIST_KILLS", "16"))
SEEDS = range(FIRST, FIRST + COUNT)
OF_HYBRID = SEEDS[::8]


@pytest.mark.parametrize("seed", sorted({*SEEDS} - {*OF_HYBRID}))
def test_a_random_kill(tmp_path, seed):
    run(draw(seed), tmp_path)


@pytest.mark.parametrize("seed", OF_HYBRID)
def test_a_random_kill_in_a_hybrid_job(tmp_path, seed):
    run(draw(seed, [HYBRID]), tmp_path)
