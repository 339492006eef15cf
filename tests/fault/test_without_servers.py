"""What is said when a rank of a job without servers is stuck."""

from __future__ import annotations

import pytest

from tests.support.jobs import TRAIN, Job, needs_mpirun

pytestmark = needs_mpirun


@pytest.mark.parametrize("step", [0, 3])
def test_a_stuck_rank_is_named_with_its_stack_and_no_other(tmp_path, step):
    """In the first step the ranks agree on the program; later they sum gradients."""
    before = f"train({step})\n" if step else ""
    script = TRAIN + f"def stuck():\n    time.sleep(1000)\n{before}if RANK == 1: stuck()\ntrain(9)"
    ended = Job(tmp_path, script, "--quiet", "--deadline", "6000", ranks=3).end()
    assert ended.code != 0
    assert len(ended.messages) == 1
    assert ended.err.count("is missing:") == 1
    missing = ended.err.split("rank 1 (trainer 1, pid ")[1]
    assert "is missing:" in missing and "in stuck" in missing
