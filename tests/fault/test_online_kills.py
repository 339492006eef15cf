"""The daily loop in a job whose trainer or server is killed, again and again: the same bits.

HPCDIST_ONLINE_KILLS is how many jobs are killed, three times each (1); see online_kills.py.
"""

from __future__ import annotations

import os

import pytest

from tests.fault.online_kills import draw, run
from tests.support.jobs import needs_mpirun

pytestmark = needs_mpirun


@pytest.mark.parametrize("number", range(int(os.environ.get("HPCDIST_ONLINE_KILLS", "1"))))
def test_a_job_that_is_killed_goes_on_with_the_bits_of_one_that_is_not(tmp_path, number):
    chain = draw(number)
    run(chain, tmp_path)
    assert chain.deaths, "none was killed"
