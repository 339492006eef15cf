"""The status of a rank as a file for Prometheus's textfile collector.

https://github.com/prometheus/node_exporter#textfile-collector reads ``*.prom`` in a directory of
each node, and says how old they are. A rank removes its file when it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from hpcdist.base.replaced import TEMPORARY, write_whole
from hpcdist.base.trace.status import RankStatus

OLD_S = 3600.0  # a rank writes every few seconds, or minutes in the largest jobs
_NAME = re.compile(rf"hpcdist\.(\d+)\.prom({TEMPORARY})?")


def text(status: RankStatus, job: str) -> str:
    """Return the file's text. Pure."""
    labels = {"job_id": job, "rank": str(status.rank), "role": _role(status)}
    lines = []
    gauges = {
        "step": ("step of the training program", float(status.step)),
        "steps_per_second": ("steps since the last writing", status.steps_per_s),
        "wait_ratio": ("share of the time in which the rank waits", status.waited),
        "idle_seconds": ("since the last step", status.idle_s),
        "resident_bytes": ("memory in use", status.rss_mib * 2**20),
        "updated_seconds": ("when this was written, since 1970", status.unix_s),
    }
    for name, (meaning, value) in gauges.items():
        lines += [f"# HELP hpcdist_{name} {meaning}", f"# TYPE hpcdist_{name} gauge"]
        lines.append(_sample(f"hpcdist_{name}", labels, value))
    if status.metrics:
        lines += ["# HELP hpcdist_metric latest value of what the job logs or fetches"]
        lines += ["# TYPE hpcdist_metric gauge"]
    for name, (_, value) in sorted(status.metrics.items()):
        lines.append(_sample("hpcdist_metric", {**labels, "name": name}, value))
    return "\n".join(lines) + "\n"


def write(directory: str | Path, status: RankStatus, job: str) -> None:
    """Write this rank's file, completely or not at all."""
    write_whole(path_of(directory, status.pid), text(status, job))


def path_of(directory: str | Path, pid: int) -> Path:
    """Return a process's file: the directory is one of this node, where numbers are its own."""
    return Path(directory, f"hpcdist.{pid}.prom")


def remove_dead(directory: str | Path, sees_processes: bool) -> None:
    """Remove files of this user whose process has ended, or that are old.

    The latter tells also where processes cannot be seen, or the number is another process's now.
    """
    for path, pid in _files(directory):
        with contextlib.suppress(FileNotFoundError):  # its rank has just ended
            status = path.stat()
            dead = sees_processes and not Path(f"/proc/{pid}").exists()
            if status.st_uid == os.getuid() and (dead or time.time() - status.st_mtime > OLD_S):
                path.unlink()


def _files(directory: str | Path) -> Iterator[tuple[Path, int]]:
    for path in Path(directory).glob("hpcdist.*.prom*"):
        if match := _NAME.fullmatch(path.name):
            yield path, int(match[1])


def _role(status: RankStatus) -> str:
    return "server" if status.serves else "trainer"


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(value_of)}"' for label, value_of in labels.items())
    return f"{name}{{{pairs}}} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    words = {float("inf"): "+Inf", float("-inf"): "-Inf"}
    return "NaN" if value != value else words.get(value, repr(value))
