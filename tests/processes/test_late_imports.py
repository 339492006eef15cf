"""What takes long to import is imported by those who use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATE = ("cupy", "h5py", "mpi4py", "numba", "pyarrow", "scipy", "torch")


@pytest.mark.parametrize("module", ["hpcdist", "hpcdist.launch.main"])
def test_what_takes_long_to_import_is_not_imported_at_the_start(module):
    code = f"import sys, {module}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*LATE} & {*ran.stdout.split()}
