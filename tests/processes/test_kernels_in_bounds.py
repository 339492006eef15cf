"""No compiled loop of an operator reads or writes beside its arrays, whatever is fed."""

import os
import subprocess
import sys


def test_inputs_that_do_not_fit_each_other_are_refused_before_a_loop(tmp_path):
    """Numba compiles the loops once more, to look where they read."""
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.out_of_bounds"],
        capture_output=True,
        text=True,
        env={**os.environ, **checked},
    )
    tried, _, beside = ran.stdout.rpartition(" tried\n")
    assert ran.returncode == 0, beside + ran.stderr
    assert int(tried.split()[-1]) > 5000
