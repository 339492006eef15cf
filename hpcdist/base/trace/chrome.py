"""The recordings of all ranks as one trace in Chrome's format, which Perfetto reads too.

Ranks are processes, with times of rank 0's clock. Events with a duration are complete events
(``X``), sums are pairs (``b``, ``e``) because they overlap, numbers are counters (``C``), and
packets are flows from send to receive (``s``, ``f``).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcdist.base.errors import TraceError
from hpcdist.base.replaced import in_place_of
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.files import RankRecording

CATEGORIES = {
    EventKind.STEP: "step",
    EventKind.RUN: "run",
    EventKind.OPERATOR: "operator",
    EventKind.SENT: "sent",
    EventKind.RECEIVED: "received",
    EventKind.APPLIED: "applied",
    EventKind.WAIT: "wait",
    EventKind.FEED: "feed",
    EventKind.FETCH: "fetch",
    EventKind.CHECKPOINT: "checkpoint",
    EventKind.GARBAGE: "garbage",
}
WORDS = {
    EventKind.SENT: "send ",
    EventKind.RECEIVED: "receive ",
    EventKind.APPLIED: "apply ",
    EventKind.WAIT: "wait: ",
}
MIB = 2**20
NAME = "trace.json"  # of the trace of a job, in its directory
_BEGIN = '{"displayTimeUnit": "ms", "otherData": '

Event = dict[str, Any]
Packet = tuple[int, int, str, int]  # from, to, name, number


def trace_events(ranks: Sequence[RankRecording]) -> Iterator[Event]:
    """Yield the events of a trace, those of one rank in the order of their begins."""
    starts = [int(r.recording.events["begin"].min()) + r.of.offset_ns for r in ranks if _some(r)]
    origin = min(starts, default=0)
    sent = {key for r in ranks for key in _packets(r, EventKind.SENT)}
    received = {key for r in ranks for key in _packets(r, EventKind.RECEIVED)}
    flows = {key: number for number, key in enumerate(sorted(sent & received), start=1)}
    for rank in ranks:
        yield from _of_process(rank)
        yield from _of_rank(rank, origin, flows)


def refuse_others_file(path: Path) -> None:
    """Raise TraceError if a trace would take the place of a file that `write` has not made."""
    if os.path.lexists(path):
        with open(path, "rb") as file:
            if file.read(len(_BEGIN)) == _BEGIN.encode():
                return
        raise TraceError(
            f"{path} is in the way: the trace of the job would be written under this name, and "
            "hpcdist has not written that file; move it, or name another directory"
        )


def write(path: str | Path, ranks: Sequence[RankRecording]) -> Path:
    """Write the trace of a job, completely or not at all."""
    path = Path(path)
    with (
        in_place_of(path, durable=False) as new,
        open(new, "w", encoding="utf-8", closefd=False) as file,
    ):
        file.write(_BEGIN)
        json.dump(_facts(ranks), file)
        file.write(', "traceEvents": [\n')
        separator = ""
        for event in trace_events(ranks):
            file.write(separator + json.dumps(event))
            separator = ",\n"
        file.write("\n]}\n")
    return path


def _facts(ranks: Iterable[RankRecording]) -> dict[str, Any]:
    return {
        str(r.of): {
            "pid": r.of.pid,
            "clock offset, microseconds": r.of.offset_ns / 1000,
            "clock error, microseconds": r.of.error_ns / 1000,
            "clock drift, corrected, ppm": r.of.drift_ppm,
            "events noted": r.recording.noted,
            "events lost, the oldest": r.recording.noted - len(r.recording.events),
        }
        for r in ranks
    }


def _some(rank: RankRecording) -> bool:
    return len(rank.recording.events) > 0


def _packets(rank: RankRecording, kind: EventKind) -> Iterator[Packet]:
    """Yield the packets that a rank has sent, or received, as both ends call them."""
    events, names = rank.recording.events, rank.recording.names
    for event in events[events["kind"] == kind]:
        yield _packet(rank.of.rank, kind, int(event["peer"]), names[event["name"]], event["step"])


def _packet(rank: int, kind: EventKind, peer: int, name: str, step: int) -> Packet:
    ends = (rank, peer) if kind == EventKind.SENT else (peer, rank)
    return (*ends, name, int(step))


def _of_process(rank: RankRecording) -> Iterator[Event]:
    of = rank.of
    about: Event = {"ph": "M", "pid": of.rank, "tid": 0}
    yield about | {"name": "process_name", "args": {"name": str(of)}}
    yield about | {"name": "process_sort_index", "args": {"sort_index": of.rank}}
    for thread, tid in _threads(rank).items():
        name = "main" if tid == 1 else f"thread {tid} ({thread:x})"
        yield about | {"name": "thread_name", "tid": tid, "args": {"name": name}}


def _threads(rank: RankRecording) -> dict[int, int]:
    """Return small numbers for the threads of a rank; 1 for that which runs Programs."""
    events = rank.recording.events
    runs = events[(events["kind"] == EventKind.STEP) | (events["kind"] == EventKind.RUN)]
    threads = [*map(int, runs["thread"][:1]), *sorted(set(map(int, events["thread"])))]
    return {thread: tid for tid, thread in enumerate(dict.fromkeys(threads), start=1)}


def _of_rank(rank: RankRecording, origin: int, flows: dict[Packet, int]) -> Iterator[Event]:
    of, names = rank.of, rank.recording.names
    threads = _threads(rank)
    shift = of.offset_ns - origin
    # Outer events before inner ones that begin with them: so they nest.
    events = sorted(rank.recording.events.tolist(), key=lambda event: (event[0], -event[1]))
    moved = {EventKind.SENT: 0.0, EventKind.RECEIVED: 0.0}
    for number, (begin, end, value, thread, name, peer, step, code) in enumerate(events):
        kind, text = EventKind(code), names[name]
        start = (begin + shift) / 1000
        common: Event = {"pid": of.rank, "tid": threads[thread], "ts": start}
        if kind == EventKind.VALUE and not math.isfinite(value):  # no number of JSON's
            yield common | {"ph": "i", "s": "t", "name": f"{text} is {value}"}
            continue
        if kind in (EventKind.VALUE, EventKind.COUNT):
            yield common | {"ph": "C", "name": text, "args": {"value": value}}
            continue
        if kind == EventKind.MEMORY:
            yield common | {"ph": "C", "name": "memory, MiB", "args": {"value": value / MIB}}
            continue
        if kind == EventKind.SUM:
            pair = {"cat": "sum", "name": text, "id": f"{of.rank}.{number}"}
            yield common | pair | {"ph": "b", "args": {"bytes": int(value), "step": step}}
            yield common | pair | {"ph": "e", "ts": (end + shift) / 1000}
            continue
        arguments: Event = {"step": step}
        if kind in (EventKind.SENT, EventKind.RECEIVED, EventKind.APPLIED):
            arguments["bytes"] = int(value)
        if peer >= 0:
            arguments["rank"] = peer
        yield common | {
            "ph": "X",
            "dur": (end - begin) / 1000,
            "name": WORDS.get(kind, "") + text,
            "cat": CATEGORIES[kind],
            "args": arguments,
        }
        if kind == EventKind.FEED:
            yield common | {"ph": "C", "name": "rows fed", "args": {"value": value}}
        if kind in moved:
            moved[kind] += value
            counter = f"{'sent' if kind == EventKind.SENT else 'received'}, MiB"
            yield common | {"ph": "C", "name": counter, "args": {"value": moved[kind] / MIB}}
            flow = flows.get(_packet(of.rank, kind, peer, text, step))
            if flow is not None:
                ends = {"ph": "s"} if kind == EventKind.SENT else {"ph": "f", "bp": "e"}
                yield common | ends | {"id": flow, "name": "packet", "cat": "packet"}
