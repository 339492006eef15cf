"""What jobs write of themselves: a trace at the end, their last events at a failure or a signal."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from textwrap import dedent

import pytest

from hpcdist.base.trace import critical_path, files, summary
from hpcdist.base.trace.advice import advise
from hpcdist.base.trace.events import EventKind
from hpcdist.errors import TraceError
from tests.scripts import read_script
from tests.support import trace_processor
from tests.support.jobs import TRAIN, Job, needs_mpirun

pytestmark = needs_mpirun

TRAIN_UNTIL_TOLD = (
    TRAIN
    + """
while not os.path.exists("stop"):
    train(5)
if RANK == 0:
    raise ValueError("told to stop")
while True:
    train(5)
"""
)


def read(path):
    """Return a recording, None while there is none."""
    return files.read(path) if path.exists() else None


@pytest.mark.parametrize("servers", [0, 1])
def test_one_trace_has_all_ranks_and_an_arrow_for_every_message(tmp_path, servers):
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "events.7.npz").write_text("of an earlier job, of more ranks")
    options = ["--trace", "trace", "--pservers", str(servers)]
    job = Job(tmp_path, TRAIN + "train(20)\nexe.close()", *options, ranks=3)
    ended = job.end()
    assert ended.code == 0, ended
    trace = json.loads((tmp_path / "trace" / "trace.json").read_text())
    events = trace["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1, 2}
    steps = [e for e in events if e.get("cat") == "step"]
    assert len(steps) == 20 * (3 - servers)
    phases = [e["ph"] for e in events]
    assert phases.count("s") == phases.count("f") == 20 * 2 * 2 * servers
    by_id = {e["id"]: e for e in events if e["ph"] == "s"}
    slack_us = 2 * max(facts["clock error, microseconds"] for facts in trace["otherData"].values())
    for end in (e for e in events if e["ph"] == "f"):
        assert end["ts"] >= by_id[end["id"]]["ts"] - slack_us
    sums = [e for e in events if e["ph"] == "b"]
    assert len(sums) == (0 if servers else 60)
    assert sum(e["ph"] == "C" and e["name"].startswith("mean") for e in events) == len(steps)
    unapplied = [e["args"]["value"] for e in events if e["name"] == "packets not yet applied"]
    assert len(unapplied) == 20 * 3 * servers  # each comes, and both are applied
    if servers:
        assert (min(unapplied), max(unapplied)) == (0, 2)
        perfetto_reads(tmp_path / "trace" / "trace.json", steps=len(steps), arrows=len(by_id))


def perfetto_reads(path, *, steps, arrows):
    """Perfetto's own trace_processor finds all of it, each arrow from a send to its receipt."""
    with trace_processor.reading(path) as trace:
        (found,) = trace.query("select count(*) as n from slice where category = 'step'")
        assert found["n"] == steps
        (found,) = trace.query(
            "select count(*) as n, sum(b.ts >= a.ts) as later, "
            "sum('receive ' || substr(a.name, 6) = b.name) as same from flow "
            "join slice a on slice_out = a.id join slice b on slice_in = b.id"
        )
        assert found == {"n": arrows, "later": arrows, "same": arrows}
        names = trace.query("select name from process where name glob 'rank *' order by pid")
        assert [row["name"].split(" on ")[0] for row in names] == [
            "rank 0 (trainer 0",
            "rank 1 (trainer 1",
            "rank 2 (server 0",
        ]
        assert trace.query("select name from stats where value > 0 and severity != 'info'") == []


def test_a_trace_has_arrows_for_ids_rows_and_gradients_of_tables(tmp_path):
    script = read_script("traced_table")
    options = ["--trace", "trace", "--pservers", "2"]
    ended = Job(tmp_path, dedent(script), *options, ranks=4).end()
    assert ended.code == 0, ended
    events = json.loads((tmp_path / "trace" / "trace.json").read_text())["traceEvents"]
    # Trainers send ids and gradients, servers rows: in each step one message for each pair.
    for name, senders in (("ids", "t"), ("rows", "s"), ("gradients", "t")):
        called = (f"send {name} of tables", f"receive {name} of tables")
        of_tables = [e for e in events if e.get("name") in called]
        ends = Counter((e["name"].split()[0], e["pid"]) for e in of_tables)
        sends, receives = ({0, 1}, {2, 3}) if senders == "t" else ({2, 3}, {0, 1})
        assert ends == {("send", k): 10 for k in sends} | {("receive", k): 10 for k in receives}
        starts = {(e["pid"], e["ts"]) for e in of_tables if e["name"].startswith("send")}
        arrows = [e for e in events if e["ph"] == "s" and (e["pid"], e["ts"]) in starts]
        assert len(arrows) == 20


def test_a_failed_job_leaves_what_every_rank_did_last(tmp_path):
    job = Job(tmp_path, TRAIN_UNTIL_TOLD, "--pservers", "1", "--log-dir", "logs", ranks=3)
    path = files.path_of(tmp_path / "logs", 1)
    job.await_step(1, 3)
    os.kill(job.pid(1), signal.SIGRTMIN)  # asks for what there is: the job goes on
    job.wait_until(path.exists, "the recording of rank 1")
    asked = read(path)
    assert asked.of.why == "signal"
    assert (asked.recording.events["kind"] == EventKind.STEP).any()
    (tmp_path / "stop").touch()
    ended = job.end()
    assert ended.code != 0
    (said,) = [m for m in ended.messages if "failed at" in m]
    assert "rank 0 (trainer 0" in said
    assert "what each rank did last: python -m hpcdist report logs" in ended.err
    found = files.read_all(tmp_path / "logs")
    assert [(r.of.rank, r.of.role, r.of.why) for r in found] == [
        (0, "TRAINER", "failure"),
        (1, "TRAINER", "failure"),
        (2, "PSERVER", "failure"),
    ]
    for rank in found:
        assert (rank.recording.events["kind"] == EventKind.RECEIVED).any()
        assert rank.recording.events["end"].max() <= rank.of.written_ns
    # Who stopped first: its events end earliest, and the others have waited since.
    assert found[2].of.doing.startswith("step")


def test_a_slow_trainer_is_named(tmp_path):
    script = TRAIN + "train(30, every_s=0.05 if RANK == 1 else 0)\nexe.close()"
    job = Job(tmp_path, script, "--pservers", "1", "--trace", "trace", ranks=3)
    assert job.end().code == 0
    found = files.read_all(tmp_path / "trace")
    ranks = [summary.summarize(rank) for rank in found]
    slow = [a for a in advise(found, ranks) if a.cause == "a slow rank"]
    assert [advice.rank for advice in slow] == [1]
    assert "its script, between steps" in slow[0].text
    step = critical_path.times_of(found, critical_path.chosen_step(found))
    path = critical_path.critical_path(step)
    assert path and path[-1].end == step.end


def test_without_a_directory_nothing_is_written(tmp_path):
    job = Job(tmp_path, TRAIN + "train(5)\nraise ValueError('no')", mpirun=False)
    assert job.end().code == 1
    with pytest.raises(TraceError):
        files.read_all(tmp_path)


@pytest.mark.parametrize(
    ("end", "option", "code", "says"),
    [
        ("raise ValueError('no')", "--trace", 1, True),
        ("raise KeyboardInterrupt", "--trace", 130, False),
        ("sys.exit(3)", "--log-dir", 3, False),
    ],
)
def test_one_process_writes_what_it_did_last(tmp_path, end, option, code, says):
    job = Job(tmp_path, f"{TRAIN}train(5)\n{end}", option, "here", mpirun=False)
    ended = job.end()
    assert ended.code == code
    (found,) = files.read_all(tmp_path / "here")
    assert found.of.why == "failure"
    assert (found.recording.events["kind"] == EventKind.STEP).sum() == 5
    assert ("what each rank did last: python -m hpcdist report here" in ended.err) == says


def test_one_process_writes_a_trace_too(tmp_path):
    job = Job(tmp_path, TRAIN + "train(5)", "--trace", "trace", mpirun=False)
    assert job.end().code == 0
    events = json.loads((tmp_path / "trace" / "trace.json").read_text())["traceEvents"]
    assert sum(e.get("cat") == "step" for e in events) == 5
    (tmp_path / "file").touch()
    job = Job(tmp_path, TRAIN, "--trace", "file/trace", mpirun=False)
    ended = job.end()
    assert ended.code == 1
    assert "cannot make the directory of the trace 'file/trace'" in ended.err
