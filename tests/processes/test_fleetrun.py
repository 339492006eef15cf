"""`fleetrun` starts jobs of this host, and ends as they end."""

from __future__ import annotations

import subprocess
import sys

from tests.support.jobs import clean_environment

SCRIPT = """
import sys
import paddle.distributed.fleet as fleet
fleet.init()
print("servers", fleet.server_num(), "workers", fleet.worker_num(), sys.argv[1:], flush=True)
sys.exit(5 if "fail" in sys.argv else 0)
"""


def fleetrun(directory, *words, **env):
    (directory / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "hpcdist.launch.fleetrun", *words],
        cwd=directory,
        env=clean_environment() | env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_servers_and_workers_are_started_by_the_line_that_is_shown(tmp_path):
    ran = fleetrun(tmp_path, "--server_num=1", "--worker_num=2", "train.py", "--worker_num", "9")
    assert ran.returncode == 0, ran.stderr
    shown = "mpirun -n 3 python -m hpcdist --as-paddle --pservers 1 train.py --worker_num 9"
    assert ran.stdout.splitlines()[0] == f"fleetrun: {shown}"
    assert "servers 1 workers 2 ['--worker_num', '9']" in ran.stdout


def test_it_ends_as_the_script_ends(tmp_path):
    ran = fleetrun(tmp_path, "train.py", "fail")
    assert ran.returncode == 5
    assert ran.stdout.startswith("fleetrun: python -m hpcdist --as-paddle train.py fail\n")


def test_what_it_cannot_start_is_told_in_one_line(tmp_path):
    ran = fleetrun(tmp_path, "--server_num=1", "train.py")
    assert ran.returncode == 1 and ran.stderr.startswith("fleetrun: how many workers? ")
    ran = fleetrun(tmp_path, "train.py", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="0")
    assert ran.returncode == 1 and "fleetrun starts mpirun itself" in ran.stderr
