"""The array itself: what it covers, how it goes on, what it finds out about a refusal."""

from __future__ import annotations

import random
from itertools import combinations, product

import numpy as np
import pytest

from hpcdist import layers
from tests.equality import array, features, jobs, runs
from tests.equality.array import Array, array_of, needed
from tests.equality.covering import Covering
from tests.equality.features import FEATURES, HIDDEN, Feature, possible
from tests.equality.jobs import DIFFERENT, EQUAL, REFUSED, Outcome, compare
from tests.equality.programs import build
from tests.equality.runs import Run, read, unusual, whole


def rows_of(left: Covering) -> list[dict[str, str]]:
    found = []
    while (row := left.row()) is not None:
        left.cover(row)
        found.append(row)
    return found


SMALL = {"a": ["1", "2", "3"], "b": ["1", "2"], "c": ["1", "2", "3"], "d": ["1", "2"], "e": ["1"]}
APART = [{"a": "1", "b": "2"}, {"c": "3"}, {"b": "1", "c": "2", "d": "2"}]


@pytest.mark.parametrize("ways", [2, 3, 4])
def test_every_set_of_levels_that_may_meet_does(ways):
    left = Covering(SMALL, ways, random.Random(1))
    for levels in APART:
        left.forbid(levels.items())
    rows = rows_of(left)
    allowed = [
        row
        for values in product(*SMALL.values())
        if not any(one.items() <= (row := dict(zip(SMALL, values))).items() for one in APART)
    ]
    assert left.left == 0
    assert all(row in allowed for row in rows)
    assert met(rows, ways) == met(allowed, ways) and len(rows) <= len(allowed)


def met(rows, ways):
    return {levels for row in rows for levels in combinations(row.items(), ways)}


def test_the_declared_levels_all_meet():
    """Every pair that can be said occurs (triples, too, but to count them takes a minute)."""
    rows = rows_of(array.covering(2, random.Random(0), []))
    levels = [[(feature.name, level) for level in feature.levels] for feature in FEATURES]
    pairs = {pair for two in combinations(levels, 2) for pair in product(*two)}
    assert len(rows) < 250 and all(possible(row) for row in rows)
    assert {pair for pair in pairs - met(rows, 2) if possible(dict(pair))} == set()


def test_levels_that_are_to_blame_are_found():
    levels = dict.fromkeys("abcdefghij", "x")
    for guilty in ({"a"}, {"j"}, {"b", "c"}, {"a", "e", "j"}, set(levels)):
        assert needed(levels, lambda some, g=guilty: g <= set(some)).keys() == guilty


def judged(refused: dict[str, str], different: dict[str, str], calls: list[dict[str, str]]):
    """Return a stand-in for training, which refuses some levels together: an Array's functions."""

    def trained(choice):
        calls.append(dict(choice))
        if array.holds(choice, refused):
            return Outcome(REFUSED, why="for a reason")
        if array.holds(choice, different):
            return Outcome(DIFFERENT, 1.0, "by much")
        return Outcome(EQUAL, 1e-7)

    return {"trained": trained, "refuses": lambda levels: array.holds(levels, refused)}


def test_what_is_refused_hides_no_other_levels_and_differences_are_told():
    refused = {"mode": "GEO", "clip": "by norm"}
    different = {"optimizer": "Ftrl", "dropout": "drawn"}
    calls: list[dict[str, str]] = []
    ran = Array(**judged(refused, different, calls))
    list(ran.run_all(2, random.Random(3)))
    assert [dict(levels) for levels in ran.refusals] == [{**refused, "trainers": "2"}]
    wrong = [run.levels for run in ran.runs.values() if run.bad]
    assert different in wrong and all(array.holds(levels, different) for levels in wrong)
    trained = [whole(run.levels) for run in ran.runs.values() if run.outcome.kind != REFUSED]
    levels = [[(feature.name, level) for level in feature.levels] for feature in FEATURES]
    wanted = {pair for two in combinations(levels, 2) for pair in product(*two)}
    hidden = {pair for pair in wanted - met(trained, 2) if possible(dict(pair))}
    assert {frozenset(pair) for pair in hidden} == {frozenset(refused.items())}


def test_it_goes_on_where_it_was_ended_first_with_what_was_wrong(tmp_path):
    file, calls = tmp_path / "runs.jsonl", []
    different = {"optimizer": "Ftrl", "dropout": "drawn"}
    first = Array(**judged({"clip": "by norm"}, different, calls))
    with file.open("w") as out:
        for run in first.run_all(2, random.Random(3)):
            print(run, file=out, flush=True)
            if run.bad:
                break
    again = array_of(read(file))
    assert again.runs == first.runs and again.refusals == first.refusals
    vars(again).update(judged({"clip": "by norm"}, {"clip": "none", "mode": "none"}, calls))
    calls.clear()
    rest = list(again.run_all(2, random.Random(3)))
    wrong = [run.levels for run in first.runs.values() if run.bad]
    assert calls[: len(wrong)] == wrong
    assert not [run for run in again.runs.values() if run.bad] and rest
    assert list(again.run_all(2, random.Random(3))) == []


def test_a_level_that_is_no_longer_declared_is_left_out(tmp_path):
    file = tmp_path / "runs.jsonl"
    trained = [Run({"optimizer": name}, Outcome(EQUAL, 1e-7)) for name in ("SGD", "Forgotten")]
    file.write_text("".join(f"{run}\n" for run in trained))
    assert [run.levels for run in read(file)] == [{"optimizer": "SGD"}]


def test_a_new_feature_enters_by_one_line(monkeypatch):
    """It is built, trained by a job, and meets every level of all other features."""
    new = Feature("new", {"none": lambda h, net: h, "sine": lambda h, net: layers.sin(h)})
    monkeypatch.setattr(features, "HIDDEN", [*HIDDEN, new])
    for module in (array, runs):
        monkeypatch.setattr(module, "FEATURES", [*FEATURES, new])
    types = [op.type for op in build({"new": "sine"}).trained[0].main.global_block().ops]
    assert "sin" in types
    assert compare({"new": "sine"}).kind == EQUAL
    rows = rows_of(array.covering(2, random.Random(0), []))
    beside = {item for row in rows if row["new"] == "sine" for item in row.items()}
    assert beside >= {(f.name, level) for f in FEATURES for level in f.levels}
    assert unusual(rows[0]).get("new") in (None, "sine")


def test_a_slice_is_of_its_seed_and_tries_refusals_again(tmp_path, monkeypatch):
    refused = {"clip": "by norm", "mode": "GEO", "trainers": "2"}
    stale = {"clip": "by value", "mode": "GEO", "trainers": "2"}
    (tmp_path / "refused.jsonl").write_text(
        "".join(f"{Run(levels, Outcome(REFUSED, why='why'))}\n" for levels in (refused, stale))
    )
    monkeypatch.setattr(array, "REFUSALS", tmp_path / "refused.jsonl")
    monkeypatch.setattr(array, "compare", judged(refused, {"mode": "none"}, [])["trained"])

    def some(seed):
        found = array.run_slice(seed, float("inf"))
        return [next(found) for _ in range(8)]

    runs = some("2026-11-29")
    assert [run.levels for run in runs] == [run.levels for run in some("2026-11-29")]
    assert [run.levels for run in runs] != [run.levels for run in some("2026-11-30")]
    assert [run.levels for run in runs if run.bad] == [stale]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("op #2 clip(X=a@GRAD, Y=b) -> Out=c, D@GRAD=d cuts", "operator clip cuts"),
        ("op #12 clip(X=a@GRAD) -> Out=c: cannot", "operator clip: cannot"),
        ("op #39 print(In=a): cannot", "operator print: cannot"),
        ("no\n  operator", "no operator"),
    ],
)
def test_an_error_is_told_without_all_its_variables(error, line):
    assert jobs.line_of(ValueError(error)) == f"ValueError: {line}"


@pytest.mark.parametrize(
    ("got", "wanted", "far"),
    [
        ([0, 2, 0, 0], [0, 2, 0, 0], 0.0),
        ([0, 1, 1, 0], [0, 2, 0, 0], 1 / 8),  # one of two, by a quarter of the axis
        ([2, 0, 0, 0], [0, 0, 0, 2], 3 / 4),
        ([0, 3, 0, 0], [0, 2, 0, 0], np.inf),
    ],
)
def test_counts_are_as_far_apart_as_they_must_be_moved(got, wanted, far):
    assert jobs.shift(np.array(got), np.array(wanted)) == far


def test_a_slice_has_few_levels_in_a_program_and_what_must_go_together():
    left = array.covering(2, random.Random(0), [])
    for row in rows_of(left):
        levels = array.fewer(row, random.Random(1))
        assert levels.items() <= row.items() and possible(whole(levels))
        assert array.holds(levels, {name: row[name] for name in array.OF_A_JOB})
        assert len(levels) <= array.OF_A_SLICE + 3


def test_first_each_level_is_tried_in_each_mode():
    calls: list[dict[str, str]] = []
    refused = {"mode": "GEO", "clip": "by norm"}
    ran = Array(**judged(refused, {"mode": "none"}, calls))
    runs = list(ran.run_all(1, random.Random(0)))
    tried = {pair for choice in calls for pair in combinations(whole(choice).items(), 2)}
    mode, *others = FEATURES
    ways = {
        ((mode.name, way), (f.name, v)) for f in others for way in mode.levels for v in f.levels
    }
    assert {pair for pair in ways - tried if possible(dict(pair))} == set()
    assert [run.levels for run in runs if run.outcome.kind == REFUSED] == [
        {**refused, "trainers": "2"}
    ]
    assert max(len(choice) for choice in calls) <= 3
