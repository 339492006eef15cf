"""How busy a machine is, and how long this process waits for a core: from Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_IDLE, _IOWAIT, _STEAL, _COUNTED = (
    3,
    4,
    7,
    8,
)  # columns of /proc/stat; guests' are in the first ones


@dataclass(frozen=True)
class Load:
    """What programs did on some cores over a while, in means."""

    cores: int = 0  # that were looked at; 0: nothing was measured
    busy: float = 0.0  # cores that computed, for whatever program
    stolen: float = 0.0  # share of the cores' time that the hypervisor gave to other machines
    own: float = 0.0  # cores that this process had
    delayed: float = 0.0  # share of the time in which the main thread was ready, and had no core


@dataclass(frozen=True)
class Sample:
    """The counters of a moment."""

    wall_s: float
    own_s: float
    delayed_s: float
    by_core: dict[int, tuple[int, ...]]  # ticks, as in /proc/stat

    def until(self, later: Sample, cores: Collection[int] | None = None) -> Load:
        """Return the load between this moment and a later one, on all cores or on some."""
        busy = stolen = total = 0
        counted = [core for core in self.by_core if cores is None or core in cores]
        for core in counted:
            spent = [b - a for a, b in zip(self.by_core[core], later.by_core[core])]
            total += sum(spent)
            stolen += spent[_STEAL]
            busy += sum(spent) - spent[_IDLE] - spent[_IOWAIT] - spent[_STEAL]
        seconds = later.wall_s - self.wall_s
        if total <= 0 or seconds <= 0:
            return Load()
        return Load(
            len(counted),
            busy * len(counted) / total,
            stolen / total,
            (later.own_s - self.own_s) / seconds,
            min(1.0, max(0.0, later.delayed_s - self.delayed_s) / seconds),
        )


def sample(proc: Path = PROC) -> Sample:
    """Read the counters of now; those that this system does not have are 0."""
    by_core = {}
    for line in _text(proc / "stat").splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and len(ticks) >= _COUNTED:
            by_core[int(name[3:])] = tuple(map(int, ticks[:_COUNTED]))
    # Of the main thread: nanoseconds on a core, and ready without one.
    schedule = _text(proc / "self" / "schedstat").split()
    delayed_s = int(schedule[1]) / 1e9 if len(schedule) > 1 else 0.0
    return Sample(time.monotonic(), time.process_time(), delayed_s, by_core)


def programs(proc: Path = PROC) -> dict[tuple[int, str], float]:
    """Return the processor time of every process that this one may see, by number and name."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    spent = {}
    for path in proc.glob("[0-9]*/stat"):
        # pid (name, which may hold anything) state ...; user and system time are 11 words on.
        head, _, rest = _text(path).rpartition(")")
        words = rest.split()
        if len(words) > 12:
            pid, _, name = head.partition(" (")
            spent[int(pid), name] = (int(words[11]) + int(words[12])) * tick_s
    return spent


def average() -> float:
    """Return the load average of the last minute: threads that compute, or are ready to."""
    return os.getloadavg()[0]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:  # not Linux's, or hidden
        return ""
