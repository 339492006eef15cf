"""What the guard of speed makes of rounds and of what benchmarks print; that its works exist."""

from __future__ import annotations

import random
import shlex
import sys

import pytest

from tests.support.jobs import ROOT


@pytest.fixture
def guard(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import guard

    yield guard
    for name in ("guard", "vs_fluid", "rounds", "cases"):
        sys.modules.pop(name, None)


def test_few_good_rounds_pass_and_few_bad_ones_ask_for_more(guard):
    assert guard.verdict([1.0, 1.1]) is guard.Verdict.OPEN
    assert guard.verdict([1.0, 0.2, 0.95]) is guard.Verdict.PASSED
    assert guard.verdict([0.5] * 9) is guard.Verdict.OPEN


def test_only_rounds_that_agree_show_a_fall(guard):
    assert guard.verdict([0.8] * 10) is guard.Verdict.FELL
    assert guard.verdict([0.8] * 10 + [1.0]) is guard.Verdict.OPEN
    assert guard.verdict([0.8] * 13 + [1.0]) is guard.Verdict.FELL
    assert guard.verdict([0.8, 0.8, 1.0] * 4 + [0.8, 0.8]) is guard.Verdict.PASSED


def rounds_until_decided(guard, generator, speed, noise):
    ratios = []
    while guard.verdict(ratios) is guard.Verdict.OPEN:
        ratios.append(generator.lognormvariate(0, noise) * speed)
    return guard.verdict(ratios)


@pytest.mark.parametrize("noise", [0.05, 0.3, 0.5])
def test_noise_is_no_fall_and_a_fall_is_seen_through_noise(guard, noise):
    generator = random.Random(0)
    equal = [rounds_until_decided(guard, generator, 1.0, noise) for _ in range(500)]
    halved = [rounds_until_decided(guard, generator, 0.5, noise / 4) for _ in range(500)]
    assert equal.count(guard.Verdict.FELL) <= 1
    assert halved.count(guard.Verdict.FELL) > 450


def test_results_are_read_from_what_benchmarks_print(guard):
    step = 'a warning\n{"steps_per_s": 4.5, "losses": [1.0]}\n'
    assert guard.per_second(step) == {"steps_per_s": 4.5, "losses": [1.0]}
    sums = '{"steps_per_s": {"raw": 3.0, "fused": 2.5}, "losses": []}'
    assert guard.per_second(sums)["steps_per_s"] == 2.5
    table = '{"index": [1, 1], "pull": [2, 2], "take": [3, 3], "push": [4, 4], "bare_take": [9]}'
    assert guard.of_tables(table)["steps_per_s"] == pytest.approx(1 / 10)
    saved = '{"seconds": {"save": [3, 1], "restore, warm": [3, 4]}}'
    assert guard.of_checkpoints(saved)["steps_per_s"] == pytest.approx(1 / 4)
    torch = (
        "2 ranks\n       hpcdist gloo gloo / hpcdist\nDDP, MLP of 4 x 1024    10.000  13.0  1.30\n"
    )
    assert guard.of_torch(torch)["steps_per_s"] == pytest.approx(100)


@pytest.mark.parametrize("reader", ["per_second", "of_torch", "of_tables", "of_checkpoints"])
def test_output_without_a_result_is_a_failure(guard, reader):
    with pytest.raises(guard.Failed, match="among its output"):
        getattr(guard, reader)("nothing\n")


def test_every_work_has_a_script_and_a_name_of_its_own(guard):
    for work in guard.WORKS:
        assert (ROOT / "benchmarks" / shlex.split(work.words)[0]).is_file()
    assert len({work.name for work in guard.WORKS}) == len(guard.WORKS)
    assert {work.name for work in guard.WORKS if work.short}
