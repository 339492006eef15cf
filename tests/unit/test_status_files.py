"""What ranks write for `top` and for Prometheus while they run."""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from hpcdist.base.trace import metric_files, prometheus, status
from hpcdist.base.trace.events import EVENT, EventKind
from hpcdist.base.trace.files import RankOfJob
from hpcdist.base.trace.metric_log import log_metrics, metric_log
from hpcdist.base.trace.recorder import Recording
from hpcdist.base.trace.status import ENDED, FAILED, JobStatus, Waits
from hpcdist.errors import LaunchError
from hpcdist.launch import options, status_writer
from hpcdist.launch.status_writer import Watch
from tests.support.threads import LIMIT_S

NOW = 2_000_000.0
JOB = JobStatus(job="4711", script="train.py", ranks=3, unix_s=NOW - 600, every_s=2.0)


# -- what a rank writes ----------------------------------------------------------------------------
def recording(*events):
    names = ("reader", "sums")
    rows = [
        (begin, end, 0.0, thread, name, -1, 0, kind) for kind, name, thread, begin, end in events
    ]
    return Recording(np.array(rows, EVENT), names, len(rows))


def test_waits_of_the_scripts_thread_are_counted_within_the_time():
    found = recording(
        (EventKind.WAIT, 0, 7, 50, 150),  # half of it before
        (EventKind.WAIT, 1, 7, 200, 500),
        (EventKind.WAIT, 1, 8, 100, 1100),  # of another thread
        (EventKind.STEP, 0, 7, 150, 600),
    )
    assert status.waits_within(found, 7, 100, 1100) == Waits(0.35, "sums")
    assert status.steps_in(found) == status.last_step(found) == 1
    assert status.last_step(recording()) == 0
    assert status.waits_within(recording(), 7, 0, 10) == Waits()


def test_large_jobs_write_less_often():
    assert status.pace(2.0, 100) == 2.0
    assert status.pace(2.0, 5000) == 100.0


def watch(directory, scraped=None, also=()):
    of = RankOfJob(0, "TRAINER", 0, "n0", os.getpid())
    facts = replace(JOB, ranks=1, every_s=3600.0)
    return Watch(of, facts, directory, also, scraped)


def test_a_rank_writes_at_its_end_what_it_has_not_yet(tmp_path, monkeypatch):
    monkeypatch.setattr(status_writer.here, "step", 0)  # of other tests in this process
    one = watch(str(tmp_path), str(tmp_path), also=("csv",))
    one.prepare(first_of_host=True)
    one.begin()
    log_metrics(5, loss=0.5)
    one.close(ENDED)
    one.close(FAILED)  # it has ended already
    (told,) = status.read_all(tmp_path)
    assert (told.state, told.step, told.metrics) == (ENDED, 5, {"loss": (5, 0.5)})
    assert told.rss_mib > 1
    assert metric_files.read_all(tmp_path) == {"loss": {0: [(5, 0.5)]}}
    assert "5" in (tmp_path / "metrics.0.csv").read_text()
    assert not list(tmp_path.glob("*.prom")) and not metric_log.on
    assert not list(tmp_path.glob("*.tmp"))


def test_a_file_system_that_does_not_answer_keeps_nobody_from_ending(tmp_path, monkeypatch):
    monkeypatch.setattr(status_writer, "CLOSING_S", 0.01)
    begins, answers = threading.Event(), threading.Event()
    monkeypatch.setattr(status, "write", lambda *_: begins.set() or answers.wait(LIMIT_S))
    one = watch(str(tmp_path))
    thread = threading.Thread(target=one.write)
    thread.start()
    assert begins.wait(LIMIT_S)
    one.close(ENDED)
    assert not answers.is_set() and thread.is_alive()
    answers.set()
    thread.join()


def test_what_cannot_be_written_is_told_once_and_ends_nothing(tmp_path, caplog):
    folder = tmp_path / "metrics"
    folder.mkdir()
    one = watch(str(folder))
    one.begin()
    moved = folder.rename(tmp_path / "elsewhere")
    log_metrics(1, loss=1.0)
    one.write()
    one.write()
    one.close(ENDED)
    (told,) = caplog.messages
    assert "rank 0 (trainer 0 on n0) cannot write its status or metrics" in told
    assert metric_files.read_all(moved) == {"loss": {0: [(1, 1.0)]}}


def test_that_metrics_are_lost_is_told_though_a_full_disk_has_been(tmp_path, caplog, monkeypatch):
    one = watch(str(tmp_path))
    one.begin()
    monkeypatch.setattr(metric_files, "MAX_BUFFERED", 80)
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    for step in range(4):
        log_metrics(step, loss=1.0)
        one.write()
    monkeypatch.undo()
    one.close(ENDED)
    assert [message.split(": ", 1)[1] for message in caplog.messages] == [
        "[Errno 28] full; it keeps trying",
        "[Errno 28] full: metrics are lost; it keeps trying",
    ]


def test_files_of_others_are_refused_at_the_start(tmp_path):
    (tmp_path / "metrics.0.jsonl").write_text("mine\n")
    with pytest.raises(LaunchError, match="rank 0 .* cannot write its metrics: .* something other"):
        watch(str(tmp_path)).begin()


def test_a_job_that_the_script_starts_writes_nothing_into_this_ones_directories(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCDIST_METRICS", "watched")
    monkeypatch.setenv("HPCDIST_METRICS_ALSO", "csv")
    monkeypatch.setenv("HPCDIST_PROMETHEUS", "scraped")
    of = RankOfJob(0, "TRAINER", 0, "n0", os.getpid())
    assert status_writer.of_rank(options.parse(["train.py"]), of, 1, "job") is not None
    assert status_writer.of_rank(options.parse(["train.py"]), of, 1, "job") is None
    assert not {name for name in os.environ if "METRICS" in name or "PROMETHEUS" in name}


def test_a_directory_that_is_full_is_refused_at_the_start(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(status, "begin_job", full)
    with pytest.raises(
        LaunchError, match="rank 0 .* cannot write its first status: .*No space left"
    ):
        watch(str(tmp_path)).prepare(first_of_host=True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--metrics", "file"], "cannot make the directory of metrics 'file'"),
        (["--prometheus", "file"], "cannot make the directory of Prometheus's files 'file'"),
        (["--metrics-also", "csv"], "--metrics-also csv: say where, with --metrics DIR"),
        (["--metrics", "new", "--metrics-also", "csv"], ""),
        ([], ""),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_script(tmp_path, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    asked = options.parse([*words, "train.py"])
    assert status_writer.problem_with(asked).startswith(problem)
    assert bool(status_writer.problem_with(asked)) == bool(problem)


def test_without_tensorboardx_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(status_writer.tensorboard, "is_installed", lambda: False)
    words = ["--metrics", str(tmp_path), "--metrics-also", "tensorboard", "train.py"]
    assert "pip install 'tensorboardX" in status_writer.problem_with(options.parse(words))


def test_unknown_forms_are_refused(capsys):
    with pytest.raises(SystemExit):
        options.parse(["--metrics-also", "xml", "train.py"])
    assert "expected some of csv, tensorboard" in capsys.readouterr().err


def test_the_watching_thread_writes_while_the_script_computes(tmp_path):
    one = watch(str(tmp_path))
    one.begin()
    late = time.monotonic() + 60
    while not status.read_all(tmp_path) and time.monotonic() < late:
        threading.Event().wait(0.001)
    assert status.read_all(tmp_path)[0].state == status.RUNS
    one.close(ENDED)


def test_files_of_dead_processes_are_removed_and_no_others(tmp_path):
    dead = 2**22 + 1  # more than there can be
    gone = f"hpcdist.{dead + 1}.prom"
    (tmp_path / gone).symlink_to("nothing")  # as if another job had removed it meanwhile
    kept = [f"hpcdist.{os.getpid()}.prom", "hpcdist.x.prom", "a.prom"]
    for name in (f"hpcdist.{dead}.prom", f"hpcdist.{dead}.prom.{'a' * 16}.tmp", *kept):
        (tmp_path / name).touch()
    prometheus.remove_dead(tmp_path, sees_processes=True)
    assert {path.name for path in tmp_path.iterdir()} == {gone, *kept}


def test_files_that_nobody_writes_any_more_are_removed_where_no_process_can_be_seen(tmp_path):
    old = time.time() - prometheus.OLD_S - 60
    for name in ("hpcdist.11.prom", f"hpcdist.{os.getpid()}.prom", "a.prom"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "hpcdist.12.prom").touch()
    prometheus.remove_dead(tmp_path, sees_processes=False)
    assert {path.name for path in tmp_path.iterdir()} == {"hpcdist.12.prom", "a.prom"}
