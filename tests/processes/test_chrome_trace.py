"""The trace of a job in Chrome's format: its rules, flows, clocks."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

from hpcdist.base.trace import chrome
from hpcdist.base.trace.events import EVENT, EventKind
from hpcdist.base.trace.files import RankOfJob, RankRecording
from hpcdist.base.trace.recorder import Recording
from tests.support import trace_processor

NAMES = ("step", "mul", "w@GRAD", "w", "loss", "sum of bucket 0", "parameters from servers")
NAMES += ("feed", "rows in tables")
MAIN, OTHER = 0x7F00, 0x7F01


def events_of(*rows):
    """(kind, name, begin, end, value, peer, step, thread) -> an array of events."""
    found = np.zeros(len(rows), EVENT)
    for i, (kind, name, begin, end, value, peer, step, thread) in enumerate(rows):
        found[i] = (begin, end, value, thread, NAMES.index(name), peer, step, kind)
    return found


@pytest.fixture
def ranks():
    """A trainer whose clock is 1 ms after that of the server, rank 0."""
    trainer = events_of(
        (EventKind.FEED, "feed", 10_000, 10_500, 32, -1, 1, MAIN),
        (EventKind.OPERATOR, "mul", 10_500, 20_000, 0, -1, 1, MAIN),
        (EventKind.COUNT, "rows in tables", 59_000, 59_000, 7, -1, 0, MAIN),
        (EventKind.SUM, "sum of bucket 0", 12_000, 40_000, 64, -1, 1, MAIN),
        (EventKind.SENT, "w@GRAD", 21_000, 22_000, 8, 0, 0, OTHER),
        (EventKind.WAIT, "parameters from servers", 23_000, 50_000, 0, -1, 0, MAIN),
        (EventKind.RECEIVED, "w", 50_000, 51_000, 8, 0, 0, MAIN),
        (EventKind.SENT, "w@GRAD", 61_000, 62_000, 8, 0, 1, OTHER),  # not yet received
        (EventKind.VALUE, "loss", 52_000, 52_000, 2.5, -1, 1, MAIN),
        (EventKind.STEP, "step", 10_000, 60_000, 0, -1, 1, MAIN),
    )
    server = events_of(
        (EventKind.RECEIVED, "w@GRAD", 1_030_000, 1_031_000, 8, 1, 0, MAIN),
        (EventKind.APPLIED, "w@GRAD", 1_032_000, 1_040_000, 8, -1, 0, MAIN),
        (EventKind.SENT, "w", 1_040_000, 1_041_000, 8, 1, 0, MAIN),
    )
    return [
        RankRecording(RankOfJob(0, "PSERVER", 0, "a", 10), Recording(server, NAMES, 3)),
        RankRecording(
            RankOfJob(1, "TRAINER", 0, "b", 11, offset_ns=1_000_000, error_ns=500),
            Recording(trainer, NAMES, 20),
        ),
    ]


@pytest.fixture
def trace(tmp_path, ranks):
    return json.loads(chrome.write(tmp_path / "trace.json", ranks).read_text())


def named(trace, name, phase):
    return [e for e in trace["traceEvents"] if e["name"] == name and e["ph"] == phase]


def test_ranks_are_processes_and_threads_have_small_numbers(trace):
    told = {e["pid"]: e["args"]["name"] for e in named(trace, "process_name", "M")}
    assert told == {0: "rank 0 (server 0 on a)", 1: "rank 1 (trainer 0 on b)"}
    assert {e["tid"] for e in trace["traceEvents"] if e["pid"] == 1} == {0, 1, 2}
    (step,) = named(trace, "step", "X")
    assert (step["tid"], step["dur"], step["ts"]) == (1, 50, 0)  # main thread; microseconds


def test_flows_go_from_the_sending_to_the_receipt_of_the_same_packet(trace):
    starts, ends = named(trace, "packet", "s"), named(trace, "packet", "f")
    assert {e["id"] for e in starts} == {e["id"] for e in ends}
    by_id = {e["id"]: e for e in ends}
    assert [(e["pid"], by_id[e["id"]]["pid"]) for e in starts] == [(0, 1), (1, 0)]
    for start in starts:
        assert by_id[start["id"]]["ts"] > start["ts"]  # the clocks are aligned
        assert by_id[start["id"]]["bp"] == "e"
    # Each end lies within an event of its own thread: so arrows have somewhere to begin and end.
    for flow in starts + ends:
        assert any(
            e["ph"] == "X"
            and (e["pid"], e["tid"]) == (flow["pid"], flow["tid"])
            and e["ts"] <= flow["ts"] <= e["ts"] + e["dur"]
            for e in trace["traceEvents"]
        )


def test_numbers_are_counters_and_bytes_add_up(trace):
    (loss,) = named(trace, "loss", "C")
    assert loss["args"] == {"value": 2.5}
    told = [
        e["args"]["value"] for n in ("rows fed", "rows in tables") for e in named(trace, n, "C")
    ]
    assert told == [32, 7]
    sent = [e["args"]["value"] * 2**20 for e in named(trace, "sent, MiB", "C") if e["pid"] == 1]
    assert sent == pytest.approx([8, 16])


def test_a_sum_goes_on_beside_operators(trace):
    (begin,), (end,) = (named(trace, "sum of bucket 0", phase) for phase in "be")
    assert begin["id"] == end["id"]
    assert end["ts"] - begin["ts"] == 28


def test_events_of_a_thread_nest(trace):
    stacks = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            stacks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in stacks.values():
        assert spans == sorted(spans, key=lambda span: (span[0], -span[1]))
        open_until = []
        for begin, end in spans:
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_the_trace_says_how_well_clocks_agree_and_what_was_lost(trace):
    facts = trace["otherData"]["rank 1 (trainer 0 on b)"]
    assert facts["clock error, microseconds"] == 0.5
    assert facts["events lost, the oldest"] == 10


def test_ranks_without_events_make_a_trace_too(tmp_path):
    rank = RankRecording(RankOfJob(0, "TRAINER", 0, "a", 1), Recording(np.zeros(0, EVENT), (), 0))
    trace = json.loads(chrome.write(tmp_path / "trace.json", [rank]).read_text())
    assert {e["ph"] for e in trace["traceEvents"]} == {"M"}


def test_a_loss_that_is_no_number_leaves_the_trace_readable(tmp_path):
    found = events_of(
        *((EventKind.VALUE, "loss", 1, 1, v, -1, 1, MAIN) for v in (np.nan, -np.inf, 2.0))
    )
    rank = RankRecording(RankOfJob(0, "TRAINER", 0, "a", 1), Recording(found, NAMES, 3))
    text = chrome.write(tmp_path / "trace.json", [rank]).read_text()
    trace = json.loads(text, parse_constant=pytest.fail)
    told = [event["name"] for event in trace["traceEvents"] if event["ph"] in "iC"]
    assert told == ["loss is nan", "loss is -inf", "loss"]


def test_perfettos_own_trace_processor_reads_it(tmp_path, ranks):
    with trace_processor.reading(chrome.write(tmp_path / "trace.json", ranks)) as trace:
        (step,) = trace.query(
            "select s.dur, p.name from slice s join thread_track t on s.track_id = t.id "
            "join thread using (utid) join process p using (upid) where s.name = 'step'"
        )
        assert step == {"dur": 50_000, "name": "rank 1 (trainer 0 on b)"}
        arrows = trace.query(
            "select a.name as sent, b.name as received, b.ts - a.ts as late from flow "
            "join slice a on slice_out = a.id join slice b on slice_in = b.id order by sent"
        )
        assert arrows == [
            {"sent": "send w", "received": "receive w", "late": 10_000},
            {"sent": "send w@GRAD", "received": "receive w@GRAD", "late": 9_000},
        ]
        sent = trace.query(
            "select value * 1048576 as bytes from counter join process_counter_track t "
            "on track_id = t.id where t.name = 'sent, MiB value' and t.upid = "
            "(select upid from process where name glob 'rank 1 *') order by ts"
        )
        assert sent == [{"bytes": 8}, {"bytes": 16}]
        # It counts what it cannot make sense of.
        assert trace.query("select name from stats where value > 0 and severity != 'info'") == []
