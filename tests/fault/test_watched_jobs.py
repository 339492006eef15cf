"""Jobs that write how far they are, and their metrics: alone, with servers and without, killed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal

import pytest

from hpcdist.base.extras import install_command
from hpcdist.base.trace import metric_files, status
from hpcdist.launch import top
from tests.scripts import read_script
from tests.support.jobs import TRAIN, Job, needs_mpirun

pytestmark = needs_mpirun

SOON = {"HPCDIST_METRICS_EVERY": "0.05"}
TRAIN_UNTIL_TOLD = TRAIN + read_script("train_until_told")


def statuses(job):
    return status.read_all(job.directory / "watched")


def screen(job):
    """Return what `top` prints of a job."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        top.main([str(job.directory / "watched"), "--once"])
    return out.getvalue()


@pytest.mark.parametrize("servers", [0, 1])
def test_a_running_job_is_watched_and_leaves_its_metrics(tmp_path, servers):
    options = ["--metrics", "watched", "--metrics-also", "csv", "--pservers", str(servers)]
    job = Job(tmp_path, TRAIN_UNTIL_TOLD, *options, "--prometheus", "prom", ranks=3, env=SOON)
    job.wait_until(
        lambda: [s.step > 5 and s.steps_per_s > 0 for s in statuses(job)] == [True] * 3,
        "three ranks that tell of their steps",
    )
    job.wait_until(lambda: any(s.metrics for s in statuses(job)), "a loss")
    assert len(list((tmp_path / "prom").glob("hpcdist.*.prom"))) == 3
    shown = screen(job)
    roles = ["trainer 0", "trainer 1", "server 0" if servers else "trainer 2"]
    for expected in (*roles, "train.py", "mean_0.tmp_0", "MiB", "steps/s"):
        assert expected in shown
    assert [s.state for s in statuses(job)] == [status.RUNS] * 3
    (tmp_path / "stop").touch()
    ended = job.end()
    assert ended.code == 0, ended
    assert [s.state for s in statuses(job)] == [status.ENDED] * 3
    assert "ended" in screen(job)
    assert not list((tmp_path / "prom").iterdir())
    curves = metric_files.read_all(tmp_path / "watched")
    (name,) = curves
    assert list(curves[name]) == [0]  # trainer 0 writes what all have fetched
    steps = [step for step, _ in curves[name][0]]
    assert steps == sorted(set(steps)) and steps[0] == 1
    assert curves[name][0][-1][1] < curves[name][0][0][1]
    assert (tmp_path / "watched" / "metrics.0.csv").read_text().count("\n") == len(steps) + 1


def test_every_rank_writes_what_it_logs_and_a_job_that_goes_on_appends(tmp_path):
    pytest.importorskip("tensorboardX", reason=install_command("tensorboard"))
    script = TRAIN + (
        "first = int(sys.argv[1])\n"
        "for step in range(first, first + 3):\n"
        "    fluid.log_metrics(step, mine=100 * RANK + step)\n"
        "    train(1)\n"
        "exe.close()"
    )
    options = ["--metrics", "watched", "--metrics-also", "csv,tensorboard"]
    for first in ("1", "3"):
        assert Job(tmp_path, script, *options, ranks=2, args=[first]).end().code == 0
    curves = metric_files.read_all(tmp_path / "watched")
    assert curves["mine"] == {
        rank: [(step, 100.0 * rank + step) for step in (1, 2, 3, 4, 5)] for rank in (0, 1)
    }
    for rank in (0, 1):
        folder = tmp_path / "watched" / "tensorboard" / f"rank{rank}"
        assert len(list(folder.iterdir())) == 2


def test_a_killed_rank_leaves_readable_files_and_the_others_say_that_they_failed(tmp_path):
    job = Job(tmp_path, TRAIN_UNTIL_TOLD, "--metrics", "watched", ranks=3, env=SOON)
    job.wait_until(lambda: any(s.metrics for s in statuses(job)), "a loss")
    os.kill(job.pid(0), signal.SIGKILL)
    assert job.end().code != 0
    curves = metric_files.read_all(tmp_path / "watched")
    assert [list(ranks) for ranks in curves.values()] == [[0]]
    states = {s.rank: s.state for s in statuses(job)}
    assert states[0] == status.RUNS
    assert set(states.values()) <= {status.RUNS, status.FAILED}


def test_a_rank_that_fails_is_shown(tmp_path):
    script = TRAIN + "train(3)\nif RANK == 1:\n    raise ValueError('no')\ntrain(1000, every_s=1)"
    job = Job(tmp_path, script, "--metrics", "watched", ranks=2)
    assert job.end().code == 1
    assert {s.rank: s.state for s in statuses(job)}[1] == status.FAILED
    assert "rank 1 (trainer 1" in screen(job) and "failed or was stopped: step 3" in screen(job)


@pytest.mark.parametrize(
    ("end", "code", "state"), [("", 0, status.ENDED), ("sys.exit(3)", 3, status.FAILED)]
)
def test_one_process_is_watched_too(tmp_path, end, code, state):
    script = f"{TRAIN}train(4)\nfluid.log_metrics(4, mine=1)\n{end}"
    job = Job(tmp_path, script, mpirun=False, env={"HPCDIST_METRICS": "watched"})
    assert job.end().code == code
    (told,) = statuses(job)
    assert (told.state, told.step) == (state, 4)
    assert set(told.metrics) == {"mine", "mean_0.tmp_0"}
    facts = json.loads((tmp_path / "watched" / "job.json").read_text())
    assert (facts["script"], facts["ranks"]) == ("train.py", 1)


def test_without_being_asked_nothing_is_written(tmp_path):
    before = set(os.listdir(tmp_path))
    job = Job(tmp_path, TRAIN + "fluid.log_metrics(1, mine=1)\ntrain(2)", mpirun=False)
    assert job.end().code == 0
    assert set(os.listdir(tmp_path)) - before == {"train.py", "pid.0", "step.0"}


def test_a_directory_that_cannot_be_is_refused_before_the_script(tmp_path):
    (tmp_path / "file").touch()
    job = Job(tmp_path, "print('script')", "--metrics", "file", ranks=2)
    ended = job.end()
    assert ended.code != 0 and "script" not in ended.out
    assert "cannot make the directory of metrics 'file'" in ended.err
