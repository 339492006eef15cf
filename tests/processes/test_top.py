"""What a rank tells of itself while it runs, and what `top` shows of it."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hpcdist.base.trace import prometheus, status
from hpcdist.base.trace.events import Cause
from hpcdist.base.trace.status import ENDED, FAILED, JobStatus, RankStatus
from hpcdist.errors import TraceError
from hpcdist.launch import top

NOW = 2_000_000.0
JOB = JobStatus(job="4711", script="train.py", ranks=3, unix_s=NOW - 600, every_s=2.0)


def rank(number, **facts):
    role, index = ("PSERVER", 0) if number == 2 else ("TRAINER", number)
    told = {"step": 40, "steps_per_s": 8.0, "rss_mib": 200.0, "unix_s": NOW - 1}
    return RankStatus(number, role, index, f"n{number}", 100 + number, **told | facts)


def shown(*ranks, most=None):
    return top.view(JOB, ranks, NOW, most)


HEALTHY = (
    rank(0, waited=0.1, cause="the reader", metrics={"loss": (40, 0.25)}),
    rank(1, waited=0.3, cause="parameters from servers"),
    rank(2, steps_per_s=0.0, waited=0.9, cause="gradients from trainers"),
)


def test_a_healthy_job_has_a_row_for_each_rank_and_no_trouble():
    found = shown(*HEALTHY)
    assert found.title == "train.py, job 4711: 10 min · 2 trainers, 1 server · step 40 · 8 steps/s"
    assert found.metrics == "loss 0.25 (step 40, rank 0)"
    assert found.troubles == () and not found.over and not found.hidden
    assert [row[0] for row in found.rows] == ["0 trainer 0", "1 trainer 1", "2 server 0"]
    assert found.rows[1][1:7] == ("n1", "40", "8", "30%", "parameters from servers", "200 MiB")


def test_a_silent_rank_is_named():
    found = shown(*HEALTHY[:1], replace(HEALTHY[1], unix_s=NOW - 30), HEALTHY[2])
    assert found.troubles == ("rank 1 (trainer 1 on n1): no sign of life for 30 s",)
    assert found.rows[1][-1] == "silent for 30 s"


def test_a_job_that_was_killed_is_told_once():
    found = shown(*(replace(r, unix_s=NOW - 400) for r in HEALTHY))
    assert found.troubles == (
        "nothing has been written for 6 min: the job was killed, or the clock here differs",
    )


def test_the_rank_that_all_others_wait_for_is_named():
    waits = {"waits_for": "parameters from servers", "waits_s": 65.0, "idle_s": 65.0}
    found = shown(
        replace(HEALTHY[0], **waits),
        replace(HEALTHY[1], idle_s=66.0, doing="step 40, operator mul"),
        replace(HEALTHY[2], **waits | {"waits_for": "gradients from trainers"}),
    )
    (told,) = found.troubles
    assert told == (
        "rank 0 (trainer 0 on n0) has waited for parameters from servers for 65 s; not waiting: "
        "rank 1 (trainer 1 on n1): step 40, operator mul"
    )
    # A step that takes long is none of that, nor a wait that has just begun.
    calm = {"waits_for": "parameters from servers", "waits_s": 5.0, "idle_s": 65.0}
    assert shown(replace(HEALTHY[0], **calm), *HEALTHY[1:]).troubles == ()


def test_a_rank_that_failed_comes_before_those_that_are_well():
    found = shown(*HEALTHY[:2], replace(HEALTHY[2], state=FAILED, doing="step 40"), most=2)
    assert found.troubles == ("rank 2 (server 0 on n2) failed or was stopped: step 40",)
    assert [row[0] for row in found.rows] == ["0 trainer 0", "2 server 0"]
    assert found.hidden == 1 and not found.over


def test_ranks_that_have_not_written_yet_are_counted():
    assert shown(HEALTHY[1]).troubles == ("2 ranks of 3 not heard of yet: 0, 2",)


def test_a_job_is_over_when_all_its_ranks_have_ended():
    ended = [replace(r, state=ENDED, unix_s=NOW - 300) for r in HEALTHY]
    found = shown(*ended)
    assert found.over and found.troubles == ()
    assert found.title.endswith("step 40 · ended") and ": 5 min" in found.title
    assert not shown(*ended[:2]).over


# -- files -----------------------------------------------------------------------------------------
def test_a_status_is_read_as_it_was_written(tmp_path):
    status.begin_job(tmp_path, JOB)
    told = replace(HEALTHY[0], metrics={"loss": (3, float("inf")), "a": (2, -1.5)})
    status.write(tmp_path, told)
    status.write(tmp_path, HEALTHY[2])
    assert status.read_job(tmp_path) == JOB
    assert status.read_all(tmp_path) == [told, HEALTHY[2]]
    json.loads((tmp_path / "status.0.json").read_text(), parse_constant=pytest.fail)
    # Another job, with fewer ranks, is not taken for this one; files of others stay.
    (tmp_path / "status.0.json.0123456789abcdef.tmp").touch()
    (tmp_path / "status.mine.json").touch()
    (tmp_path / "status.2024.json").write_text("[]")
    status.begin_job(tmp_path, replace(JOB, ranks=1))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"job.json", "status.mine.json", "status.2024.json"}


def test_a_file_of_somebody_elses_is_not_replaced(tmp_path):
    (tmp_path / "job.json").write_text('{"mine": 1}')
    with pytest.raises(TraceError, match=r"job.json is in the way: .*move it, or name another"):
        status.begin_job(tmp_path, JOB)
    assert (tmp_path / "job.json").read_text() == '{"mine": 1}'


MANY = json.dumps(
    {"format": 1, "job": "", "script": "", "ranks": 1 << 40, "unix_s": 1, "every_s": 1}
)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 0}', '{"format": 1, "ranks": 2}', "[" * 100_000, MANY]
)
def test_other_files_are_refused_by_name(tmp_path, text):
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(TraceError, match=r"job.json is not the status of a job"):
        status.read_job(tmp_path)
    (tmp_path / "status.0.json").write_text(text)
    with pytest.raises(TraceError, match=r"status.0.json is not the status of a job"):
        status.read_all(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": "40"},
        {"unix_s": None},
        {"unix_s": float("nan")},
        {"rank": 1.5},
        {"waits_for": 3},
        {"steps_per_s": True},
        {"metrics": {"loss": ["3", 0.5]}},
        {"metrics": {"loss": [3, []]}},
        {"metrics": 1},
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(tmp_path, capsys, wrong):
    status.begin_job(tmp_path, JOB)
    status.write(tmp_path, HEALTHY[0])
    path = tmp_path / "status.0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(SystemExit):
        top.main([str(tmp_path)])
    assert "status.0.json is not the status of a job" in capsys.readouterr().err


def test_the_command_prints_once_where_there_is_no_terminal(tmp_path, capsys):
    status.begin_job(tmp_path, replace(JOB, unix_s=time.time()))
    for one in HEALTHY:
        status.write(tmp_path, replace(one, unix_s=time.time()))
    top.main([str(tmp_path)])
    out = capsys.readouterr().out
    for expected in ("job 4711", "loss 0.25", "0 trainer 0", "2 server 0", "90%", "200 MiB"):
        assert expected in out
    assert "no sign of life" not in out


def test_in_a_narrow_terminal_words_are_cut_and_numbers_are_not():
    waits = {"cause": "parameters from servers", "waits_for": "parameters from servers"}
    ranks = [rank(k, rss_mib=2048.0, **waits) for k in range(3)]
    told = shown(*(replace(one, host="a-node-of-a-cluster") for one in ranks))
    for width in (160, 100, 80, 60):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(top.drawn(told, width))
        lines = console.export_text().splitlines()
        assert max(map(len, lines)) <= width
        rows = [line for line in lines if re.match(r"[012] (trainer|server)", line)]
        assert len(rows) == 3
        assert all(re.search(r"\b40 +8 +\d+% .*2,048 MiB", row) for row in rows)
        assert all(("a-node" in row) == (width > 60) for row in rows)


def test_names_do_not_command_the_terminal(tmp_path, capsys):
    named = replace(HEALTHY[0], host="\x1b[2J", metrics={"\x1b]0;x\x07loss[red]": (40, 0.25)})
    status.begin_job(tmp_path, replace(JOB, script="\x9b2J.py"))
    status.write(tmp_path, replace(named, unix_s=time.time()))
    top.main([str(tmp_path)])
    out = capsys.readouterr().out
    assert "loss[red] 0.25" in out and "2J.py" in out
    assert all(c.isprintable() or c == "\n" for c in out)


def test_a_directory_without_a_job_is_refused_with_what_to_do(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        top.main([str(tmp_path)])
    assert end.value.code == 1
    assert "start it with `python -m hpcdist --metrics DIR`" in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[1]", b'{"format": 1}', None])
@pytest.mark.parametrize("name", ["job.json", "status.1.json"])
def test_files_of_others_end_the_command_by_name(tmp_path, capsys, name, data):
    status.begin_job(tmp_path, JOB)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    path.mkdir() if data is None else path.write_bytes(data)
    with pytest.raises(SystemExit) as end:
        top.main([str(tmp_path)])
    assert end.value.code == 1
    assert name in capsys.readouterr().err


def test_a_status_that_is_replaced_while_it_is_read_is_for_the_next_look(tmp_path, monkeypatch):
    status.write(tmp_path, HEALTHY[0])
    read = Path.read_text

    def stale(path, **how):
        if path.name == "status.1.json":
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(path, **how)

    (tmp_path / "status.1.json").touch()
    monkeypatch.setattr(Path, "read_text", stale)
    assert status.read_all(tmp_path) == [HEALTHY[0]]


def test_a_job_of_slurms_is_found_by_its_number(tmp_path, monkeypatch, capsys):
    here, work, bin_ = (tmp_path / name for name in ("here", "work", "bin"))
    for folder in (here, work / "logs-4711", work / "logs-4714", bin_):
        folder.mkdir(parents=True)
    (bin_ / "scontrol").write_text(
        "#!/bin/sh\n"
        f'[ "$4" = 4711_3 ] && echo "JobId=4714 ArrayJobId=4711 WorkDir={work} X=1" && exit\n'
        f'[ "$4" = 4711 ] && echo "JobId=4711 JobName=a WorkDir={work} X=1" && exit\n'
        "exit 1\n"
    )
    (bin_ / "scontrol").chmod(0o755)
    (work / "another").mkdir()
    (work / "another" / "job.json").write_text('{"name": "of another program"}')
    for number in ("4711", "4714"):
        status.begin_job(work / f"logs-{number}", replace(JOB, job=number))
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.chdir(here)
    assert top.find("4711") == work / "logs-4711"
    assert top.find("4711_3") == work / "logs-4714"
    with pytest.raises(TraceError, match="job 99 has no directory in .*: give the directory of"):
        top.find("99")
    # Without Slurm, from the folder where it was submitted.
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(work)
    assert top.find("4714").resolve() == work / "logs-4714"


# -- Prometheus ------------------------------------------------------------------------------------
def test_prometheus_reads_what_is_written_for_it(tmp_path):
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="python -m pip install 'hpcdist[test]'"
    )
    told = replace(HEALTHY[0], metrics={'a "b"\\c': (1, float("nan")), "loss": (2, 0.5)})
    prometheus.write(tmp_path, told, "4711")
    (path,) = tmp_path.iterdir()
    assert path.name == "hpcdist.100.prom"
    families = {f.name: f for f in parser.text_string_to_metric_families(path.read_text())}
    (step,) = families["hpcdist_step"].samples
    assert (step.labels, step.value) == ({"job_id": "4711", "rank": "0", "role": "trainer"}, 40.0)
    assert families["hpcdist_resident_bytes"].samples[0].value == 200 * 2**20
    metrics = {s.labels["name"]: s.value for s in families["hpcdist_metric"].samples}
    assert metrics["loss"] == 0.5 and np.isnan(metrics['a "b"\\c'])
    assert {f.type for f in families.values()} == {"gauge"}


def test_causes_are_words_that_a_row_has_room_for():
    assert max(len(cause.value) for cause in Cause) < 30
