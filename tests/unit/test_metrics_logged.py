"""Metrics from `log_metrics` to files, and from files to curves."""

from __future__ import annotations

import csv
import errno
import json
import os
import struct
from itertools import pairwise

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base.extras import install_command
from hpcdist.base.trace import metric_files, tensorboard
from hpcdist.base.trace import metric_log as module
from hpcdist.base.trace.metric_files import CsvLines, JsonLines, LineFile, json_path
from hpcdist.base.trace.metric_log import FETCHED, MetricLog, Noted, metric_log
from hpcdist.errors import MetricError


@pytest.fixture
def log():
    metric_log.begin(fetches=True)
    yield metric_log
    metric_log.end()


def noted(step, **values):
    return Noted(step, 1000.0 + step, values)


# -- log_metrics -----------------------------------------------------------------------------------
def test_numbers_and_arrays_of_one_element_are_logged(log):
    fluid.log_metrics(3, loss=np.array([0.5], "float32"), accuracy=1, rate=np.float64(0.25))
    fluid.log_metrics(np.int64(4), **{"train/loss": True})
    assert [(n.step, n.values) for n in log.taken()] == [
        (3, {"loss": 0.5, "accuracy": 1.0, "rate": 0.25}),
        (4, {"train/loss": 1.0}),
    ]
    assert log.taken() == [] and log.step == 4


@pytest.mark.parametrize(
    ("step", "values", "kind", "words"),
    [
        (1.0, {"loss": 1}, TypeError, "expected an integer as step, got 1.0"),
        (True, {"loss": 1}, TypeError, "expected an integer as step"),
        (-1, {"loss": 1}, ValueError, r"a step of 0 or more, below 2\*\*63, got -1"),
        (2**63, {"loss": 1}, ValueError, r"a step of 0 or more, below 2\*\*63, got 92"),
        (1, {}, ValueError, "has no metrics"),
        (1, {"loss": "1"}, TypeError, "loss: expected a number, got '1'"),
        (1, {"loss": None}, TypeError, "loss: expected a number, got None"),
        (1, {"loss": np.ones((2, 3))}, TypeError, r"array of shape \[2, 3\]; log its mean"),
        (1, {"loss": np.array("text")}, TypeError, "loss: expected a number"),
        (1, {"start": 1}, ValueError, "cannot be called 'start'"),
        (1, {"unix_s": 1}, ValueError, "cannot be called 'unix_s'"),
        (1, {"": 1}, ValueError, "cannot be called ''"),
        (1, {"a\nb": 1}, ValueError, "cannot be called"),
    ],
)
@pytest.mark.parametrize("on", [True, False])
def test_what_is_no_metric_is_refused_whether_it_is_written_or_not(
    step, values, kind, words, on, monkeypatch
):
    monkeypatch.setattr(metric_log, "on", on)
    with pytest.raises(kind, match=words) as refused:
        fluid.log_metrics(step, **values)
    assert isinstance(refused.value, fluid.HpcdistError)


def test_without_a_writer_nothing_is_kept():
    fluid.log_metrics(1, loss=0.5)
    assert metric_log.taken() == []


def test_a_forked_process_is_refused_by_name(log, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(MetricError, match="process 1, which rank process .* has forked"):
        fluid.log_metrics(1, loss=0.5)
    log.fetched(1, ["loss"], [np.ones(1)])
    assert log.taken() == []


def test_fetched_numbers_are_noted_with_the_mean_over_devices(log):
    log.fetched(7, ["loss", "out", "loss"], [np.array([1.0]), np.zeros(2), np.array([3.0])])
    log.fetched(8, ["out"], [np.zeros(2)])
    assert [(n.step, n.values) for n in log.taken()] == [(7, {"loss": 2.0})]


def test_variables_may_have_names_that_lines_have_too(log, tmp_path):
    names, values = ["step", "loss", "start", "unix_s"], [np.full(1, v) for v in (7.5, 0.5, 1, 2)]
    log.fetched(3, names, values)
    lines = JsonLines(tmp_path, 0)
    lines.write(log.taken())
    lines.close()
    found = metric_files.read_all(tmp_path)
    assert {name: by_rank[0] for name, by_rank in found.items()} == {
        "loss": [(3, 0.5)],
        "start_": [(3, 1.0)],
        "step_": [(3, 7.5)],
        "unix_s_": [(3, 2.0)],
    }
    again = JsonLines(tmp_path, 0)  # the job goes on
    again.close()
    assert again.start == 1


def test_an_executor_notes_what_its_training_steps_fetch(log):
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data(name="x", shape=[None, 2], dtype="float32")
        loss = fluid.layers.mean(fluid.layers.fc(x, size=1))
        test = fluid.default_main_program().clone(for_test=True)
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        fed = {"x": np.ones((3, 2), "float32")}
        values = [float(exe.run(feed=fed, fetch_list=[loss])[0]) for _ in range(3)]
        exe.run(test, feed=fed, fetch_list=[loss.name])
    found = log.taken()
    assert [n.values for n in found] == [{loss.name: value} for value in values]
    assert [b.step - a.step for a, b in pairwise(found)] == [1, 1]


def test_of_fast_steps_some_are_noted_and_of_slower_ones_all_again():
    log = MetricLog()
    log.begin(fetches=True)
    value = [np.ones(1)]
    step, counts = 0, []
    for steps in [20_000] * 4 + [30] * 14:
        for _ in range(steps):
            step += 1
            if not step & log.mask:
                log.fetched(step, ["loss"], value)
        counts.append(len(log.taken()))
    assert all(FETCHED / 4 <= count <= FETCHED for count in counts[1:4])
    assert counts[0] < 20 * FETCHED
    assert counts[-1] == 30 and log.mask == 0


def test_of_many_steps_ever_fewer_are_noted(monkeypatch):
    monkeypatch.setattr(module, "LONG", 1000)
    log = MetricLog()
    log.begin(fetches=True)
    steps = []
    for step in range(1, 32_001):
        if not step & log.mask:
            log.fetched(step, ["loss"], [np.ones(1)])
        if not step % 40:
            steps += [noted.step for noted in log.taken()]
    assert steps[:1000] == list(range(1, 1001))
    assert len(steps) < 6000  # of 1000, 2000, 4000, 8000 and 16,000 steps a thousand each
    assert steps[-1] > 31_900 and steps[-1] - steps[-2] == 32


# -- files -----------------------------------------------------------------------------------------
def test_lines_of_json_and_csv_have_everything(tmp_path):
    lines = JsonLines(tmp_path, 2)
    table = CsvLines(tmp_path, 2, lines.start)
    logged = [noted(1, loss=0.5, accuracy=0.1), noted(2, loss=float("nan"), worst=-float("inf"))]
    for writer in (lines, table):
        writer.write(logged[:1])
        writer.write(logged[1:])
        writer.close()
    assert [json.loads(line) for line in json_path(tmp_path, 2).read_text().splitlines()] == [
        {"start": 0, "step": 1, "unix_s": 1001.0, "loss": 0.5, "accuracy": 0.1},
        {"start": 0, "step": 2, "unix_s": 1002.0, "loss": "NaN", "worst": "-Infinity"},
    ]
    with (tmp_path / "metrics.2.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["step"], r["name"], float(r["value"])) for r in rows[:2]] == [
        ("1", "loss", 0.5),
        ("1", "accuracy", 0.1),
    ]
    assert np.isnan(float(rows[2]["value"])) and float(rows[3]["value"]) == -np.inf


@pytest.mark.parametrize("torn", ["", '{"start": 0, "step": 3, "un'])
def test_a_job_that_goes_on_appends_behind_the_last_whole_line(tmp_path, torn):
    for first in (1, 2):
        lines = JsonLines(tmp_path, 0)
        table = CsvLines(tmp_path, 0, lines.start)
        for writer in (lines, table):
            writer.write([noted(step, loss=first + step / 10) for step in range(first, first + 3)])
            writer.close()
        for name in ("metrics.0.jsonl", "metrics.0.csv"):
            with (tmp_path / name).open("a") as file:
                file.write(torn)
    # Of a torn line nothing is read: neither by the next start, nor by whoever looks meanwhile.
    found = metric_files.read_all(tmp_path)
    assert found == {"loss": {0: [(1, 1.1), (2, 2.2), (3, 2.3), (4, 2.4)]}}
    with (tmp_path / "metrics.0.csv").open() as file:
        rows = [(row["start"], row["step"]) for row in csv.DictReader(file)]
    assert rows[:6] == [("0", "1"), ("0", "2"), ("0", "3"), ("1", "2"), ("1", "3"), ("1", "4")]


def test_steps_that_begin_anew_within_one_start_are_all_kept(tmp_path):
    lines = JsonLines(tmp_path, 0)
    lines.write([noted(step, loss=step) for step in (1, 2, 1, 2)])
    lines.close()
    assert metric_files.read_all(tmp_path)["loss"][0] == [(1, 1), (2, 2), (1, 1), (2, 2)]


def test_ranks_have_files_of_their_own_and_metrics_curves_by_rank(tmp_path):
    for rank in (1, 0):
        lines = JsonLines(tmp_path, rank)
        lines.write([noted(5, loss=rank)])
        lines.close()
    assert metric_files.read_all(tmp_path) == {"loss": {0: [(5, 0.0)], 1: [(5, 1.0)]}}
    assert metric_files.read_all(tmp_path / "nothing") == {}


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[1]",
        '{"step": 1}',
        '{"start": 0, "step": 1.5}',
        '{"start": 0, "step": 1, "a": []}',
        '{"start": 0, "step": 1, "a": 1' + 400 * "0" + "}",
    ],
)
def test_other_files_are_refused_by_name_and_line(tmp_path, line):
    path = json_path(tmp_path, 0)
    path.write_text('{"start": 0, "step": 1, "loss": 1}\n' + line + "\n")
    with pytest.raises(MetricError, match=r"metrics.0.jsonl: line 2 is not a line of metrics"):
        metric_files.read_all(tmp_path)
    with pytest.raises(MetricError, match="its last line is not a line of metrics"):
        JsonLines(tmp_path, 0)


@pytest.mark.parametrize(
    "text", ["mine", "mine\nand mine", '{"start": 0, "step": 1, "loss": 1}\n{"a": 1}\nand']
)
@pytest.mark.parametrize("name", ["metrics.0.jsonl", "metrics.0.csv"])
def test_files_of_others_stay_as_they_are(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(MetricError, match=r"metrics\.0\.\w+"):
        JsonLines(tmp_path, 0)
        CsvLines(tmp_path, 0, 0)
    assert path.read_text() == text


def scarce_disk(monkeypatch, nbytes):
    """Let so many bytes be written until the disk is full; return a list of what is left."""
    write, room = os.write, [nbytes]

    def scarce(file, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(file, bytes(data)[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", scarce)
    return room


def test_what_a_full_disk_refuses_is_written_later_and_whole(tmp_path, monkeypatch):
    lines = LineFile(tmp_path / "lines")
    room = scarce_disk(monkeypatch, 7)
    for text in (b"first line\n", b"second line\n"):
        with pytest.raises(OSError, match="No space"):
            lines.append([text])
    assert (tmp_path / "lines").read_text() == "first l"
    room[0] = 1000
    lines.append([b"third line\n"])
    lines.close()
    assert (tmp_path / "lines").read_text() == "first line\nsecond line\nthird line\n"


def test_when_memory_is_full_too_it_is_said_that_lines_are_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(metric_files, "MAX_BUFFERED", 30)
    lines = LineFile(tmp_path / "lines")
    write = os.write
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full$"):
        lines.append([b"first line\n"])
    with pytest.raises(OSError, match="metrics are lost"):
        lines.append([b"second line that is long\n"])
    monkeypatch.setattr(os, "write", write)
    lines.append([b"third line\n"])
    lines.close()
    assert (tmp_path / "lines").read_text() == "first line\nthird line\n"


def test_lines_longer_than_a_look_at_the_end_are_found(tmp_path):
    path = tmp_path / "lines"
    path.write_text("a\n" + "b" * 10_000 + "\n" + "c" * 9000)
    lines = LineFile(path)
    lines.close()
    assert lines.last == "b" * 10_000
    assert path.read_text().endswith("b\n")


# -- TensorBoard -----------------------------------------------------------------------------------
def events_in(path):
    """Return the events of a file; its checksums must be right, a torn end is left out."""
    pytest.importorskip("tensorboardX", reason=install_command("tensorboard"))
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data, at, found = path.read_bytes(), 0, []
    while at + 16 <= len(data):
        head = data[at : at + 8]
        (length,) = struct.unpack("<Q", head)
        body = data[at + 12 : at + 12 + length]
        assert struct.unpack("<I", data[at + 8 : at + 12]) == (masked_crc32c(head),)
        assert struct.unpack("<I", data[at + 12 + length : at + 16 + length]) == (
            masked_crc32c(body),
        )
        found.append(Event.FromString(body))
        at += 16 + length
    return found


def test_event_files_have_steps_times_and_values(tmp_path):
    pytest.importorskip("tensorboardX", reason=install_command("tensorboard"))
    file = tensorboard.EventFile(tmp_path, 3, start=0)
    file.write([noted(1, loss=0.5, accuracy=0.25)])
    (path,) = (tmp_path / "tensorboard" / "rank3").iterdir()
    assert len(events_in(path)) == 2  # before it is closed: a killed job has written it
    file.write([noted(2, loss=0.125)])
    file.close()
    head, *events = events_in(path)
    assert head.file_version == "brain.Event:2"
    assert [(e.step, e.wall_time) for e in events] == [(1, 1001.0), (2, 1002.0)]
    told = [{value.tag: value.simple_value for value in e.summary.value} for e in events]
    assert told == [{"loss": 0.5, "accuracy": 0.25}, {"loss": 0.125}]


def test_a_full_disk_loses_no_event(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX", reason=install_command("tensorboard"))
    file = tensorboard.EventFile(tmp_path, 0, start=0)
    (path,) = (tmp_path / "tensorboard" / "rank0").iterdir()
    room = scarce_disk(monkeypatch, 30)
    for step in (1, 2, 3):
        with pytest.raises(OSError, match="No space"):
            file.write([noted(step, loss=step)])
    room[0] = 10_000
    file.write([noted(4, loss=4)])
    file.close()
    assert [event.step for event in events_in(path)] == [0, 1, 2, 3, 4]


def test_a_job_that_goes_on_tells_tensorboard_from_where(tmp_path):
    pytest.importorskip("tensorboardX", reason=install_command("tensorboard"))
    file = tensorboard.EventFile(tmp_path, 0, start=1)
    file.write([])
    file.write([noted(5, loss=0.5)])
    file.write([noted(6, loss=0.5)])
    file.close()
    (path,) = (tmp_path / "tensorboard" / "rank0").iterdir()
    _, begins, *events = events_in(path)
    assert (begins.step, begins.session_log.status) == (5, begins.session_log.START)
    assert [e.step for e in events] == [5, 6]
