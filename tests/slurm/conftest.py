"""Fixtures of these tests: a Slurm of four nodes, and a folder to submit from."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.scripts import read_script
from tests.slurm.lab import Lab
from tests.support.jobs import ROOT


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Return a Slurm that runs until the last test has ended."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    made = Lab(folder, 4)
    # The python of these tests, wherever env.sh would look; root needs Open MPI's leave.
    made.environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def project(tmp_path):
    """Return a folder from which a user submits: it has the batch scripts and a script to train."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs")
    (tmp_path / "train.py").write_text(read_script("train_for_slurm"))
    return tmp_path
