"""Ranks of torch's jobs that end or hang at random moments: the job ends, and says which it was.

HPCDIST_KILLS is how many jobs (2), HPCDIST_KILLS_FROM the first one (2: of 2 and 3 one ends, one
hangs); see torch_kills.py. As many go on without the ranks that end; see shrink_kills.py.
"""

from __future__ import annotations

import os

import pytest

from tests.support.jobs import can_be_tolerant, needs_mpirun, needs_torch
from tests.torch import shrink_kills
from tests.torch.torch_kills import draw, run

pytestmark = [needs_mpirun, needs_torch]

FIRST = int(os.environ.get("HPCDIST_KILLS_FROM", "2"))
COUNT = int(os.environ.get("HPCDIST_KILLS", "2"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_a_random_end_or_hang(tmp_path, seed):
    run(draw(seed), tmp_path)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_others_go_on(tmp_path, seed):
    if not can_be_tolerant():
        pytest.skip("needs Open MPI 5")
    shrink_kills.run(shrink_kills.draw(seed), tmp_path)
