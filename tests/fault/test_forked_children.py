"""A process that a script forks is no rank: its end is its own."""

from __future__ import annotations

import pytest

from tests.scripts import read_script
from tests.support.jobs import TRAIN, Job, needs_mpirun

pytestmark = needs_mpirun

# A child comes to the end of the script, exits, raises, or is told to end.
FORKS = read_script("forks")


@pytest.mark.parametrize("options", [("--pservers", "1"), ()])
def test_a_forked_child_that_ends_does_not_end_the_job(tmp_path, options):
    ended = Job(tmp_path, TRAIN + FORKS, "--quiet", *options, ranks=2).end()
    assert (ended.code, ended.messages, ended.out) == (0, [], "[0, 3, 1, 1, -15] True\n")
    assert "a reason" in ended.err and "ZeroDivisionError" in ended.err
