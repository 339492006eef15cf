"""What a job's recordings say: where each rank's time went, who held up whom, what to change. Pure.

Times are in seconds, of rank 0's clock where ranks are compared.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcdist.trace.events import Cause, Kind
from hpcdist.trace.files import RankOfJob, RankRecording

STRAGGLES = 1.5  # times what the other trainers are busy in a step
LEAST_SHARE = 0.2  # of the time, below which nothing is worth a word
SKEWED = 1.6  # times a server's fair share
LARGE_BYTES = 2**16  # of a packet: smaller ones are applied in no time
MANY_MESSAGES, SMALL_BYTES = 20, 4096  # of a trainer in a step; on average
MUCH_GARBAGE = 0.05
LONG_S = 2.0  # a single collection is much of a job that is shorter

Events = NDArray[Any]


@dataclass(frozen=True)
class RankSummary:
    """One rank, from its first training step, or packet, to its last."""

    of: RankOfJob
    steps: int
    seconds: float
    waits: dict[str, float]  # seconds by cause
    between: float  # seconds between steps that are no waits: the script's own code
    busy: float  # seconds of a typical step that are no waits, what is between steps included
    applied: float  # seconds
    applied_bytes: float  # in the steps whose details were noted
    applied_packets: int  # likewise
    garbage: float
    checkpoints: float

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def waited(self) -> float:
        return sum(self.waits.values())

    def share(self, seconds: float) -> float:
        """Return seconds as a share of this rank's time."""
        return seconds / self.seconds if self.seconds else 0.0

    @property
    def serves(self) -> bool:
        return self.of.role == "PSERVER"


@dataclass(frozen=True)
class Advice:
    """Something that holds the job up, and what to change; ``rank`` where it is one rank's."""

    cause: str
    text: str
    rank: int | None = None


def summarize(found: RankRecording) -> RankSummary:
    """Return where a rank's time went."""
    events, names, of = found.recording.events, found.recording.names, found.of
    kinds = events["kind"]
    steps = _in_order(events[kinds == Kind.STEP])
    served = events[(kinds == Kind.RECEIVED) | (kinds == Kind.APPLIED)]
    own = served if of.role == "PSERVER" or not len(steps) else steps
    begin, end = _span(own)
    inside = events[(events["begin"] >= begin) & (events["end"] <= end)]
    waits: dict[str, float] = defaultdict(float)
    waiting = inside[inside["kind"] == Kind.WAIT]
    for event in waiting:
        waits[names[event["name"]]] += _seconds(event)
    applied = inside[inside["kind"] == Kind.APPLIED]
    between, busy = _between(steps, waiting) if own is steps else (0.0, 0.0)
    return RankSummary(
        of=of,
        steps=len(steps),
        seconds=(end - begin) / 1e9,
        waits=dict(waits),
        between=between,
        busy=busy,
        applied=_total(applied),
        applied_bytes=float(applied["value"].sum()),
        applied_packets=len(applied),
        garbage=_total(inside[inside["kind"] == Kind.GARBAGE]),
        checkpoints=_total(inside[inside["kind"] == Kind.CHECKPOINT]),
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


def _between(steps: Events, waits: Events) -> tuple[float, float]:
    """Return (seconds between steps, seconds that a typical step is busy), both without waits."""
    if len(steps) < 2:
        return 0.0, _total(steps)
    ends = steps["end"]
    waited_by = np.zeros(len(steps) - 1)
    between_waits = 0.0
    for event in waits:
        # The interval from the end of one step to the end of the next in which the wait ended.
        i = int(np.searchsorted(ends, event["end"], side="left")) - 1
        if 0 <= i < len(waited_by):
            waited_by[i] += _seconds(event)
            if event["end"] <= steps["begin"][i + 1]:
                between_waits += _seconds(event)
    gaps = float((steps["begin"][1:] - ends[:-1]).sum()) / 1e9
    busy = np.diff(ends) / 1e9 - waited_by
    return max(0.0, gaps - between_waits), float(np.median(busy))


# -- between ranks ---------------------------------------------------------------------------------
def traffic(found: Sequence[RankRecording]) -> dict[tuple[int, int], float]:
    """Return the bytes sent from rank to rank, in the steps whose details were noted."""
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for rank in found:
        events = rank.recording.events
        for event in events[events["kind"] == Kind.SENT]:
            sent[rank.of.rank, int(event["peer"])] += float(event["value"])
    return dict(sent)


def stragglers(ranks: Sequence[RankSummary]) -> list[RankSummary]:
    """Return the trainers that are busy for much longer in a step than the others."""
    trainers = [rank for rank in ranks if not rank.serves and rank.steps > 1]
    found = []
    for rank in trainers:
        others = [other.busy for other in trainers if other is not rank]
        if not others:
            continue
        usual, step_s = statistics.median(others), rank.seconds / rank.steps
        if rank.busy > STRAGGLES * usual and rank.busy - usual > LEAST_SHARE * step_s:
            found.append(rank)
    return found


def advise(found: Sequence[RankRecording], ranks: Sequence[RankSummary]) -> list[Advice]:
    """Return what holds the job up, the worst first; nothing for a healthy job."""
    return [
        *_slow_trainers(ranks),
        *_reading(ranks),
        *_placement(ranks),
        *_messages(found, ranks),
        *_garbage(ranks),
        *_checkpoints(ranks),
    ]


def _slow_trainers(ranks: Sequence[RankSummary]) -> list[Advice]:
    said = []
    for rank in stragglers(ranks):
        reader = rank.waits.get(Cause.READER, 0.0)
        within = rank.busy * rank.steps - rank.between
        where = "its script, between steps" if rank.between > within else "its steps"
        hint = (
            "see what the script does there on this rank alone"
            if rank.between > within
            else "compare its operators with another rank's; look at its host: other processes, "
            "cores (python -m hpcdist doctor), temperature"
        )
        if reader > 0:
            hint += "; it waits for its reader, too"
        said.append(
            Advice(
                "a slow rank",
                f"{rank.of} is busy {rank.busy * 1e3:.3g} ms in a step, and the others wait: the "
                f"time goes into {where}: {hint}",
                rank.of.rank,
            )
        )
    return said


def _reading(ranks: Sequence[RankSummary]) -> list[Advice]:
    trainers = [rank for rank in ranks if not rank.serves and rank.steps > 1]
    if not trainers:
        return []
    said = []
    reader = {rank.of.rank: rank.share(rank.waits.get(Cause.READER, 0.0)) for rank in trainers}
    slowest = max(reader, key=lambda rank: reader[rank])
    if reader[slowest] > LEAST_SHARE:
        said.append(
            Advice(
                "the reader",
                f"trainers wait for the reader, rank {slowest} {reader[slowest]:.0%} of its time: "
                "read ahead (capacity=, fluid.io.multiprocess_reader), or read faster",
                slowest,
            )
        )
    slow = stragglers(trainers)
    usual = [rank.share(rank.between) for rank in trainers if rank not in slow]
    script = statistics.median(usual or [0.0])
    if script > 2 * LEAST_SHARE:
        said.append(
            Advice(
                "the script",
                f"{script:.0%} of the trainers' time is the script's own, between steps: make "
                "batches in a fluid.io.DataLoader, which reads ahead, and print less often",
            )
        )
    return said


def _placement(ranks: Sequence[RankSummary]) -> list[Advice]:
    servers = [rank for rank in ranks if rank.serves]
    total = sum(rank.applied_bytes for rank in servers)
    if len(servers) < 2 or not total:
        return []
    most = max(servers, key=lambda rank: rank.applied_bytes)
    share = most.applied_bytes / total
    large = most.applied_bytes / most.applied_packets > LARGE_BYTES
    if share < min(0.95, SKEWED / len(servers)) or not large:
        return []
    return [
        Advice(
            "placement",
            f"server {most.of.index} (rank {most.of.rank}) applies {share:.0%} of the bytes: let "
            "parameters be cut (config.slice_var_up = True, a smaller config.min_block_size)",
            most.of.rank,
        )
    ]


def _messages(found: Sequence[RankRecording], ranks: Sequence[RankSummary]) -> list[Advice]:
    for rank, summary in zip(found, ranks):
        events = rank.recording.events
        sent = events[events["kind"] == Kind.SENT]
        if summary.serves or not len(sent):
            continue
        per_step = statistics.median(Counter(sent["step"].tolist()).values())
        waits = summary.share(summary.waits.get(Cause.PARAMETERS, 0.0))
        if per_step > MANY_MESSAGES and sent["value"].mean() < SMALL_BYTES and waits > LEAST_SHARE:
            return [
                Advice(
                    "small messages",
                    f"a trainer sends {per_step:.0f} messages of {sent['value'].mean():.0f} bytes "
                    "in a step: cut parameters into fewer pieces (raise config.min_block_size), or "
                    "use fewer servers",
                )
            ]
    return []


def _garbage(ranks: Sequence[RankSummary]) -> list[Advice]:
    worst = max(ranks, key=lambda rank: rank.share(rank.garbage), default=None)
    if worst is None or worst.share(worst.garbage) < MUCH_GARBAGE or worst.seconds < LONG_S:
        return []
    return [
        Advice(
            "garbage collection",
            f"{worst.of} spends {worst.share(worst.garbage):.0%} of its time collecting garbage: "
            "gc.freeze() before the loop, or make fewer Python objects in it",
            worst.of.rank,
        )
    ]


def _checkpoints(ranks: Sequence[RankSummary]) -> list[Advice]:
    worst = max(ranks, key=lambda rank: rank.share(rank.checkpoints), default=None)
    if worst is None or worst.share(worst.checkpoints) < LEAST_SHARE:
        return []
    return [
        Advice(
            "checkpoints",
            f"{worst.of} spends {worst.share(worst.checkpoints):.0%} of its time on checkpoints: "
            "save less often, beside training (asynchronous=True), or to a faster file system",
            worst.of.rank,
        )
    ]
