"""The critical path of one step over all ranks. Pure.

Backwards from the end of the step: a rank has computed since its last wait ended; that wait ended
because of a message, or because the last rank reached a sum; so the path continues on the rank that
sent the message, or that was last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.files import RankRecording

MOST_HOPS = 1000
AFTER_NS = 200_000  # a wait and the receipt that ended it, at most so far apart


@dataclass(frozen=True)
class Span:
    """An event of one rank, by rank 0's clock in nanoseconds."""

    rank: int
    begin: int
    end: int
    kind: EventKind
    name: str
    peer: int
    number: int


@dataclass(frozen=True)
class PathSegment:
    """A part of the path: ``rank`` was busy from ``begin`` to ``end``."""

    rank: int
    begin: int
    end: int


@dataclass(frozen=True)
class StepTimes:
    """One step of a job: from when to when, and everything that ranks did then."""

    number: int
    begin: int
    end: int
    spans: tuple[Span, ...]


def chosen_step(ranks: Sequence[RankRecording]) -> int | None:
    """Return a step in the middle of those whose details all trainers have noted.

    These are operators, or in a script of PyTorch's sums.
    """
    common: set[int] | None = None
    for rank in ranks:
        events = rank.recording.events
        steps = set(events[events["kind"] == EventKind.STEP]["step"].tolist())
        operators = events["kind"] == EventKind.OPERATOR
        details = operators if operators.any() else events["kind"] == EventKind.SUM
        steps &= set(events[details]["step"].tolist())
        if rank.of.role != "PSERVER":
            common = steps if common is None else common & steps
    candidates = sorted(common or ())
    return candidates[len(candidates) // 2] if candidates else None


def times_of(ranks: Sequence[RankRecording], number: int) -> StepTimes:
    """Return the times of all ranks during a step of the trainers."""
    bounds = []
    for rank in ranks:
        events, shift = rank.recording.events, rank.of.offset_ns
        steps = events[(events["kind"] == EventKind.STEP) & (events["step"] == number)]
        bounds += [(int(e["begin"]) + shift, int(e["end"]) + shift) for e in steps]
    begin, end = min(b for b, _ in bounds), max(e for _, e in bounds)
    spans = []
    for rank in ranks:
        events, shift = rank.recording.events, rank.of.offset_ns
        near = events[(events["end"] + shift >= begin) & (events["begin"] + shift <= end)]
        for e in near:
            if e["kind"] in (EventKind.VALUE, EventKind.RUN, EventKind.MEMORY):
                continue
            first, last = int(e["begin"]) + shift, int(e["end"]) + shift
            name = rank.recording.names[e["name"]]
            facts = EventKind(e["kind"]), name, int(e["peer"]), int(e["step"])
            spans.append(Span(rank.of.rank, first, last, *facts))
    return StepTimes(number, begin, end, tuple(spans))


def critical_path(step: StepTimes) -> list[PathSegment]:
    """Return the path in the order of time."""
    sent = {(s.rank, s.peer, s.name, s.number): s for s in step.spans if s.kind == EventKind.SENT}
    last = max(
        (s for s in step.spans if s.kind == EventKind.STEP and s.number == step.number),
        key=lambda span: span.end,
    )
    rank, at, path = last.rank, last.end, []
    for _ in range(MOST_HOPS):
        waits = [
            s
            for s in step.spans
            if s.rank == rank and s.kind == EventKind.WAIT and s.begin < at >= s.end
        ]
        wait = max(waits, key=lambda span: span.end, default=None)
        begin = step.begin if wait is None else max(step.begin, wait.end)
        path.append(PathSegment(rank, begin, at))
        if wait is None or begin == step.begin:
            break
        rank, at = _cause_of(wait, step, sent)
        if at <= step.begin:
            break
    return path[::-1]


def _cause_of(
    wait: Span, step: StepTimes, sent: dict[tuple[int, int, str, int], Span]
) -> tuple[int, int]:
    """Return the rank that a wait ended by, and when that rank had done its part."""
    senders = []
    for span in step.spans:
        came = wait.end <= span.begin <= wait.end + AFTER_NS or span.begin <= wait.end <= span.end
        if span.rank == wait.rank and span.kind == EventKind.RECEIVED and came:
            source = sent.get((span.peer, span.rank, span.name, span.number))
            if source is not None and source.begin < wait.end:
                senders.append(source)
    if senders:
        source = max(senders, key=lambda span: span.begin)
        return source.rank, min(source.end, wait.end - 1)
    # A sum, or notes: the rank that came last has waited least.
    peers = {s.rank for s in step.spans if s.kind == EventKind.STEP} - {wait.rank}
    arrivals = {}
    for rank in peers:
        same = [
            s.begin
            for s in step.spans
            if s.rank == rank
            and s.kind == EventKind.WAIT
            and s.name == wait.name
            and s.begin < wait.end
            and s.end > wait.begin
        ]
        arrivals[rank] = max(same, default=wait.end)
    rank = max(arrivals, key=lambda other: arrivals[other], default=wait.rank)
    return rank, min(arrivals.get(rank, wait.begin), wait.end - 1)
