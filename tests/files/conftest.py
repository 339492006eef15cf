"""What tests of files share."""

from __future__ import annotations

import pytest

import hpcdist as fluid
from tests.support.job import alone


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A script of its own: empty programs, first names, one process, an empty directory."""
    monkeypatch.chdir(tmp_path)
    with fluid.unique_name.guard(), alone(), fluid.program_guard(fluid.Program(), fluid.Program()):
        yield
