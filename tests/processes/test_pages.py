"""The Python on the pages in docs/ runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.pages import AROUND, pages, script_of

NEEDS = {"data": ("pyarrow", "PIL"), "pytorch": ("torch",)}  # extras


@pytest.mark.parametrize("page", pages())
def test_python_of_a_page_runs(page, tmp_path):
    for extra in NEEDS.get(page, ()):
        pytest.importorskip(extra)
    (tmp_path / f"{page}_page.py").write_text(script_of(page))
    ran = subprocess.run(
        [sys.executable, f"{page}_page.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(AROUND)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
