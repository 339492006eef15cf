"""Processes that end at random moments: jobs go on as promised, or end at once and say why.

HPCDIST_KILLS is how many jobs (16), HPCDIST_KILLS_FROM the first one's number (0); see kills.py.
"""

from __future__ import annotations

import os

import pytest

from tests.fault.kills import draw, run
from tests.jobs import needs_mpirun

pytestmark = needs_mpirun

FIRST = int(os.environ.get("HPCDIST_KILLS_FROM", "0"))
COUNT = int(os.environ.get("HPCDIST_KILLS", "16"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_a_random_kill(tmp_path, seed):
    run(draw(seed), tmp_path)
