"""Some troubles of machines and jobs are named; `python -m tests.fault.troubles` tries all."""

from __future__ import annotations

import pytest

from tests.fault.troubles import chosen, judge
from tests.support.jobs import needs_mpirun

pytestmark = needs_mpirun

FEW = [
    "few open files of rank 1",
    "stale files of UCX",
    "slow script of trainer 0",
    "SIGKILL on a server 0",
    "a NaN of rank 0, alone",
    "healthy, alone",
]


@pytest.mark.parametrize("name", FEW)
def test_a_trouble_is_named_and_a_healthy_job_is_not(tmp_path, name):
    pytest.importorskip("jinja2", reason="python -m pip install 'hpcdist[report]'")
    (case,) = [case for case in chosen([name]) if case.name == name]
    if lacking := case.missing():
        pytest.skip(lacking)
    verdict = judge(case, case.look(tmp_path))
    assert verdict.named, verdict
