"""What holds for the tests themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
IMPORT = re.compile(
    r"^ *(?:from [\w.]*\btest_\w+ import|from [\w.]+ import .*\btest_\w|import .*\btest_)", re.M
)


def test_no_test_module_imports_another():
    """A module that skips itself would take those with it that import it."""
    files = sorted(TESTS.rglob("*.py"))
    assert files
    found = {str(f.relative_to(TESTS)): IMPORT.findall(f.read_text()) for f in files}
    assert {name: imports for name, imports in found.items() if imports} == {}


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("from tests.mpi.test_ps import A", True),
        ("def f():\n    from tests.mpi import test_ps", True),
        ("import tests.mpi.test_ps as t", True),
        ("from tests.mpi.golden_jobs import test", False),
        ("from hpcdist.latest_news import a", False),
    ],
)
def test_the_check_sees_imports_of_test_modules(source, imports):
    assert bool(IMPORT.search(source)) == imports
