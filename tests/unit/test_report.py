"""What a report says of jobs: each trouble is named with its rank, a healthy job is left alone.

Recordings are made by hand: so a slow rank is slow on every machine.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from itertools import chain, pairwise

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.errors import TraceError
from hpcdist.executor.described import described
from hpcdist.graph.registry import lookup, own_attrs
from hpcdist.launch import graphs, job_report, plots
from hpcdist.trace import critical_path, files, rates, summary
from hpcdist.trace.advice import advise
from hpcdist.trace.events import EVENT, Cause, EventKind
from hpcdist.trace.files import RankOfJob, RankRecording
from hpcdist.trace.programs import Moved, OperatorFacts, ProgramFacts, from_plain
from hpcdist.trace.rates import Rates
from hpcdist.trace.recorder import Recording
from tests.support_job import alone

STEPS = 120
US = 1000  # nanoseconds
BYTES = 2**18


class Rank:
    """Notes events of one rank, as the recorder would."""

    def __init__(self, rank, role, index):
        self.of = RankOfJob(rank, role, index, f"n{rank}", 100 + rank)
        self.names, self.rows = [], []

    def note(self, kind, name, begin_us, end_us, value=0.0, peer=-1, step=0):
        if name not in self.names:
            self.names.append(name)
        row = (int(begin_us * US), int(end_us * US), value, 1, self.names.index(name))
        self.rows.append((*row, peer, step, kind))

    def recording(self, of=None, programs=()):
        events = np.array(self.rows, EVENT)
        recording = Recording(events, tuple(self.names), len(events), programs)
        return RankRecording(of or self.of, recording)


def job(
    busy_us=(600, 600, 600),
    reader_us=0,
    script_us=0,
    applied=(BYTES, BYTES),
    save_us=0,
    gc_us=0,
    late_us=(0, 0),
    grows=(),
    stall_us=0,
):
    """A synchronous job of 3 trainers and 2 servers, in steps as long as its slowest trainer's.

    A trainer computes, sends a packet to each server, and waits for both to answer. ``late_us``:
    how long packets are under way to each server; ``grows``: the MiB of trainer 1, in parts of the
    job; ``stall_us``: what trainer 2 is busy longer in every 20th step.
    """
    trainers = [Rank(k, "TRAINER", k) for k in range(3)]
    servers = [Rank(3 + k, "PSERVER", k) for k in range(2)]
    now = 0.0
    for step in range(1, STEPS + 1):
        begin = now + reader_us + script_us
        sent = [begin + busy for busy in busy_us]
        sent[2] += stall_us * (step % 20 == 0)
        come = max(sent) + 20 + max(late_us)
        for k, trainer in enumerate(trainers):
            if reader_us:
                trainer.note(EventKind.WAIT, Cause.READER.value, now, now + reader_us)
            trainer.note(EventKind.OPERATOR, "mul", begin, sent[k] - 4, step=step)
            for s in range(2):
                packet = ("w@GRAD", sent[k] - 4 + s, sent[k] - 3 + s, applied[s])
                trainer.note(EventKind.SENT, *packet, peer=3 + s, step=step)
            done = come + 60
            trainer.note(EventKind.WAIT, Cause.PARAMETERS.value, sent[k], done)
            for s in range(2):
                trainer.note(EventKind.RECEIVED, "w", done + s, done + s + 1, BYTES, 3 + s, step)
            trainer.note(EventKind.STEP, "step", begin, done + 5, step=step)
            if k == 1 and grows and not step % (STEPS // len(grows)):
                held = grows[step // (STEPS // len(grows)) - 1] * 2**20
                trainer.note(EventKind.MEMORY, "memory", done, done, held)
            trainer.note(EventKind.VALUE, "loss", done, done, 1 / step, step=step)
            if save_us and step % 20 == 0:
                trainer.note(EventKind.CHECKPOINT, "save", begin, begin + save_us)
            if gc_us and k == 1:
                trainer.note(EventKind.GARBAGE, "garbage collection", begin, begin + gc_us, 2)
        for s, server in enumerate(servers):
            at = now
            for k in sorted(range(3), key=lambda k: sent[k]):
                comes = max(at, sent[k] + 8 + late_us[s])
                if comes > at:
                    server.note(EventKind.WAIT, Cause.GRADIENTS.value, at, comes)
                at = comes + 1
                server.note(EventKind.RECEIVED, "w@GRAD", comes, at, applied[s], k, step)
            server.note(EventKind.APPLIED, "w@GRAD", come - 5, come + 20, applied[s], step=step)
            for k in range(3):
                server.note(EventKind.SENT, "w", come + 21 + k, come + 22 + k, BYTES, k, step)
        now = come + 66
    trains, serves = programs()
    return [
        *(trainer.recording(programs=(trains,)) for trainer in trainers),
        *(server.recording(programs=(serves,)) for server in servers),
    ]


@cache
def programs():
    """What trainers and servers of a small job run."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = fluid.data("x", [None, 3])
        hidden = fluid.layers.fc(x, 300, act="relu")
        loss = fluid.layers.mean(fluid.layers.fc(hidden, 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        t = fluid.DistributeTranspiler()
        t.transpile(0, pservers="a:1,b:1", trainers=3)
        trains = replace(described(t.get_trainer_program()), moved=(Moved("mul", 2, 2**21),))
        return trains, described(t.get_pserver_program("a:1"))


def told(found):
    ranks = [summary.summarize(rank) for rank in found]
    return [(advice.cause, advice.rank) for advice in advise(found, ranks)]


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
    pytest.importorskip("jinja2", reason="python -m pip install 'hpcdist[report]'")
    for rank in job(busy_us=(600, 600, 2000)):
        files.write(tmp_path, rank)
    page = tmp_path / "job.html"
    job_report.main([str(tmp_path), "-o", str(page)])
    said = capsys.readouterr().out
    assert said.startswith(f"{page}: 5 ranks\n")
    assert "a slow rank: rank 2" in said
    checked = Checked(page.read_text())
    assert checked.tags.count("svg") == 6  # waits, the step, throughput, the loss, two Programs
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
        "planned KiB a call",
        "1024.0",
    ):
        assert expected in text
    shares = re.findall(r"rank 2 \(trainer 2 on n2\): [\d.]+ ms \((\d+)%\)", text)
    assert int(shares[0]) > 80


# What a reader does with the graph of a Program, at the end of the page.
USE = """
<script>addEventListener("error", (event) => errors.push(event.message)); var errors = [];</script>
<script>addEventListener("load", () => {
  const box = document.querySelector(".graph"), svg = box.querySelector("svg");
  const field = box.querySelector("input"), told = box.querySelector("output");
  const press = (name) => box.querySelector(`[name=${name}]`).click();
  const view = () => svg.getAttribute("viewBox").split(" ").map(Number);
  const search = (word) => { field.value = word; field.dispatchEvent(new Event("input")); };
  const said = { begin: view() };
  press("in"); said.larger = view();
  press("out"); press("out"); said.smaller = view();
  const wheel = { ctrlKey: true, deltaY: -100, cancelable: true };
  press("all"); said.all = view();
  svg.dispatchEvent(new WheelEvent("wheel", wheel)); said.wheel = view();
  search("FC_0.W"); said.found = svg.querySelectorAll("g.found").length;
  said.first = told.textContent;
  said.at = view();
  press("next"); said.second = told.textContent; said.next = view();
  search("nothing like it"); said.none = told.textContent;
  search(""); said.cleared = told.textContent;
  said.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  said.errors = errors;
  said.wide = document.documentElement.scrollWidth - innerWidth;
  said.cut = [...document.querySelectorAll("svg:not(.graph svg)")].flatMap((svg) => {
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].filter((text) => {
      const own = text.getBoundingClientRect();
      return own.left < box.left - 1 || own.right > box.right + 1 || own.bottom > box.bottom + 1;
    }).map((text) => text.textContent);
  });
  const pre = document.createElement("pre");
  pre.id = "said"; pre.textContent = JSON.stringify(said);
  document.body.append(pre);
})</script>"""


def test_in_a_browser_the_page_loads_alone_and_its_graphs_zoom_and_search(tmp_path):
    pytest.importorskip("jinja2", reason="python -m pip install 'hpcdist[report]'")
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no headless browser: apt-get install chromium")
    found = job(busy_us=(600, 600, 2000))
    ranks = [summary.summarize(rank) for rank in found]
    text = job_report.page(found, ranks, advise(found, ranks), "a job", {})
    (tmp_path / "job.html").write_text(text.replace("<head>", "<head>" + USE))
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1040,900"]
    words += [f"--user-data-dir={tmp_path / 'user'}", "--virtual-time-budget=2000", "--dump-dom"]
    ran = subprocess.run(
        [browser, *words, f"file://{tmp_path / 'job.html'}"],
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
    assert (said["first"], said["second"]) == tuple(f"{k} of {said['found']}" for k in (1, 2))
    assert said["at"] != said["next"]
    assert (said["none"], said["cleared"]) == ("none", "")


def test_operators_stand_below_what_they_read_from():
    operators = [
        OperatorFacts("a", (), ("x",)),
        OperatorFacts("b", ("x",), ("y",)),
        OperatorFacts("c", ("x", "y"), ("x",)),
        OperatorFacts("d", ("x",), ()),
    ]
    between = graphs.edges(operators)
    assert between == [(0, 1), (0, 2), (1, 2), (2, 3)]  # d reads what c wrote last
    assert graphs.layers(4, between) == [[0], [1], [2], [3]]
    wide = graphs.layers(20, [])
    assert [len(row) for row in wide] == [8, 8, 4]
    assert [*chain(*wide)] == list(range(20))
    assert graphs.layers(0, []) == []


def test_two_programs_of_one_rank_with_the_same_operators_are_not_two_trainers():
    pytest.importorskip("jinja2", reason="python -m pip install 'hpcdist[report]'")
    alike = tuple(ProgramFacts("runs", (OperatorFacts("relu", (x,), ()),)) for x in "ab")
    found = [Rank(k, "TRAINER", k) for k in range(2)]
    for rank in found:
        rank.note(EventKind.STEP, "step", 0, 5, step=3)
    found = [rank.recording(programs=alike) for rank in found]
    ranks = [summary.summarize(rank) for rank in found]
    text = job_report.page(found, ranks, [], "a job", {})
    assert text.count("2 trainers: another Program, 1 operator") == 2
    assert "4 trainers" not in text


def test_programs_are_written_and_read_as_they_were(tmp_path):
    (one, *_) = job()
    assert files.read(files.write(tmp_path, one)).recording.programs == one.recording.programs
    trains, serves = programs()
    plain = json.loads(json.dumps(trains.plain()))
    older = {key: value for key, value in plain.items() if key != "moved"}
    assert from_plain(older) == replace(trains, moved=())  # written when nothing was said of bytes
    assert {op.role for op in trains.operators} == {"forward", "backward", "exchange"}
    assert (trains.kind, serves.kind) == ("trains", "serves")
    assert sum(parameter.nbytes for parameter in serves.parameters) in (4 * 1200, 4 * 301)


def test_a_table_of_any_number_of_rows_is_written_and_read():
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.embedding(ids, [-1, 4], is_sparse=True, is_distributed=True, param_attr="t")
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(rows))
        t = fluid.DistributeTranspiler()
        t.transpile(0, pservers="a:1,b:1", trainers=3)
        serves = described(t.get_pserver_program("a:1"))
    (table,) = serves.parameters
    assert (table.shape, table.extents, table.nbytes) == ((None, 4), "any x 4", 0)
    assert from_plain(json.loads(json.dumps(serves.plain()))) == serves


def test_a_key_of_many_names_takes_several_rows():
    names = [f"a long cause of waits {k}" for k in range(9)]
    drawn = plots.bars(["rank 0"], [dict.fromkeys(names, 0.1)], names)
    keys = [float(x) for x in re.findall(r'<text x="([0-9.]+)" [^>]*>a long', drawn)]
    assert len(keys) == 9 and max(keys) + 7 * len(names[0]) < plots.WIDTH


@pytest.mark.parametrize(
    "wrong",
    [{"name": 99}, {"name": -1}, {"kind": 0}, {"end": -5}, {"peer": -2}, {"begin": -(1 << 63)}],
)
def test_events_that_nobody_noted_are_refused(tmp_path, wrong):
    (one, *_) = job()
    for field, value in wrong.items():
        one.recording.events[field][2] = value
    path = files.write(tmp_path, one)
    with pytest.raises(TraceError, match="malformed event"):
        files.read(path)


def test_a_recording_that_unpacks_to_more_is_refused(tmp_path):
    (one, *_) = job()
    path = files.write(tmp_path, one)
    with np.load(path) as found:
        np.savez_compressed(path, about=found["about"], events=np.resize(found["events"], 10_000))
    with pytest.raises(TraceError, match="larger than itself"):
        files.read(path)


def test_the_work_of_operators_is_known_from_shapes_but_for_looked_up_rows():
    with alone(), fluid.program_guard(fluid.Program(), fluid.Program()):
        x, word = fluid.data("x", [None, 4]), fluid.data("word", [None, 1], "int64")
        rows = fluid.layers.reshape(fluid.embedding(word, [9, 2], is_sparse=True), [-1, 2])
        loss = fluid.layers.mean(fluid.layers.elementwise_add(fluid.layers.fc(x, 2), rows))
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        exe.run(feed={"x": np.ones((3, 4), "float32"), "word": np.ones((3, 1), "int64")})
        *_, entry = exe.forms()
        moved = described(fluid.default_main_program(), entry.compiled).moved
    assert Moved("mul", 1, 4 * (3 * 4 + 4 * 2 + 3 * 2), flops=2 * 3 * 4 * 2) in moved
    # Of its gradients one is wanted: x is fed.
    assert Moved("mul_grad", 1, 4 * (12 + 8 + 6 + 8), flops=2 * 3 * 4 * 2) in moved
    assert Moved("elementwise_add", 2, 4 * (6 + 2 + 6 + 6 + 6 + 6), flops=0) in moved
    # Of the mean's input it reads the shape only.
    assert Moved("mean_grad", 1, 4 * (1 + 6)) in moved
    # The table's rows, of which there are fewer than the table has, and what moves them.
    assert not {"lookup_table_v2", "lookup_table_v2_grad", "sgd"} & {one.type for one in moved}


def test_a_failed_job_begins_with_who_stopped_first(tmp_path):
    pytest.importorskip("jinja2", reason="python -m pip install 'hpcdist[report]'")
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
    pytest.importorskip("jinja2", reason="python -m pip install 'hpcdist[report]'")
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
    assert "hpcdist[report]" in capsys.readouterr().err
    assert not (tmp_path / "job.html").exists()


@pytest.mark.parametrize(
    ("type_", "shapes", "attrs", "flops"),
    [
        ("matmul", [(5, 2, 3), (5, 3, 4), (5, 2, 4)], {}, 5 * 2 * (2 * 3 * 4)),
        ("matmul", [(3, 2), (3, 4), (2, 4)], {"transpose_X": True}, 2 * (2 * 3 * 4)),
        ("mul", [(2, 3, 4), (12, 5), (2, 5)], {}, 2 * (2 * 12 * 5)),
        (
            "conv2d",
            [(2, 4, 8, 8), (32, 2, 3, 3), (2, 32, 6, 6)],
            {"groups": 2},
            2 * (2 * 32 * 36) * (2 * 9),
        ),
        # Each number of the smaller image goes into a window of the larger one.
        ("conv2d_transpose", [(2, 16, 6, 6), (16, 2, 3, 3), (2, 2, 8, 8)], {}, 2 * 1152 * 18),
        (
            "conv2d_grad",
            [(2, 2, 8, 8), (16, 2, 3, 3), (2, 16, 6, 6), None, (16, 2, 3, 3)],
            {},
            2 * 1152 * 18,
        ),
        # Of few filters in a group the products are not what takes the time.
        ("conv2d", [(2, 1, 8, 8), (6, 1, 3, 3), (2, 6, 6, 6)], {}, None),
        ("depthwise_conv2d", [(2, 32, 8, 8), (32, 1, 3, 3), (2, 32, 6, 6)], {"groups": 32}, None),
        (
            "conv2d_grad",
            [(2, 1, 8, 8), (6, 1, 3, 3), (2, 6, 6, 6), None, (6, 1, 3, 3)],
            {},
            None,
        ),
    ],
)
def test_operators_say_what_their_products_take(type_, shapes, attrs, flops):
    arrays = [None if shape is None else np.empty(shape, "float32") for shape in shapes]
    definition = lookup(type_)
    assert definition.flops(*arrays, **own_attrs(definition, attrs)) == flops


def test_the_table_of_operators_says_how_long_they_take_at_least_and_which_are_slow():
    found = []
    for k, rate in enumerate((1e9, 3e9)):  # 2 GB/s on average
        rank = Rank(k, "TRAINER", k)
        for step in range(4):
            rank.note(EventKind.OPERATOR, "relu", 0, 20, step=step)
            rank.note(EventKind.OPERATOR, "mul", 20, 1020, step=step)
            rank.note(EventKind.OPERATOR, "sort", 1020, 2020, step=step)
            rank.note(EventKind.STEP, "step", 0, 2020, step=step)
        work = Moved("relu", 1, 20_000, 0), Moved("mul", 1, 20_000, 10**6), Moved("sort", 1, 20_000)
        facts = ProgramFacts("trains", (OperatorFacts("mul", ("x",), ("y",)),), moved=work)
        rates = {"bytes_per_s": rate, "flops_per_s": 1e10, "call_s": 1e-6}
        of = RankOfJob(k, "TRAINER", k, "n", 1, **rates)
        found.append(rank.recording(of, programs=(facts,)))
    told = {row["name"]: row for row in job_report.operators_of(found)}
    assert told["relu"]["least_us"] == pytest.approx(1 + 10)
    assert told["mul"]["least_us"] == pytest.approx(1 + 100)  # by its products
    assert told["mul"]["times"] == pytest.approx(1000 / 101)
    # Of what sort does only the bytes are known.
    assert [name for name, row in told.items() if row["slow"]] == ["mul"]
    older = [replace(rank, of=replace(rank.of, bytes_per_s=0.0)) for rank in found]
    assert not any(row["times"] or row["slow"] for row in job_report.operators_of(older))


def test_rates_are_measured_and_tell_the_least_time():
    found = rates.measured()
    assert found.bytes_per_s > 1e7 and found.flops_per_s > 1e7 and 0 < found.call_s < 1e-2
    assert found.least_s(0, 0) == found.call_s
    assert Rates(2e9, 1e9, 1e-6).least_s(2000, 5000) == pytest.approx(1e-6 + 5e-6)
    assert Rates().least_s(1, 1) == 0


def test_messages_to_servers_are_told_with_the_least_that_they_can_take():
    slow, quick = (summary.ways(job(late_us=late)) for late in ((9, 900), (9, 9)))
    ends = {(way.sender, way.receiver) for way in slow}
    assert ends == {(k, s) for k in range(3) for s in (3, 4)}
    assert {way.messages for way in slow} == {STEPS}
    assert all(way.usual_s >= way.least_s > 0 for way in (*slow, *quick))
    to_last = [way.usual_s / way.least_s for way in slow if way.receiver == 4]
    assert min(to_last) > 10 > max(way.usual_s / way.least_s for way in quick)
