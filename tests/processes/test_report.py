"""What a report says of jobs: each trouble is named with its rank, a healthy job is left alone.

Recordings are made by hand: so a slow rank is slow on every machine.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from hpcdist.base.trace import critical_path, files, load, summary
from hpcdist.base.trace.advice import advise
from hpcdist.base.trace.events import Cause, EventKind
from hpcdist.base.trace.files import RankOfJob
from hpcdist.launch import job_report
from tests.support.browser import chromium
from tests.support.recorded_jobs import BYTES, STEPS, US, Rank, job, programs, told


def test_a_healthy_job_gets_no_advice():
    assert told(job()) == []
    assert told(job(busy_us=(600, 700, 650), reader_us=50, script_us=50)) == []
    assert told(job(late_us=(40, 60))) == []
    assert told(job(busy_us=(300, 300, 700))) == []  # they share cores with other ranks


@pytest.mark.parametrize(
    ("trouble", "cause", "rank"),
    [
        ({"busy_us": (600, 600, 2000)}, "a slow rank", 2),
        ({"busy_us": (6000, 600, 700)}, "a slow rank", 0),
        ({"reader_us": 900}, "the reader", 0),
        ({"script_us": 2000}, "the script", None),
        ({"applied": (BYTES, 9 * BYTES)}, "placement", 4),
        ({"busy_us": (20_000,) * 3, "gc_us": 4000}, "garbage collection", 1),
        ({"busy_us": (9000,) * 3, "save_us": 150_000}, "checkpoints", 0),
        ({"stall_us": 20_000}, "a slow rank", 2),
        ({"late_us": (5, 900)}, "a slow server", 4),
        ({"late_us": (900, 5)}, "a slow server", 3),
        ({"busy_us": (20_000,) * 3, "grows": range(100, 220, 10)}, "memory", 1),
    ],
)
def test_a_trouble_is_named_with_its_rank(trouble, cause, rank):
    assert told(job(**trouble)) == [(cause, rank)]


def test_a_machine_without_cores_for_its_ranks_is_named():
    """Others have the cores, too many ranks share them, or the hypervisor has them."""

    def advice(**load):
        found = [
            replace(rank, of=replace(rank.of, host="n", cores=2, load=7.5, **load))
            for rank in job()
        ]
        return [
            item.text
            for item in advise(found, [summary.summarize(rank) for rank in found])
            if item.cause == "an overloaded machine"
        ]

    assert advice(busy=2.0, own=0.39, delayed=0.1) == []
    (text,) = advice(busy=2.0, own=0.1, delayed=0.6)
    assert text.startswith("the 5 ranks on n were ready and had no core for 60% of the time")
    assert "of 2 cores they had 0.5, other programs 1.5; load average 7.5: start fewer" in text
    (text,) = advice(busy=0.5, own=0.1, delayed=0.0, stolen=0.4)
    assert "other programs 0.0; the hypervisor gave 40% to other machines" in text


def test_the_load_of_a_machine_is_told_from_its_counters(tmp_path):
    def at(*cores):
        lines = [f"cpu{k} " + " ".join(map(str, ticks)) for k, ticks in enumerate(cores)]
        (tmp_path / "stat").write_text("\n".join(["cpu 1 2", *lines, "intr 5"]))
        return load.sample(tmp_path)

    # user nice system idle iowait irq softirq steal guest guest_nice
    before = at((10, 0, 0, 0, 0, 0, 0, 0, 0, 0), (0,) * 10)
    after = at((60, 0, 0, 50, 0, 0, 0, 0, 0, 0), (0, 10, 10, 30, 25, 5, 0, 20, 0, 0))
    both = before.until(after)
    assert (both.cores, both.busy, both.stolen) == (2, pytest.approx(0.75), pytest.approx(0.1))
    assert before.until(after, {1}).busy == pytest.approx(0.25)
    assert before.until(before) == load.Load()
    (tmp_path / "12").mkdir()
    (tmp_path / "12/stat").write_text("12 (a) b) R " + "0 " * 10 + "150 50 0")
    assert [*load.programs(tmp_path)] == [(12, "a) b")]


def test_where_the_time_went():
    trainer, *_, server = [summary.summarize(rank) for rank in job(reader_us=100, script_us=50)]
    step_us = 100 + 50 + 600 + 20 + 66
    assert trainer.steps == STEPS
    assert trainer.steps_per_s == pytest.approx(1e6 / step_us, rel=0.01)
    assert trainer.waits[Cause.READER] == pytest.approx((STEPS - 1) * 100e-6)
    assert trainer.waits[Cause.PARAMETERS] == pytest.approx(STEPS * 80e-6)
    assert trainer.between == pytest.approx((STEPS - 1) * 51e-6)
    assert trainer.busy == pytest.approx((50 + 600 + 6) * 1e-6)
    assert server.applied == pytest.approx(STEPS * 25e-6)
    assert server.applied_bytes == STEPS * BYTES


def test_the_critical_path_goes_through_the_slowest_trainer_and_a_server():
    found = job(busy_us=(600, 2000, 700))
    step = critical_path.times_of(found, critical_path.chosen_step(found))
    path = critical_path.critical_path(step)
    assert path[0].rank == 1
    assert path[0].end - path[0].begin > 1900 * US
    assert path[1].rank in (3, 4)
    assert all(a.end <= b.end and a.begin <= a.end for a, b in pairwise(path))
    assert (path[0].begin, path[-1].end) == (step.begin, step.end)


class Checked(HTMLParser):
    """Notes texts; fails on what would load something, and on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        assert not {name for name, _ in attributes} & {"src", "href", "onload", "onclick"}
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_is_whole_and_loads_nothing(tmp_path, capsys):
    pytest.importorskip("jinja2", reason="pip install jinja2")
    for rank in job(busy_us=(600, 600, 2000)):
        files.write(tmp_path, rank)
    page = tmp_path / "job.html"
    job_report.main([str(tmp_path), "-o", str(page)])
    said = capsys.readouterr().out
    assert said.startswith(f"{page}: 5 ranks\n")
    assert "a slow rank: rank 2" in said
    checked = Checked(page.read_text())
    assert checked.tags.count("svg") == 7  # waits, step, throughput, loss, placement, two Programs
    text = " ".join(checked.texts)
    for expected in (
        "a slow rank",
        f"Step {STEPS // 2 + 1}",
        "critical path",
        "mul",
        "from \\ to",
        "n2",
        "3 trainers: the Program that trains",
        "2 servers: the Program that serves",
        "listen_and_serv",
        "Parameters on servers",
        "KiB of a call",
        "1024.0",
    ):
        assert expected in text
    shares = re.findall(r"rank 2 \(trainer 2 on n2\): [\d.]+ ms \((\d+)%\)", text)
    assert int(shares[0]) > 80


USE = Path(__file__).parents[1] / "scripts/reads_report.html"


def test_in_a_browser_the_page_loads_alone_and_its_graphs_zoom_and_search(tmp_path):
    pytest.importorskip("jinja2", reason="pip install jinja2")
    if chromium() is None:
        pytest.skip("no headless browser: apt-get install chromium")
    found = job(busy_us=(600, 600, 2000))
    ranks = [summary.summarize(rank) for rank in found]
    text = job_report.page(found, ranks, advise(found, ranks), "a job", {})
    (tmp_path / "job.html").write_text(text.replace("<head>", "<head>" + USE.read_text()))
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1040,900"]
    words += [f"--user-data-dir={tmp_path / 'user'}", "--virtual-time-budget=2000", "--dump-dom"]
    ran = subprocess.run(
        [chromium(), *words, f"file://{tmp_path / 'job.html'}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    told = re.search(r'<pre id="said">(.*?)</pre>', ran.stdout)
    assert told, ran
    said = json.loads(unescape(told[1]))
    assert (said["errors"], said["requests"], said["cut"]) == ([], [], [])
    assert said["wide"] <= 0
    assert said["larger"][2] < said["begin"][2] < said["smaller"][2]
    assert said["all"][:2] == [0, 0] and said["wheel"][2] < said["all"][2]
    of_weight = [
        op for op in programs()[0].operators if "fc_0.w_0" in " ".join(op.reads + op.writes)
    ]
    assert said["found"] == len(of_weight) > 1
    assert [said["first"], said["second"]] == [
        f"{k + 1} of {said['found']}: {op.type} ({op.role}); reads: {', '.join(op.reads)}; "
        f"writes: {', '.join(op.writes)}"
        for k, op in enumerate(of_weight[:2])
    ]
    assert said["at"] != said["next"]
    assert (said["none"], said["cleared"]) == ("none", "")


def test_a_failed_job_begins_with_who_stopped_first(tmp_path):
    pytest.importorskip("jinja2", reason="pip install jinja2")
    found = []
    # Rank 0 reports that nothing has come from rank 2; rank 3 was killed.
    for k, (last_us, waiting) in enumerate([(900, ""), (890, "sums"), (100, "")]):
        rank = Rank(k, "TRAINER", k)
        rank.note(EventKind.STEP, "step", 0, 5, step=3)
        rank.note(EventKind.WAIT, "sums", 5, last_us)
        facts = {"why": "failure", "doing": "step 3, mul", "waiting": waiting, "world": 4}
        found.append(rank.recording(RankOfJob(k, "TRAINER", k, "n", 1, **facts)))
    ranks = [summary.summarize(rank) for rank in found]
    said = {0: "rank 0 failed\nnothing came"}
    text = " ".join(Checked(job_report.page(found, ranks, [], "<job>", said)).texts)
    places = [text.index(f"{k}: step 3") for k in ("first rank 2 (trainer 2 on n)",)]
    places += [text.index(f"then rank {k}") for k in (0, 1)]
    assert places == sorted(places)
    assert "step 3, mul, waiting for sums" in text and "<job>" in text
    assert text.index("nothing came") < text.index("nothing was written by 1 rank: 3.")


def test_the_command_says_why_a_job_failed(tmp_path, capsys):
    pytest.importorskip("jinja2", reason="pip install jinja2")
    files.write_failure(tmp_path, 5, "of an earlier job")
    files.remove_all(tmp_path)
    rank = Rank(1, "TRAINER", 1)
    rank.note(EventKind.STEP, "step", 0, 5, step=3)
    of = RankOfJob(1, "TRAINER", 1, "n", 1, why="failure", doing="step 3", world=2)
    files.write(tmp_path, rank.recording(of))
    files.write_failure(tmp_path, 1, "rank 0 (trainer 0) died\nrank 1 was here: step 3\x1b[2J")
    job_report.main([str(tmp_path), "-o", str(tmp_path / "job.html")])
    first, *said = capsys.readouterr().out.splitlines()
    assert first.endswith("job.html: 1 rank")
    assert said[:2] == [
        "  rank 0 (trainer 0) died",
        "  rank 1 was here: step 3\N{REPLACEMENT CHARACTER}[2J",
    ]
    assert said[2].startswith("  nothing was written by 1 rank: 0.")
    assert said[3:] == ["  first rank 1 (trainer 1 on n): step 3"]


@pytest.mark.parametrize("grows", [(100,) * 12, (100, 140, 170, *(200,) * 9), (100, 300) * 6])
def test_memory_that_is_filled_once_or_comes_and_goes_is_no_leak(grows):
    assert told(job(busy_us=(20_000,) * 3, grows=grows)) == []


def test_without_recordings_or_jinja2_it_says_what_to_do(tmp_path, capsys, monkeypatch):
    with pytest.raises(SystemExit) as end:
        job_report.main([str(tmp_path)])
    assert end.value.code == 1
    assert "no recordings" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    for rank in job():
        files.write(tmp_path, rank)
    with pytest.raises(SystemExit):
        job_report.main([str(tmp_path), "-o", str(tmp_path / "job.html")])
    assert "pip install 'jinja2" in capsys.readouterr().err
    assert not (tmp_path / "job.html").exists()


def test_messages_to_servers_are_told_with_the_least_that_they_can_take():
    slow, quick = (summary.ways(job(late_us=late)) for late in ((9, 900), (9, 9)))
    ends = {(way.sender, way.receiver) for way in slow}
    assert ends == {(k, s) for k in range(3) for s in (3, 4)}
    assert {way.messages for way in slow} == {STEPS}
    assert all(way.usual_s >= way.least_s > 0 for way in (*slow, *quick))
    to_last = [way.usual_s / way.least_s for way in slow if way.receiver == 4]
    assert min(to_last) > 10 > max(way.usual_s / way.least_s for way in quick)
