"""The daily loop in a job whose trainer or server is killed, again and again: the same bits.

HPCDIST_ONLINE_KILLS is how many jobs are killed, three times each (1).
"""

from __future__ import annotations

import os
import random

import pytest

from hpcdist.serving import Lookup
from tests.scripts import read_script
from tests.support.jobs import START_S, Job, needs_mpirun
from tests.support.online_days import bits_of, write_days

pytestmark = needs_mpirun

SCRIPT = read_script("trains_days")
PARTS = ("load", "score", "train", "shrink", "report")
RANKS = ((2, ["--pservers", "1"]), (1, []), (2, []))


def run(directory, ranks, options, *kill):
    for note in directory.glob("pid.*"):
        note.unlink()
    return Job(directory, SCRIPT, "--quiet", *options, ranks=ranks, args=kill).end(START_S)


@pytest.mark.parametrize("number", range(int(os.environ.get("HPCDIST_ONLINE_KILLS", "1"))))
def test_a_job_that_is_killed_goes_on_with_the_bits_of_one_that_is_not(tmp_path, number):
    rng = random.Random(number)
    ranks, options = RANKS[number % len(RANKS)]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
        write_days(directory / "data")
    assert run(whole, ranks, options).code == 0
    codes = []
    for _ in range(3):
        moment = rng.choice(PARTS), rng.randint(1, 2), rng.random() * 0.05, rng.randrange(ranks)
        codes.append(run(killed, ranks, options, ":".join(map(str, moment))).code)
    assert any(codes), "none was killed"
    ended = run(killed, ranks, options)
    assert ended.code == 0, ended
    assert bits_of(killed / "saved") == bits_of(whole / "saved")
    assert (killed / "saved/passes.jsonl").read_text() == (whole / "saved/passes.jsonl").read_text()
    published = [Lookup(root / "published", watch=False) for root in (killed, whole)]
    first, second = (lookup.pull("users", list(range(1, 40))) for lookup in published)
    assert (first == second).all()
