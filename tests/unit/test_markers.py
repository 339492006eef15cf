"""pytest-mpi ignores what it does not know: a misspelt marker would skip or run a test wrongly."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
KNOWN = {"min_size"}


def wrong_markers(source: str) -> list[str]:
    """Return the uses of ``pytest.mark.mpi(...)`` that pytest-mpi would misunderstand."""
    wrong = []
    if "mark.mpi" not in source:
        return wrong
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("pytest.mark.mpi_"):
            wrong.append(ast.unparse(node))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.mpi":
            names = {keyword.arg for keyword in node.keywords}
            if node.args or not names <= KNOWN:
                wrong.append(ast.unparse(node))
    return wrong


def test_markers_are_spelt_right():
    files = sorted(TESTS.rglob("test_*.py"))
    assert files
    found = {str(f.relative_to(TESTS)): wrong_markers(f.read_text()) for f in files}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("@pytest.mark.mpi(min_size=2)\ndef test_a(): pass", 0),
        ("pytestmark = pytest.mark.mpi", 0),
        ("@pytest.mark.mpi(minsize=2)\ndef test_a(): pass", 1),
        ("@pytest.mark.mpi(2)\ndef test_a(): pass", 1),
        ("@pytest.mark.mpi_skip\ndef test_a(): pass", 1),
    ],
)
def test_the_check_sees_wrong_markers(source, count):
    assert len(wrong_markers(source)) == count
