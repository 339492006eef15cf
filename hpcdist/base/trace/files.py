"""The recording of one rank as a file, and those of a job in a directory."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from hpcdist.base import plain_data
from hpcdist.base.errors import TraceError
from hpcdist.base.replaced import TEMPORARY, in_place_of, write_whole
from hpcdist.base.trace import programs
from hpcdist.base.trace.events import EVENT, EventKind
from hpcdist.base.trace.recorder import Recording

T = TypeVar("T")
FORMAT = 1
MOST = plain_data.MAX_INTEGER  # of times in nanoseconds, and of other numbers
_NAME = re.compile(r"events\.(\d+)\.npz")
_FAILURE = re.compile(r"failure\.(\d+)\.txt")
_LEFT = re.compile(rf"(events\.\d+\.npz|failure\.\d+\.txt|trace\.json){TEMPORARY}")
_FIRST_ENTRY = b"about.npy"  # of the archive that `write` makes
_HEAD = b"hpcdist: what this rank says about the end of its job\n"  # of the file of a failure


@dataclass(frozen=True)
class RankOfJob:
    """Whose recording it is, and how its clock is to be read."""

    rank: int
    role: str  # TRAINER or PSERVER
    index: int  # among those of its role
    host: str
    pid: int
    offset_ns: int = 0  # to add to its clock to have rank 0's
    error_ns: int = 0  # by which that may be wrong
    drift_ppm: float = 0.0  # by which its clock ran slower, corrected in its events
    unix_ns: int = 0  # of the wall clock when its monotonic clock was 0
    why: str = ""  # it was written: "end", "signal", "failure"
    doing: str = ""  # then
    waiting: str = ""  # for what, if it waited then
    world: int = 0  # ranks of the job, 0 if not known
    written_ns: int = 0  # when, by its clock
    # `Rates` of its process, 0 where they were not measured.
    bytes_per_s: float = 0.0
    flops_per_s: float = 0.0
    call_s: float = 0.0
    # What its process runs, and since when by its clock.
    script: str = ""
    command: str = ""
    versions: str = ""
    began_ns: int = 0
    # The `Load` of its machine since then, and the load average when it was written.
    cores: int = 0
    busy: float = 0.0
    stolen: float = 0.0
    own: float = 0.0
    delayed: float = 0.0
    load: float = 0.0

    def __str__(self) -> str:
        kind = "server" if self.role == "PSERVER" else "trainer"
        return f"rank {self.rank} ({kind} {self.index} on {self.host})"


@dataclass(frozen=True)
class RankRecording:
    """The recording of one rank of a job."""

    of: RankOfJob
    recording: Recording


def made(kind: type[T], facts: dict[str, Any]) -> T:
    """Return a dataclass of what a file says; TypeError or ValueError for values that do not fit.

    Fields that are no text and no number are the caller's to check.
    """
    for name, expected in get_type_hints(kind).items():
        if name in facts and expected in (str, int, float):
            checked(facts[name], expected)
    return kind(**facts)


def checked(value: Any, expected: type) -> Any:
    """Return a text or a number within 2**62 as it is; TypeError or ValueError for another."""
    fits = (int, float) if expected is float else (expected,)
    if type(value) not in fits or (expected is not str and not -MOST <= value <= MOST):
        raise TypeError(f"expected {expected.__name__}, got {value!r:.80}")
    if expected is str:
        value.encode()  # refuses what no page or terminal can show
    return value


def path_of(directory: str | Path, rank: int) -> Path:
    """Return where the recording of a rank lies."""
    return Path(directory, f"events.{rank}.npz")


def write(directory: str | Path, rank_recording: RankRecording) -> Path:
    """Write a rank's recording, completely or not at all; an older one of this rank is replaced."""
    path = path_of(directory, rank_recording.of.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = asdict(rank_recording.of) | {
        "format": FORMAT,
        "names": rank_recording.recording.names,
        "noted": rank_recording.recording.noted,
        "programs": [program.plain() for program in rank_recording.recording.programs],
    }
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with in_place_of(path, durable=False) as new, open(new, "wb", closefd=False) as file:
        np.savez(file, about=text, events=rank_recording.recording.events)
    return path


def read(path: str | Path) -> RankRecording:
    """Read a file that `write` wrote; TraceError for another file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if sum(part.file_size for part in archive.zip.infolist()) > os.path.getsize(path):
                raise ValueError("it is compressed")  # `write` compresses nothing
            about = json.loads(archive["about"].tobytes())
            events = archive["events"]
        if about.pop("format") != FORMAT or events.dtype != EVENT:
            raise ValueError(f"expected format {FORMAT}")
        names = plain_data.typed(tuple[str, ...], about.pop("names"))
        _check_events(events, len(names))
        noted = plain_data.typed(int, about.pop("noted"))
        ran = tuple(map(programs.from_plain, about.pop("programs", ())))
        recording = Recording(events, names, noted, ran)
        return RankRecording(made(RankOfJob, about), recording)
    except Exception as error:  # zipfile, zlib and numpy raise all kinds for a damaged file
        raise TraceError(f"{path} is not a recording of a rank: {error!r}") from error


def _check_events(events: NDArray[Any], names: int) -> None:
    """Raise ValueError for events that no recorder has noted."""
    if events.ndim != 1:
        raise ValueError(f"expected a row of events, got shape {events.shape}")
    wrong = ~np.isin(events["kind"], list(EventKind))
    wrong |= (events["name"] < 0) | (events["name"] >= names)
    wrong |= (events["end"] < events["begin"]) | (events["peer"] < -1)
    wrong |= (events["begin"] < -MOST) | (events["end"] > MOST)
    if wrong.any():
        raise ValueError(f"malformed event {events[wrong][0]}")


def write_failure(directory: str | Path, rank: int, text: str) -> None:
    """Write what a rank says about the end of its job."""
    path = _failure_path(directory, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _HEAD.decode() + text)


def _failure_path(directory: str | Path, rank: int) -> Path:
    return Path(directory, f"failure.{rank}.txt")


def failures(directory: str | Path) -> dict[int, str]:
    """Return the ranks' notes about the end of their job, by rank."""
    texts = {}
    for path in Path(directory).glob("failure.*.txt"):
        if (name := _FAILURE.fullmatch(path.name)) and _is_failure(path):
            text = path.read_text(encoding="utf-8", errors="replace")
            texts[int(name[1])] = text.removeprefix(_HEAD.decode())
    return dict(sorted(texts.items()))


# -- whose files they are --------------------------------------------------------------------------
def _is_recording(path: Path) -> bool:
    """Return whether `write` has made a file, which may be damaged since."""
    head = _beginning(path)  # of a zip archive: the name of the first entry is at byte 30
    return head.startswith(b"PK\x03\x04") and head[30:].startswith(_FIRST_ENTRY)


def _is_failure(path: Path) -> bool:
    return _beginning(path).startswith(_HEAD)


def _beginning(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(64)
    except (FileNotFoundError, IsADirectoryError):
        return b""


def refuse_others_files(directory: str | Path, rank: int) -> None:
    """Raise TraceError if what a rank would write takes the place of a file that is not ours."""
    for path, is_ours in (
        (path_of(directory, rank), _is_recording),
        (_failure_path(directory, rank), _is_failure),
    ):
        if os.path.lexists(path) and not is_ours(path):
            raise TraceError(
                f"{path} is in the way: rank {rank} would write its recording under this name, and "
                "hpcdist has not written that file; move it, or name another directory"
            )


def remove_all(directory: str | Path) -> None:
    """Remove what an earlier job has written: the next one may have other ranks.

    Files of others stay, whatever their names are.
    """
    for path in Path(directory).glob("*"):
        name = path.name
        if (
            (_NAME.fullmatch(name) and _is_recording(path))
            or (_FAILURE.fullmatch(name) and _is_failure(path))
            or _LEFT.fullmatch(name)
        ):
            path.unlink(missing_ok=True)


def read_all(directory: str | Path, *, required: bool = True) -> list[RankRecording]:
    """Return a directory's recordings, by rank; TraceError if there is none and ``required``."""
    folder = Path(directory)
    named = [path for path in folder.glob("events.*.npz") if _NAME.fullmatch(path.name)]
    paths = [path for path in named if _is_recording(path)] or named  # `read` says what those are
    if required and not paths:
        raise TraceError(
            f"{folder} has no recordings (events.*.npz): they are written by --trace DIR at the "
            "end, and at a failure also beside the logs of --log-dir; it has no metrics "
            "(metrics.*.jsonl) either: they are written by --metrics DIR"
        )
    return sorted(map(read, paths), key=lambda recording: recording.of.rank)
