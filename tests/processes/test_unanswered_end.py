"""A rank that asks mpirun for the end of a job which mpirun is ending already."""

from __future__ import annotations

import subprocess
import sys

from tests.support.jobs import clean_environment

NO_ANSWER = """
import time
from hpcdist.launch import quiet_end

quiet_end.ANSWERS_S = 0.1
quiet_end.pmix.abort = lambda code: time.sleep(100)
quiet_end.end_job(None, [], 2, 7, 0.0)
"""


def test_a_rank_that_mpirun_does_not_answer_ends_by_itself() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NO_ANSWER], env=clean_environment(), timeout=60, check=False
    )
    assert ended.returncode == 7
