"""The doctor as all ranks of a job, under mpirun."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.jobs import LIMIT_S, MPIRUN, clean_environment, needs_mpirun


@needs_mpirun
def test_ranks_compare_what_they_see_and_measure_their_links(tmp_path):
    command = [MPIRUN, "-n", "3", sys.executable, "-m", "hpcdist", "doctor", "--json"]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said, _ = json.JSONDecoder().raw_decode(ran.stdout[ran.stdout.index("{") :])
    assert (ran.returncode != 0) == (said["exit_code"] != 0), ran
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1, 2]
    assert [(link["a"], link["b"]) for link in said["links"]] == [(0, 1), (0, 2), (1, 2)]
    assert all(link["latency_s"] > 0 and link["bytes_per_s"] > 0 for link in said["links"])
    found = {finding["check"]: finding for finding in said["findings"]}
    assert found["launcher"]["level"] == found["versions"]["level"] == "OK"
    assert "3 ranks on 1 hosts" in found["launcher"]["text"]
