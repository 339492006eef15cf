"""The tables of docs/equality.md are those of what was run; each level has a row."""

from __future__ import annotations

import json

import pytest

from tests.equality import features as f
from tests.equality import runs
from tests.equality.jobs import EQUAL, REFUSED, Outcome
from tests.equality.runs import Run, record, recorded, unusual
from tests.equality.table import BEGIN, END, PAGE, Equals, made_of, tables, written

AGAIN = "run python -m tests.equality.table"


def test_the_page_has_the_tables_of_what_is_recorded():
    page = PAGE.read_text()
    assert BEGIN in page and END in page
    assert written(page, made_of(recorded())) == page, AGAIN


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


def as_set(some: list[Run]):
    return {(frozenset(run.levels.items()), run.outcome) for run in some}


def cells(made: str, first: str) -> list[str]:
    line = next(line for line in made.splitlines() if line.startswith(f"| {first} |"))
    return line.strip("| ").split(" | ")[1:]


@pytest.fixture(scope="module")
def made():
    equals = Equals()
    for run in RUNS[:3]:
        equals.add(run)
    return tables(equals, RUNS[3:])


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
    monkeypatch.setattr(runs, "EQUALS", tmp_path / "equal.txt")
    monkeypatch.setattr(runs, "REFUSALS", tmp_path / "refused.jsonl")
    assert recorded() == []
    record(RUNS)
    again = recorded()
    assert as_set(again) == as_set(RUNS)
    equals = Equals()
    for run in RUNS[:3]:
        equals.add(run)
    assert tables(equals, again[3:]) in made_of(again)
    assert "3 Programs were equal" in made_of(again)


def test_a_program_had_the_usual_level_of_a_newer_feature_and_none_that_is_gone():
    optimizers = [*runs.DECLARED["optimizer"], "Forgotten"]
    levels = [("optimizer", optimizers), ("servers", ["2", "1"])]
    text = f"{json.dumps(levels)}\nba 2.0e-07\naa 0.0e+00\n{runs.LETTERS[len(optimizers) - 1]}a 0\n"
    found = list(runs.equal_runs(text))
    assert [run.levels for run in found] == [unusual({"optimizer": optimizers[1]}), {}]
    assert [run.outcome.off for run in found] == [2e-7, 0.0]
