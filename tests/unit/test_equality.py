"""Sentences that promise equal losses or bits are in docs/equality.md, and what is named exists."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT / "docs/equality.md"
PAGES = {page.name: page for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
# differences.md names a test in each row, strategies.md ends with what its tests show.
OTHERS = {LIST.name, "differences.md", "names.md"}
PROMISE = re.compile(
    r"bit for bit|(?:same|equal) (?:bits|losses)|no bit changes|bits (?:of one|that they|of `)"
    r"|(?:losses|results|step) of one process|step (?:that )?one process would|go on exactly"
    r"|prints? the same",
    re.I,
)
NOT_PROMISED = (  # a heading, a column of what tests show, a measurement
    "## The same bits",
    "| the same bits as without, by optimizer;",
    "| the same bits, of dense layers,",
    "in the same run 8,900, with the same losses",
)


def words(page: str) -> str:
    return " ".join(PAGES[page].read_text().split())


@cache
def rows() -> list[tuple[str, str, list[str]]]:
    """Return page, sentence and names of tests of each row."""
    table = LIST.read_text().partition("| page | sentence | tests |\n|---|---|---|\n")[2]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return [(page, said, re.findall(r"`([^`]+)`", by)) for page, said, by in cells]


def test_every_promise_of_equality_is_in_the_list():
    missing = []
    for page in PAGES.keys() - OTHERS:
        text = words(page)
        for said in [*NOT_PROMISED, *(said for where, said, _ in rows() if where == page)]:
            text = text.replace(said, "")
        missing += [(page, text[m.start() - 60 : m.end()]) for m in PROMISE.finditer(text)]
    assert missing == []


def test_what_the_list_quotes_is_said():
    wrong = [(page, said) for page, said, _ in rows() if said not in words(page)]
    assert wrong == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_tests_that_are_named_exist(page):
    text = PAGES[page].read_text()
    names = set(re.findall(r"`(test_\w+)(?:\[[^`]*)?`", text))
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    assert names - tests() - {"test_program"} == set()
    assert {file for file in files if not (ROOT / file).exists()} == set()


def test_every_row_names_a_test():
    assert [said for _, said, by in rows() if not by] == []


@cache
def tests() -> set[str]:
    """Return the names of all tests, and of their modules."""
    files = list((ROOT / "tests").rglob("*.py"))
    found = {name for f in files for name in re.findall(r"def (test_\w+)", f.read_text())}
    return found | {f.stem for f in files}
