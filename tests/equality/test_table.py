"""The tables of docs/equality.md are those of what was run; each level has a row."""

from __future__ import annotations

import pytest

from tests.equality import features as f
from tests.equality import table
from tests.equality.array import Array, Run
from tests.equality.jobs import EQUAL, REFUSED, Outcome
from tests.equality.table import BEGIN, END, PAGE, Equals, record, recorded, tables, written

AGAIN = "run python -m tests.equality.table"


def test_the_page_has_the_tables_of_what_is_recorded():
    page = PAGE.read_text()
    assert BEGIN in page and END in page
    assert written(page, recorded()) == page, AGAIN


RUNS = [
    Run({"optimizer": "Adam", "mode": "GEO"}, Outcome(EQUAL, 3.1e-7)),
    Run({"optimizer": "Adam", "mode": "GEO", "clip": "by norm"}, Outcome(EQUAL, 2e-8)),
    Run({"optimizer": "Adam", "strategy": "bfloat16"}, Outcome(EQUAL, 1e-2)),
    Run({"optimizer": "Lamb", "mode": "GEO", "trainers": "2"}, Outcome(REFUSED, why="E: no Lamb")),
    Run({"optimizer": "Dpsgd"}, Outcome(REFUSED, why="by one process: E: never")),
    Run(
        {"optimizer": "Ftrl", "clip": "by norm", "mode": "GEO", "trainers": "2"},
        Outcome(REFUSED, why="E: a | b"),
    ),
    Run({"optimizer": "Adamax", "table": "distributed"}, Outcome(REFUSED, why="E: no rows")),
]


def cells(made: str, first: str) -> list[str]:
    line = next(line for line in made.splitlines() if line.startswith(f"| {first} |"))
    return line.strip("| ").split(" | ")[1:]


@pytest.fixture
def made():
    equals = Equals()
    for run in RUNS[:3]:
        equals.add(run)
    return tables(Equals.parse(equals.dump()), RUNS[3:])


@pytest.mark.parametrize(
    ("row", "mode", "said"),
    [
        ("optimizer: Adam", "GEO", "3e-07 (2)"),
        ("optimizer: Adam", "servers", "0e+00 (1)"),  # half precision has a bound of its own
        ("strategy: bfloat16", "servers", "1e-02 (1)"),
        ("optimizer: Lamb", "GEO", "refused"),
        ("optimizer: Lamb", "servers", "untried"),
        ("optimizer: Dpsgd", "own rows", "refused"),
        ("optimizer: Ftrl", "GEO", "untried"),
        ("optimizer: Adamax", "servers for tables", "refused"),  # which needs such a table
        ("optimizer: Adamax", "servers", "untried"),
        ("trainers: 3", "GEO", "—"),
        ("trainers: 2", "GEO", "—"),
        ("servers: 3", "no servers", "—"),
        ("programs: in turns", "transpiled", "—"),
    ],
)
def test_a_cell_says_what_is_known(made, row, mode, said):
    assert cells(made, row)[list(f.MODE.levels).index(mode)] == said


def test_what_is_refused_together_is_listed_with_its_reason(made):
    assert "| optimizer: Dpsgd | one process | never |" in made
    assert "| clip: by norm, optimizer: Ftrl | GEO | a / b |" in made


def test_what_is_recorded_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "EQUALS", tmp_path / "equal.json")
    monkeypatch.setattr(table, "RECORDED", tmp_path / "refused.jsonl")
    array = Array()
    for run in RUNS:
        array.add(run)
    record(array)
    equals = Equals()
    for run in RUNS[:3]:
        equals.add(run)
    assert recorded() == tables(equals, RUNS[3:])
    assert Equals.parse((tmp_path / "equal.json").read_text()).left == array.left(3) > 0
