"""The recorder: a ring of events, strides, files."""

from __future__ import annotations

import errno
import gc
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist.base.trace import chrome, files
from hpcdist.base.trace import recorder as module
from hpcdist.base.trace.events import EVENT, Cause, Count, EventKind, waits_for_cause
from hpcdist.base.trace.files import RankOfJob, RankRecording
from hpcdist.base.trace.recorder import MOST_STRIDE, Recorder, stride_for
from hpcdist.comm import progress
from hpcdist.comm.progress import CROWDED, waiter
from hpcdist.errors import CommError, SettingError, TraceError
from hpcdist.executor import observer
from hpcdist.launch.recording import RankRecorder
from hpcdist.ps.batch import LookupBatch, TableSpec
from hpcdist.ps.messages import Hello
from hpcdist.ps.packet_log import PacketLog
from hpcdist.ps.packets import Packet, VarSpec
from hpcdist.ps.table import RowInitializer, RowOptimizer, SparseTable
from hpcdist.ps.table_rpc import move
from tests.support.job import alone

OF = RankOfJob(rank=3, role="TRAINER", index=1, host="n1", pid=7, offset_ns=-5, error_ns=9)


@pytest.fixture
def recorder():
    """The process's own, with a ring of its own; details of every step, no garbage collections."""
    own = module.recorder
    gc.disable()
    own.begin(2**20, always=True)
    yield own
    own.begin(0)
    gc.enable()


def counted(found, what):
    """The numbers that were noted of something, in their order."""
    events = found.events[found.events["kind"] == EventKind.COUNT]
    return [e["value"] for e in events if found.names[e["name"]] == what.value]


def kinds(found):
    return [EventKind(k) for k in found.events["kind"]]


def test_the_ring_keeps_the_latest_events():
    ring = Recorder(10 * files.EVENT.itemsize)
    name = ring.name("thing")
    for i in range(25):
        ring.record(EventKind.APPLIED, name, i, i + 1, value=i / 2, peer=4, step=i)
    found = ring.taken()
    assert found.noted == 25
    assert found.events["begin"].tolist() == list(range(15, 25))
    assert found.events["value"].tolist() == [i / 2 for i in range(15, 25)]
    assert found.names[found.events["name"][0]] == "thing"
    assert set(found.events["peer"]) == {4}
    assert found.since(24).events["begin"].tolist() == [23, 24]


def test_a_recorder_of_no_memory_notes_nothing_and_asks_for_no_details():
    off = Recorder(0)
    off.record(EventKind.STEP, off.name("step"), 0, 1, step=1)
    with off.span(EventKind.CHECKPOINT, "save"):
        pass
    assert not off.on
    assert len(off.taken().events) == 0
    assert all(step & off.mask for step in range(1, 5000))


def test_threads_share_a_ring():
    ring = Recorder(2**20)

    def note():
        for i in range(1000):
            ring.record(EventKind.OPERATOR, 0, i, i + 1)

    threads = [threading.Thread(target=note) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = ring.taken().events
    assert 3900 <= len(found) <= 4000  # two at one moment may lose one
    assert (found["end"] == found["begin"] + 1).all()  # and no event is half of one, half another


def test_what_is_just_being_noted_is_not_in_a_recording(tmp_path, monkeypatch):
    """As where a signal, or another thread, asks for it in the middle of `record`."""
    asked = []

    def ident():
        asked.append(ring.taken())
        return 1

    monkeypatch.setattr(threading, "get_ident", ident)
    ring = Recorder(2**12)
    for number in range(3):
        ring.record(EventKind.STEP, ring.name("step"), 5, 6, step=number)
    assert [recording.noted for recording in asked] == [0, 1, 2]
    found = files.read(files.write(tmp_path, RankRecording(OF, asked[-1]))).recording
    assert found.events["step"].tolist() == [0, 1]


def test_details_are_noted_in_as_many_steps_as_cost_little():
    assert stride_for(events=10, step_ns=1e9) == 1
    assert stride_for(events=10, step_ns=25_000) == 64
    assert stride_for(events=10**6, step_ns=1) == MOST_STRIDE
    ring = Recorder(2**20)
    ring.detailed(10, now_ns=0)
    ring.detailed(10, now_ns=(ring.mask + 1) * 25_000)
    assert [step for step in range(1, 200) if not step & ring.mask] == [64, 128, 192]
    always = Recorder()
    always.begin(2**20, always=True)
    always.detailed(10, now_ns=1)
    assert always.mask == 0


def test_a_step_notes_its_operators_what_is_fed_and_what_is_fetched(recorder):
    with alone(), fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 4], "float32")
        loss = fluid.layers.mean(fluid.layers.fc(x, 2))
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        recorder.begin(2**20, always=True)
        (value,) = exe.run(feed={"x": np.ones((3, 4), "float32")}, fetch_list=[loss])
    found = recorder.taken()
    events = {kind: found.events[found.events["kind"] == kind] for kind in EventKind}
    (step,) = events[EventKind.STEP]
    names = [found.names[e["name"]] for e in events[EventKind.OPERATOR]]
    assert names[0] == "mul" and names[-1] == "sgd" and "mean_grad" in names
    inner = [
        e for kind in (EventKind.FEED, EventKind.OPERATOR, EventKind.FETCH) for e in events[kind]
    ]
    assert all(step["begin"] <= e["begin"] <= e["end"] <= step["end"] for e in inner)
    ends = [e["end"] for e in inner]
    assert ends == sorted(ends)
    assert [e["value"] for e in events[EventKind.FEED]] == [3]  # rows
    (fetched,) = events[EventKind.VALUE]
    assert found.names[fetched["name"]] == loss.name
    assert fetched["value"] == value[0]


def test_setting_the_memory_to_0_turns_it_off(monkeypatch):
    for mib, events in (("0", 0), ("1", 2**20 // EVENT.itemsize)):
        started = Recorder()
        monkeypatch.setattr(observer, "recorder", started)
        monkeypatch.setenv("HPCDIST_RECORD_MIB", mib)
        fluid.Executor()
        assert started.on == bool(events)
        for number in range(events + 10):
            started.record(EventKind.STEP, 0, number, number + 1)
        assert len(started.taken().events) == events


def test_more_memory_than_there_is_is_refused_by_the_settings_name(monkeypatch):
    monkeypatch.setenv("HPCDIST_RECORD_MIB", "9" * 20)
    with pytest.raises(SettingError, match="HPCDIST_RECORD_MIB: there is no memory of 999"):
        Recorder().start()


def test_a_wait_is_noted_with_its_cause_unless_there_was_nothing_to_wait_for(recorder):
    answers = iter([True, *[False] * (CROWDED.spins + 1), True])

    @waits_for_cause(Cause.TABLE)
    def describe():
        return "a test waits"

    wait = waiter(lambda: next(answers), CROWDED, describe, 60, ())
    wait()
    assert kinds(recorder.taken()) == []
    wait()
    found = recorder.taken()
    assert kinds(found) == [EventKind.WAIT]
    assert found.names[found.events["name"][0]] == Cause.TABLE.value


def test_a_short_wait_is_noted_in_the_next_one(recorder):
    answers = iter([False, True, True, False, True])
    wait = waiter(lambda: next(answers), progress.WaitPolicy(3, 1), lambda: "it", 60, ())
    wait()
    wait()  # there is nothing to wait for
    assert kinds(recorder.taken()) == []
    wait()
    (found,) = recorder.taken().events
    assert found["begin"] <= found["end"]


def test_a_wait_that_fails_is_noted_too(recorder):
    wait = waiter(iter([False, None]).__next__, progress.WaitPolicy(0, 1), lambda: "it", 60, ())
    with pytest.raises(CommError, match="none of the requests"):
        wait()
    found = recorder.taken()
    assert found.names[found.events["name"][0]] == Cause.OTHER.value


def test_batches_of_a_loader_are_waits_for_the_reader(recorder):
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 2], "float32")
        loader = fluid.io.DataLoader.from_generator(feed_list=[x], capacity=2)
        given = threading.Event()

        def batches():
            yield from [[np.ones((1, 2), "float32")]] * 3
            given.set()

        loader.set_batch_generator(batches)
        looped = loader()
        read = [next(looped)]
        assert given.wait(60)  # then two are ready, and what comes behind has no room
        read += looped
        assert len(read) == 3
    found = recorder.taken()
    waits = found.events[found.events["kind"] == EventKind.WAIT]
    assert {found.names[e["name"]] for e in waits} == {Cause.READER.value}
    assert len(waits) == 4  # the end is waited for too
    first, *rest = counted(found, Count.BATCHES_AHEAD)
    assert first <= 2 and rest[0] == 2 and len(rest) == 3


def test_a_server_counts_the_packets_that_wait(recorder):
    packet = Packet(0, (VarSpec("g", (2,), "float32"),), 8, (0,))
    log = PacketLog(Hello(3, True, "", (packet, packet), (packet, packet)), (4, 5, 6), tables=False)
    apply = log.applying(0, (0, 1, 2), [])
    for trainer, number in ((0, 0), (0, 1), (1, 0), (2, 0)):
        log.arrived[trainer][number] += 1
        log.note_arrived(trainer, number, 1)
    apply()
    log.forget(0)
    log.arrived[1][1] += 1
    log.note_arrived(1, 1, 1)
    assert counted(recorder.taken(), Count.UNAPPLIED) == [1, 2, 3, 4, 1, 1]


def test_rows_of_tables_are_counted(recorder):
    batch = LookupBatch((TableSpec("a", 2), TableSpec("b", 2)), 2)
    batch.index([np.array([3, 4, 3]), np.array([9])])
    table = SparseTable("a", 2, RowOptimizer("sgd"), RowInitializer("uniform", -1.0, 1.0), 11)
    for ids in (np.arange(5), np.arange(3, 8)):
        move([table], [[(ids, np.ones((5, 2), np.float32))]], [0.1])
    found = recorder.taken()
    assert counted(found, Count.LOOKED_UP) == [3]  # each id once
    assert counted(found, Count.HELD) == [5, 8]


def test_a_recording_is_what_was_written(tmp_path, recorder):
    with recorder.span(EventKind.CHECKPOINT, "save", 5):
        pass
    recording = recorder.taken()
    path = files.write(tmp_path / "new", RankRecording(OF, recording))
    found = files.read(path)
    assert found.of == OF
    assert found.recording.names == recording.names
    assert (found.recording.events == recording.events).all()
    assert [f.of.rank for f in files.read_all(tmp_path / "new")] == [3]
    assert [p.name for p in path.parent.iterdir()] == ["events.3.npz"]


def test_what_is_no_recording_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no recordings"):
        files.read_all(tmp_path)
    path = files.write(tmp_path, RankRecording(replace(OF, rank=0), Recorder(4096).taken()))
    whole = path.read_bytes()
    for data in (b"nothing", b"PK\3\4 nothing", whole[: len(whole) // 2], whole[:-1], b""):
        path.write_bytes(data)
        with pytest.raises(TraceError, match="events.0.npz is not a recording"):
            files.read_all(tmp_path)


def test_a_damaged_recording_is_refused_wherever_the_damage_is(tmp_path):
    path = files.write(tmp_path, RankRecording(replace(OF, rank=0), Recorder(4096).taken()))
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            files.read(path)  # some bytes do not matter
        except TraceError as error:
            assert "events.0.npz is not a recording" in str(error)
    np.savez(path, about=np.frombuffer(b"1", np.uint8), events=np.zeros(1))
    with pytest.raises(TraceError, match=r"events.0.npz is not a recording"):
        files.read(path)


@pytest.mark.parametrize(
    "wrong",
    [{"rank": "0"}, {"offset_ns": 0.5}, {"bytes_per_s": float("nan")}, {"host": 3}, {"x": 1}],
)
def test_facts_of_a_rank_that_cannot_be_are_refused(tmp_path, wrong):
    recording = Recorder(4096).taken()
    about = {"format": files.FORMAT, "names": recording.names, "noted": 0, **vars(OF), **wrong}
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(tmp_path / "events.0.npz", about=text, events=recording.events)
    with pytest.raises(TraceError, match=r"events.0.npz is not a recording"):
        files.read(tmp_path / "events.0.npz")


def test_what_was_written_in_part_is_removed(tmp_path, monkeypatch):
    def full(file, **_):
        file.write(b"PK")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        files.write(tmp_path, RankRecording(OF, Recorder(4096).taken()))
    assert not list(tmp_path.iterdir())
    for name in ("events.0.npz", "trace.json"):  # of one killed while it wrote
        (tmp_path / f"{name}.0123456789abcdef.tmp").touch()
    files.remove_all(tmp_path)
    assert not list(tmp_path.iterdir())


OTHERS = {
    "events.7.npz": b"",  # named as a recording would be
    "events.8.npz": b"PK\x03\x04 an archive of somebody's",
    "failure.7.txt": b"my notes",
    "events.2024.npz": b"mine",
    "failure.analysis.txt": b"mine",
    "events.0.npz.77.tmp": b"mine",
    "trace.json": b"[]",
}


def test_files_of_others_stay_and_are_not_read(tmp_path):
    for name, content in OTHERS.items():
        (tmp_path / name).write_bytes(content)
    files.write(tmp_path, RankRecording(OF, Recorder(4096).taken()))
    files.write_failure(tmp_path, 0, "rank 0 failed")
    assert [found.of for found in files.read_all(tmp_path)] == [OF]
    assert files.failures(tmp_path) == {0: "rank 0 failed"}
    files.refuse_others_files(tmp_path, 0)  # what hpcdist has written may be replaced
    files.remove_all(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == OTHERS
    with pytest.raises(TraceError, match=r"events.7.npz is in the way: rank 7 would write .*move"):
        files.refuse_others_files(tmp_path, 7)
    with pytest.raises(TraceError, match=r"trace.json is in the way"):
        chrome.refuse_others_file(tmp_path / "trace.json")
    chrome.write(tmp_path / "other.json", [])
    chrome.refuse_others_file(tmp_path / "other.json")
    chrome.refuse_others_file(tmp_path / "none.json")


def test_the_garbage_collector_is_noted_if_it_takes_long(recorder, monkeypatch):
    garbage = module.GarbageLog()
    begin = time.monotonic_ns()
    for took, noted in ((garbage.LEAST_NS, []), (garbage.LEAST_NS + 1, [EventKind.GARBAGE])):
        for phase, now in (("start", begin), ("stop", begin + took)):
            monkeypatch.setattr(module, "monotonic_ns", lambda now=now: now)
            garbage(phase, {"generation": 2})
        assert kinds(recorder.taken()) == noted


def test_memory_is_noted_now_and_then(recorder):
    now = time.monotonic_ns()
    for at in (now, now + 10**6, now + module.MEMORY_NS + 1):
        recorder.detailed(3, at)
    events = recorder.taken().events
    first, second = events[events["kind"] == EventKind.MEMORY]
    assert second["end"] - first["end"] == module.MEMORY_NS + 1
    assert 2**20 < first["value"] < 2**40


def test_a_trace_that_cannot_be_written_fails_no_job_that_ended_well(tmp_path, recorder, caplog):
    (tmp_path / "file").touch()
    rank = RankRecorder(RankOfJob(0, "TRAINER", 0, "n1", 7), str(tmp_path / "file" / "in"), None)
    rank.end()
    rank.merge()
    rank.fail()  # it has been tried
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("rank 0 (trainer 0 on n1) cannot write its recording: ")
    assert said[1].startswith("the trace of the job cannot be written: ")
