"""The progress of each rank of a running job, in small files that it rewrites."""

from __future__ import annotations

import errno
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hpcdist.base.errors import TraceError
from hpcdist.base.replaced import TEMPORARY, write_whole
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.files import RankOfJob, checked, made
from hpcdist.base.trace.metric_files import plain
from hpcdist.base.trace.recorder import Recording

T = TypeVar("T")
FORMAT = 1
RUNS, ENDED, FAILED = "runs", "ended", "failed"
PER_SECOND = 50  # files that all ranks of a job write together
JOB = "job.json"
MOST_RANKS = 1 << 20  # those that have not written yet are listed
_NAME = re.compile(r"status\.(\d+)\.json")
_LEFT = re.compile(rf"status\.\d+\.json{TEMPORARY}")  # by ranks that were killed


@dataclass(frozen=True)
class JobStatus:
    """What `top` must know of a job beside its ranks; trainer or server, rank 0 writes it."""

    job: str  # Slurm's number, or else the host and process of rank 0
    script: str
    ranks: int
    unix_s: float  # of its start
    every_s: float  # between two writings of a rank


@dataclass(frozen=True)
class RankStatus:
    """What one rank does now."""

    rank: int
    role: str
    index: int
    host: str
    pid: int
    unix_s: float  # when it was written
    state: str = RUNS
    step: int = 0
    steps_per_s: float = 0.0  # since the last writing, as is what follows
    waited: float = 0.0  # share of the time
    cause: str = ""  # of most of it
    waits_for: str = ""  # now
    waits_s: float = 0.0
    idle_s: float = 0.0  # since the step was another one
    doing: str = ""
    rss_mib: float = 0.0
    metrics: dict[str, tuple[int, float]] = field(default_factory=dict)  # step, value: the latest

    @property
    def serves(self) -> bool:
        """Whether this rank is a server."""
        return self.role == "PSERVER"

    def __str__(self) -> str:
        return str(RankOfJob(self.rank, self.role, self.index, self.host, self.pid))


@dataclass(frozen=True)
class Waits:
    """How long a thread has waited in a time, and for what most."""

    share: float = 0.0
    cause: str = ""


def waits_within(recording: Recording, thread: int, begin_ns: int, end_ns: int) -> Waits:
    """Return how much of a time a thread has waited, by what is recorded. Pure."""
    events = recording.events
    waits = events[(events["kind"] == EventKind.WAIT) & (events["thread"] == thread)]
    by_cause: dict[int, int] = defaultdict(int)
    for name, begin, end in zip(waits["name"], waits["begin"], waits["end"]):
        by_cause[int(name)] += max(0, min(int(end), end_ns) - max(int(begin), begin_ns))
    total = sum(by_cause.values())
    if total <= 0 or end_ns <= begin_ns:
        return Waits()
    most = max(by_cause, key=lambda name: by_cause[name])
    return Waits(min(1.0, total / (end_ns - begin_ns)), recording.names[most])


def steps_in(recording: Recording) -> int:
    """Return how many training steps are recorded. Pure."""
    return int((recording.events["kind"] == EventKind.STEP).sum())


def last_step(recording: Recording) -> int:
    """Return how many training steps there had been by the last that is recorded. Pure."""
    numbers = recording.events["step"][recording.events["kind"] == EventKind.STEP]
    return int(numbers[-1]) + 1 if len(numbers) else 0


def pace(every_s: float, ranks: int) -> float:
    """Return how often a rank writes: so that a large job leaves its file system in peace. Pure."""
    return max(every_s, ranks / PER_SECOND)


# -- files -----------------------------------------------------------------------------------------
def begin_job(directory: str | Path, facts: JobStatus) -> None:
    """Say which job this is; what an earlier one, with other ranks, has left is removed.

    Files of others stay. TraceError if one of them is in the way.
    """
    for path in Path(directory).glob("status.*.json*"):
        if _LEFT.fullmatch(path.name) or (_NAME.fullmatch(path.name) and _is(path, _status)):
            path.unlink(missing_ok=True)
    job = Path(directory, JOB)
    if os.path.lexists(job) and not _is(job, _job_facts):
        raise TraceError(
            f"{job} is in the way: hpcdist writes there which job this is, and has not written "
            "that file; move it, or name another directory"
        )
    _write(job, asdict(facts))


def write(directory: str | Path, status: RankStatus) -> None:
    """Write how far a rank is, completely or not at all."""
    metrics = {name: (step, plain(value)) for name, (step, value) in status.metrics.items()}
    _write(Path(directory, f"status.{status.rank}.json"), asdict(status) | {"metrics": metrics})


def read_job(directory: str | Path) -> JobStatus:
    """Return which job writes here; TraceError if none does."""
    try:
        return _read(Path(directory, JOB), _job_facts)
    except OSError as error:
        raise TraceError(
            f"no job writes into {directory} ({JOB}: {error.strerror}): start it with "
            "`python -m hpcdist --metrics DIR`"
        ) from error


def read_all(directory: str | Path) -> list[RankStatus]:
    """Return the status of all ranks that have written one, by rank; TraceError for other files."""
    statuses = []
    for path in Path(directory).glob("status.*.json"):
        if not _NAME.fullmatch(path.name):
            continue
        try:
            statuses.append(_read(path, _status))
        except OSError as error:
            # A new job has begun; or, on NFS, it was replaced while it was read.
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    return sorted(statuses, key=lambda status: status.rank)


def _job_facts(plain: dict[str, Any]) -> JobStatus:
    facts = made(JobStatus, plain)
    if not 0 < facts.ranks <= MOST_RANKS:
        raise ValueError(f"expected 1 to {MOST_RANKS} ranks, got {facts.ranks}")
    return facts


def _status(plain: dict[str, Any]) -> RankStatus:
    metrics = {n: (checked(step, int), float(v)) for n, (step, v) in plain["metrics"].items()}
    return made(RankStatus, plain | {"metrics": metrics})


def _write(path: Path, facts: dict[str, Any]) -> None:
    write_whole(path, json.dumps(facts | {"format": FORMAT}))


def _is(path: Path, facts_of: Callable[[dict[str, Any]], object]) -> bool:
    """Return whether this module has written a file."""
    try:
        _read(path, facts_of)
    except (OSError, TraceError):
        return False
    return True


def _read(path: Path, facts_of: Callable[[dict[str, Any]], T]) -> T:
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain.pop("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        return facts_of(plain)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise TraceError(f"{path} is not the status of a job: {error!r}") from error
