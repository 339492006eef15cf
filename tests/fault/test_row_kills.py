"""Jobs that are killed in the middle of epochs and go on with other numbers of trainers.

HPCDIST_ROW_KILLS is how many chains of jobs (1); see row_kills.py.
"""

from __future__ import annotations

import os

import pytest

from tests.support.jobs import needs_mpirun

pytest.importorskip("pyarrow", reason="pip install hpcdist[data]")
pytestmark = needs_mpirun


@pytest.mark.parametrize("number", range(int(os.environ.get("HPCDIST_ROW_KILLS", "1"))))
def test_no_row_is_lost_or_repeated(tmp_path, number):
    from tests.fault.row_kills import run

    run(number, tmp_path, jobs=2, most=2)
