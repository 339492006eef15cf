"""Metrics as files: a line of JSON for each step that was logged, or of CSV for each metric.

Each rank has its own files. Complete lines are appended, so a killed job leaves readable files and
a resumed job continues them; ``start`` counts how often the file was continued.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpcdist.base.errors import MetricError
from hpcdist.base.trace.metric_log import RESERVED, Noted

MAX_BUFFERED = 2**24  # bytes that cannot be written for now
CSV_HEAD = "start,step,unix_s,name,value\n"
JSON_BEGINS = '{"start": '
_NAME = re.compile(r"metrics\.(\d+)\.jsonl")

Points = list[tuple[int, float]]  # (step, value)


class MetricWriter(Protocol):
    """What metrics are written to."""

    def write(self, noted: Sequence[Noted]) -> None:
        """Write what has been noted; OSError if it is not all written now, more may be later."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class BufferedFile:
    """Appends records to a file. What could not be written is kept, and tried again."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._buffered: deque[bytes] = deque()

    def append(self, records: Iterable[bytes]) -> None:
        """Append complete records. OSError: not all is written; up to `MAX_BUFFERED` are kept.

        The file never ends in part of a record but while it cannot be written.
        """
        self._buffered.extend(records)
        try:
            while self._buffered:
                self._written(os.write(self._file, b"".join(self._buffered)))
        except OSError as error:
            if sum(map(len, self._buffered)) > MAX_BUFFERED:
                self._buffered = deque([self._buffered[0]])  # it may be written in part
                raise OSError(error.errno, f"{error.strerror}: metrics are lost") from error
            raise

    def close(self) -> None:
        """Close the file; records that wait are lost."""
        os.close(self._file)

    def _written(self, count: int) -> None:
        while self._buffered and count >= len(self._buffered[0]):
            count -= len(self._buffered.popleft())
        if count:
            self._buffered[0] = self._buffered[0][count:]


class LineFile(BufferedFile):
    """Appends lines to a file of this rank, after the last complete one.

    ``begins`` is how each such file begins, and ``head`` its first line. MetricError for a file of
    others, which is left as it is; so does ``check``, for the last line.
    """

    def __init__(
        self,
        path: Path,
        begins: str = "",
        head: str = "",
        check: Callable[[str, Path], object] = lambda line, path: None,
    ) -> None:
        super().__init__(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666))
        try:
            begun = os.pread(self._file, len(begins), 0)
            if not begins.encode().startswith(begun):
                raise MetricError(f"{path} holds something other than metrics: it begins {begun!r}")
            self.last, size = _last_line(self._file)
            if self.last:
                check(self.last, path)
            if size < os.fstat(self._file).st_size:
                os.ftruncate(self._file, size)
            if not self.last and head:
                self._buffered.append(head.encode())
        except BaseException:
            self.close()
            raise


class JsonLines:
    """A line of JSON for what is logged together: {"start", "step", "unix_s", "loss": ...}."""

    def __init__(self, directory: str | Path, rank: int) -> None:
        self._lines = LineFile(json_path(directory, rank), JSON_BEGINS, check=_parsed)
        last = self._lines.last
        self.start = json.loads(last)["start"] + 1 if last else 0

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def write(self, noted: Sequence[Noted]) -> None:
        """Append what was logged; OSError as of `BufferedFile.append`."""
        lines = (
            {"start": self.start, "step": n.step, "unix_s": round(n.unix_s, 3), **_plain(n.values)}
            for n in noted
        )
        self._lines.append(f"{json.dumps(line)}\n".encode() for line in lines)


class CsvLines:
    """A line for each metric: start,step,unix_s,name,value."""

    def __init__(self, directory: str | Path, rank: int, start: int) -> None:
        self._lines = LineFile(Path(directory, f"metrics.{rank}.csv"), CSV_HEAD, CSV_HEAD)
        self._start = start

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def write(self, noted: Sequence[Noted]) -> None:
        """Append what was logged; OSError as of `BufferedFile.append`."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        for n in noted:
            for name, value in n.values.items():
                lines.writerow([self._start, n.step, f"{n.unix_s:.3f}", name, repr(value)])
        self._lines.append([text.getvalue().encode()])


def json_path(directory: str | Path, rank: int) -> Path:
    """Return where a rank writes its metrics."""
    return Path(directory, f"metrics.{rank}.jsonl")


def plain(value: float) -> float | str:
    """Return a number as JSON can say it: what is not finite is the text NaN, Infinity, ..."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def read_all(directory: str | Path) -> dict[str, dict[int, Points]]:
    """Return the curve of every metric on every rank that logged it; {} without files.

    Where a job has gone on from an earlier step, what came after that step before is left out.
    MetricError for files that are none of metrics.
    """
    curves: dict[str, dict[int, Points]] = {}
    for path in sorted(Path(directory).glob("metrics.*.jsonl")):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        latest: dict[str, int] = {}
        for line in read_lines(path):
            for name, value in line.items():
                if name in RESERVED:
                    continue
                points = curves.setdefault(name, {}).setdefault(int(match[1]), [])
                while line["start"] > latest.get(name, 0) and points:
                    if points[-1][0] < line["step"]:
                        break
                    points.pop()
                latest[name] = line["start"]
                points.append((line["step"], float(value)))
    return {name: dict(sorted(ranks.items())) for name, ranks in sorted(curves.items())}


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a file of metrics; MetricError for others."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MetricError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        yield _parsed(line, path, number)


def _parsed(line: str, path: Path, number: int | None = None) -> dict[str, Any]:
    try:
        metrics: dict[str, Any] = json.loads(line)
        if type(metrics["start"]) is not int or type(metrics["step"]) is not int:
            raise ValueError("start and step must be integers")
        for name in metrics:
            float(metrics[name])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        place = "its last line" if number is None else f"line {number}"
        raise MetricError(f"{path}: {place} is not a line of metrics: {error!r}") from error
    return metrics


def _plain(values: dict[str, float]) -> dict[str, float | str]:
    return {name: plain(value) for name, value in values.items()}


def _last_line(file: int) -> tuple[str, int]:
    """Return the last complete line of a file, without its end, and how many bytes end with it."""
    size = os.fstat(file).st_size
    tail, at = b"", size
    while at and tail.count(b"\n") < 2:
        at = max(0, at - max(4096, len(tail)))
        tail = os.pread(file, size - at, at)
    complete = tail.rfind(b"\n") + 1
    lines = tail[:complete].splitlines()
    return lines[-1].decode(errors="replace") if lines else "", at + complete
