"""Summary of recordings: each rank's time by cause, and messages between ranks. Pure.

Times are in seconds, of rank 0's clock where ranks are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.files import RankOfJob, RankRecording

LEAST_SAMPLES = 8  # of memory, to speak of its growth
LARGE_BYTES = 2**16  # of a message whose rate counts
PARTS = 8  # of a run, over which a rank is compared with itself

Events = NDArray[Any]


@dataclass(frozen=True)
class Memory:
    """The memory of a process over the time of its recording, which has four quarters."""

    last: float = 0.0  # bytes
    quarters: tuple[float, ...] = ()  # medians, bytes; none of a recording that is too short
    seconds: float = 0.0


@dataclass(frozen=True)
class RankSummary:
    """One rank, from its first training step, or packet, to its last."""

    of: RankOfJob
    steps: int
    seconds: float
    waits: dict[str, float]  # seconds by cause
    between: float  # seconds between steps that are no waits: the script's own code
    busy: float  # seconds of a typical step, what is between steps included, but see `_between`
    steadily: float  # likewise, but exceeded in three quarters of the run
    applied: float  # seconds
    applied_bytes: float  # in the steps whose details were noted
    applied_packets: int  # likewise
    garbage: float
    checkpoints: float
    memory: Memory

    @property
    def steps_per_s(self) -> float:
        """Steps per second of the recording; 0 without any time."""
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def waited(self) -> float:
        """Seconds of waits, of all causes."""
        return sum(self.waits.values())

    def share(self, seconds: float) -> float:
        """Return seconds as a share of this rank's time."""
        return seconds / self.seconds if self.seconds else 0.0

    @property
    def serves(self) -> bool:
        """Whether this rank is a server."""
        return self.of.role == "PSERVER"


def summarize(rank_recording: RankRecording) -> RankSummary:
    """Return where a rank's time went."""
    events, names, of = (
        rank_recording.recording.events,
        rank_recording.recording.names,
        rank_recording.of,
    )
    kinds = events["kind"]
    steps = _in_order(events[kinds == EventKind.STEP])
    served = events[(kinds == EventKind.RECEIVED) | (kinds == EventKind.APPLIED)]
    main_spans = served if of.role == "PSERVER" or not len(steps) else steps
    begin, end = _span(main_spans)
    first = int(main_spans["end"][0]) if len(main_spans) else 0
    inside = events[(events["begin"] >= begin) & (events["end"] <= end)]
    waits: dict[str, float] = defaultdict(float)
    waiting = inside[inside["kind"] == EventKind.WAIT]
    for event in waiting:
        waits[names[event["name"]]] += _seconds(event)
    applied = inside[inside["kind"] == EventKind.APPLIED]
    pauses = inside[
        np.isin(inside["kind"], (EventKind.WAIT, EventKind.CHECKPOINT, EventKind.GARBAGE))
    ]
    between, busy, steadily = 0.0, 0.0, 0.0
    if main_spans is steps:
        between, busy, steadily = _between(steps, waiting, pauses)
    return RankSummary(
        of=of,
        steps=len(steps),
        seconds=(end - begin) / 1e9,
        waits=dict(waits),
        between=between,
        busy=busy,
        steadily=steadily,
        applied=_total(applied),
        applied_bytes=float(applied["value"].sum()),
        applied_packets=len(applied),
        # The first step compiles, which leaves much garbage once.
        garbage=_total(inside[(inside["kind"] == EventKind.GARBAGE) & (inside["begin"] >= first)]),
        checkpoints=_total(inside[inside["kind"] == EventKind.CHECKPOINT]),
        memory=_memory(events[kinds == EventKind.MEMORY]),
    )


def _in_order(events: Events) -> Events:
    return events[np.argsort(events["begin"], kind="stable")]


def _span(events: Events) -> tuple[int, int]:
    if not len(events):
        return 0, 0
    return int(events["begin"].min()), int(events["end"].max())


def _seconds(event: Any) -> float:
    return float(event["end"] - event["begin"]) / 1e9


def _total(events: Events) -> float:
    return float((events["end"] - events["begin"]).sum()) / 1e9


def _between(steps: Events, waits: Events, pauses: Events) -> tuple[float, float, float]:
    """Return (seconds between steps without waits, busy, steadily): see `RankSummary`.

    Busy is a rank while it neither waits nor saves nor collects garbage (``pauses``): of the latter
    two is spoken apart.
    """
    if len(steps) < 2:
        return 0.0, _total(steps), _total(steps)
    ends = steps["end"]
    paused_in = np.zeros(len(steps) - 1)
    between_waits = 0.0
    # In the interval from the end of one step to the end of the next in which the event ended.
    for event in waits:
        i = int(np.searchsorted(ends, event["end"], side="left")) - 1
        if 0 <= i < len(paused_in) and event["end"] <= steps["begin"][i + 1]:
            between_waits += _seconds(event)
    over = 0
    for event in _in_order(pauses):
        # One may lie within another, such as a wait in a checkpoint.
        begin, end = max(over, int(event["begin"])), int(event["end"])
        over = max(over, end)
        i = int(np.searchsorted(ends, end, side="left")) - 1
        if begin < end and 0 <= i < len(paused_in):
            paused_in[i] += (end - begin) / 1e9
    gaps = float((steps["begin"][1:] - ends[:-1]).sum()) / 1e9
    busy = np.diff(ends) / 1e9 - paused_in
    return max(0.0, gaps - between_waits), typical(busy), typical(busy, 0.25)


def typical(values: NDArray[np.float64], share: float = 0.5) -> float:
    """Return the value that the means of a ``share`` of a run's parts reach; their median.

    One long step does not show in it, and stalls that come again and again do.
    """
    parts = np.array_split(values, min(PARTS, len(values)))
    return float(np.quantile([part.mean() for part in parts], share))


def _memory(events: Events) -> Memory:
    if not len(events):
        return Memory()
    last, values = float(events["value"][-1]), events["value"]
    if len(values) < LEAST_SAMPLES:
        return Memory(last)
    quarters = tuple(float(np.median(part)) for part in np.array_split(values, 4))
    return Memory(last, quarters, float(events["end"][-1] - events["begin"][0]) / 1e9)


# -- between ranks ---------------------------------------------------------------------------------
def traffic(recordings: Sequence[RankRecording]) -> dict[tuple[int, int], float]:
    """Return the bytes sent from rank to rank, in the steps whose details were noted."""
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for rank in recordings:
        events = rank.recording.events
        for event in events[events["kind"] == EventKind.SENT]:
            sent[rank.of.rank, int(event["peer"])] += float(event["value"])
    return dict(sent)


@dataclass(frozen=True)
class MessageTimes:
    """The messages from one rank to a server: how long they take."""

    sender: int
    receiver: int
    messages: int
    nbytes: float  # of one, on average
    usual_s: float
    least_s: float  # for as many bytes, by the quickest of the job


def ways(recordings: Sequence[RankRecording]) -> list[MessageTimes]:
    """Return how long messages take to servers, and how long at least: none if there are none.

    The least is the quickest message of all, and the bytes at the best rate of a large one.
    """
    messages = _messages(recordings)
    all_messages = [one for same in messages.values() for one in same]
    quickest = max(0.0, min((seconds for _, seconds in all_messages), default=0.0))
    large = [nbytes / s for nbytes, s in all_messages if nbytes >= LARGE_BYTES and s > 0]
    s_per_byte = 1 / max(large) if large else 0.0
    return [
        MessageTimes(
            *ends,
            messages=len(same),
            nbytes=(nbytes := sum(n for n, _ in same) / len(same)),
            usual_s=typical(np.array([seconds for _, seconds in same])),
            least_s=max(quickest, nbytes * s_per_byte),
        )
        for ends, same in sorted(messages.items())
    ]


def transits(recordings: Sequence[RankRecording]) -> dict[tuple[int, int], float]:
    """Return how long packets usually take to servers, in seconds, by sender and server."""
    return {
        ends: typical(np.array([seconds for _, seconds in same]))
        for ends, same in _messages(recordings).items()
    }


def _messages(
    recordings: Sequence[RankRecording],
) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """Return the bytes and seconds of messages to servers whose receipt is noted, by their ends.

    Trainers record receipts only when all have come, so messages to them are left out.
    """
    servers = {rank.of.rank for rank in recordings if rank.of.role == "PSERVER"}
    came: dict[tuple[int, int, str, int], int] = {}
    for rank in recordings:
        if rank.of.rank in servers:
            for event in _of_kind(rank, EventKind.RECEIVED):
                name = rank.recording.names[event["name"]]
                key = int(event["peer"]), rank.of.rank, name, int(event["step"])
                came[key] = int(event["end"]) + rank.of.offset_ns
    took: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for rank in recordings:
        for event in _of_kind(rank, EventKind.SENT):
            ends = rank.of.rank, int(event["peer"])
            name = rank.recording.names[event["name"]]
            end = came.get((*ends, name, int(event["step"])))
            if end is not None:
                seconds = (end - int(event["end"]) - rank.of.offset_ns) / 1e9
                took[ends].append((float(event["value"]), seconds))
    return dict(took)


def _of_kind(rank: RankRecording, kind: EventKind) -> Events:
    events: Events = rank.recording.events
    of_kind: Events = events[events["kind"] == kind]
    return of_kind
