"""The table of what has run: what counts as skipped, and which skips are expected."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from tests.support import summary
from tests.support.summary import Result


def write(file, *results):
    file.write_text("".join(json.dumps(asdict(result)) + "\n" for result in results))


def test_a_test_that_has_run_somewhere_was_not_skipped(tmp_path):
    write(tmp_path / "ranks-2.0", Result("a", "passed", ""), Result("b", "skipped", "3 ranks"))
    write(tmp_path / "ranks-3.0", Result("b", "passed", ""), Result("c", "skipped", "no GPU"))
    runs = summary.by_run(tmp_path)
    assert list(runs) == ["ranks-2", "ranks-3"]
    assert summary.never_run(runs.values()) == {"no GPU": 1}


def test_the_slowest_files_are_those_of_all_runs(tmp_path):
    write(tmp_path / "alone.0", Result("a::1", "passed", "", 2.0), Result("b::1", "passed", "", 3))
    write(tmp_path / "jobs.0", Result("a::2", "failed", "", 1.5), Result("c::1", "passed", "", 1))
    runs = summary.by_run(tmp_path).values()
    assert summary.slowest(runs, 2) == [("a", 3.5), ("b", 3.0)]


def test_a_test_of_several_ranks_failed_if_it_did_on_one(tmp_path):
    write(tmp_path / "ranks-2.0", Result("a", "passed", ""), Result("b", "skipped", "other rank"))
    write(tmp_path / "ranks-2.1", Result("a", "failed", ""), Result("b", "passed", ""))
    (results,) = summary.by_run(tmp_path).values()
    assert {test: result.outcome for test, result in results.items()} == {
        "a": "failed",
        "b": "passed",
    }


def test_what_failed_on_a_rank_is_tried_again(tmp_path):
    ended = [Result("a", "passed", ""), Result("b", "skipped", "3"), Result("c", "passed", "")]
    write(tmp_path / "ranks-2.0", *ended)
    write(tmp_path / "ranks-2.1", *ended, Result("c", "failed", "teardown"))
    write(tmp_path / "ranks-20.0", Result("a", "failed", ""))
    assert summary.few_failed(tmp_path / "ranks-2", 3) == {"c"}
    assert summary.tried_again(tmp_path / "ranks-2", ["a", "b", "c"]) == ["c"]


@pytest.mark.parametrize("failed", [0, 4])
def test_all_or_none_are_not_tried_again(tmp_path, failed):
    write(tmp_path / "alone.0", *(Result(str(k), "failed", "") for k in range(failed)))
    with pytest.raises(ValueError, match=f"{failed} tests failed: from 1 to 3 are tried again"):
        summary.few_failed(tmp_path / "alone", 3)


@pytest.mark.parametrize("run", ["ranks-2", "ranks-3"])
def test_a_run_that_died_is_not_tried_again(tmp_path, run):
    """On one of its ranks, or before there was any result."""
    failed, passed = Result("a", "failed", ""), Result("b", "passed", "")
    write(tmp_path / "ranks-2.0", failed, passed)
    write(tmp_path / "ranks-2.1", failed)
    with pytest.raises(ValueError, match=r"the run ended before \d of its tests had"):
        summary.tried_again(tmp_path / run, ["a", "b"])


def test_only_what_passed_is_named_as_passed_when_tried_again(tmp_path, monkeypatch, capsys):
    write(tmp_path / "unit-again.0", Result("a", "passed", ""), Result("b", "failed", ""))
    monkeypatch.setattr("sys.argv", ["summary", str(tmp_path)])
    summary.main()
    told = capsys.readouterr().out
    assert "passed only when tried again: a" in told
    assert "passed only when tried again: b" not in told


def test_skips_for_want_of_data_are_expected_where_there_are_none(monkeypatch):
    monkeypatch.delenv("HPCDIST_DATA_HOME", raising=False)
    assert summary.is_expected("HPCDIST_DATA_HOME lacks a file")
    monkeypatch.setenv("HPCDIST_DATA_HOME", "/data")
    assert not summary.is_expected("HPCDIST_DATA_HOME lacks a file")
    assert not summary.is_expected("needs 3 ranks, got 2")


def test_what_used_few_of_many_ranks_is_shown_for_as_many(tmp_path):
    of_four = {"world": 4, "seconds": 0.1}
    write(
        tmp_path / "ranks-4.0",
        Result("two", "passed", "", used=2, **of_four),
        Result("three", "passed", "", used=3, **of_four),
        Result("all", "passed", "", used=4, **of_four),
        Result("asks", "passed", "", used=0, **of_four),
        Result("fails", "failed", "", used=2, **of_four),
    )
    write(tmp_path / "ranks-2.0", Result("again", "passed", "", used=2, world=2))
    assert summary.shown_with_more(tmp_path, 3) == {"two", "three"}
    assert summary.shown_with_more(tmp_path, 2) == {"two"}
    assert not summary.shown_with_more(tmp_path, 4)
    assert not summary.shown_with_more(tmp_path / "none yet", 2)
