"""Tables as a library, in jobs as users start them."""

from __future__ import annotations

import re

import pytest

from tests.scripts import read_script
from tests.support.jobs import ROOT, START_S, Job, needs_mpirun

pytestmark = needs_mpirun


def printed(tmp_path, script, trainers, servers, args=()):
    """Return what a job prints."""
    ranks, options = trainers + servers, ("--pservers", str(servers)) if servers else ()
    job = Job(tmp_path, script, *options, ranks=ranks, args=args, mpirun=ranks > 1)
    ended = job.end(within_s=START_S)
    assert ended.code == 0, ended
    return ended.out


def end_of(tmp_path, trainers, servers, *, steps=(0, 6), mode="sync", directory="-"):
    """Return (bits, loss) of a job that trains two tables."""
    args = (*map(str, steps), mode, str(directory))
    out = printed(tmp_path, read_script("ps_library"), trainers, servers, args)
    ((bits, loss),) = re.findall(r"bits (\w+) loss ([\d.]+)", out)
    return bits, float(loss)


def test_a_library_job_trains_as_one_process_with_servers_and_without(tmp_path):
    alone = end_of(tmp_path, 1, 0)
    two = end_of(tmp_path, 2, 2)
    assert two == end_of(tmp_path, 2, 0)
    assert two[1] == pytest.approx(alone[1], rel=1e-5)
    assert end_of(tmp_path, 1, 1, mode="async") == alone


def test_a_library_job_goes_on_from_its_checkpoint_on_other_servers(tmp_path):
    whole, saved = end_of(tmp_path, 1, 0), tmp_path / "saved"
    end_of(tmp_path, 1, 2, steps=(0, 3), directory=saved)
    assert end_of(tmp_path, 1, 0, steps=(3, 6), directory=saved) == whole


def test_the_trainer_of_the_documents_is_short_and_learns_alike_on_servers(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/ps.md").read_text(), re.S)
    assert len(script.replace("\n\n", "\n").splitlines()) <= 16  # with its name in a comment
    script = script.replace("range(100)", "range(20)")
    alone, served = (
        float(re.findall(r"loss ([\d.]+)", printed(tmp_path, script, *ranks))[0])
        for ranks in ((1, 0), (2, 2))
    )
    assert served == pytest.approx(alone, abs=2e-4)


def test_the_example_of_a_knowledge_base_has_equal_losses(tmp_path):
    script = (ROOT / "examples/knowledge_base.py").read_text()
    args = ("--steps", "20")
    alone, served = (printed(tmp_path, script, *ranks, args) for ranks in ((1, 0), (2, 2)))
    assert alone == served
    loss, found = map(float, re.findall(r"\d\.\d+", alone))
    assert loss < 0.5
    assert found > 0.1


@pytest.mark.parametrize(
    ("script", "ranks"),
    [("ps_publishes", (2, 0)), ("ps_publishes", (2, 2)), ("fluid_publishes", (2, 2))],
)
def test_a_job_publishes_what_its_owners_have(tmp_path, script, ranks):
    out = printed(tmp_path, read_script(script), *ranks, (str(tmp_path / "published"),))
    assert out.endswith("of step 6 is the same: True\n")
