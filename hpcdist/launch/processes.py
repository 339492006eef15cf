"""Processes of this host: whether they live, are stopped, or have done anything. Linux's /proc.

Programs that watch ranks import this file: it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_IDLE_SHARE = 0.02  # of a core: threads that wait by polling use less
_WAKES = 2  # of a blocked thread: who asks where it is wakes it


@dataclass(frozen=True)
class Activity:
    """What a process has done since it began: how often its main thread ran, and for how long.

    ``cpu_s`` is that of all its threads and of the processes that it has started.
    """

    runs: int
    cpu_s: float

    def blocked_since(self, earlier: Activity, seconds: float) -> bool:
        """Return whether nothing was done for that long; a loop that sleeps does something."""
        idle = self.cpu_s - earlier.cpu_s < _IDLE_SHARE * seconds
        return idle and self.runs - earlier.runs <= _WAKES


def lives(pid: int) -> bool:
    """Return whether a process of this host exists and is not a zombie."""
    return _state(pid) not in "ZX"


def await_end(pid: int, within_s: float) -> None:
    """Wait until a process of this host has ended, but not for longer."""
    late = time.monotonic() + within_s
    while lives(pid) and time.monotonic() < late:
        time.sleep(within_s / 200)


def is_stopped(pid: int) -> bool:
    """Return whether a process of this host is stopped (SIGSTOP): it handles no signal."""
    return _state(pid) == "T"


def activity(pid: int) -> Activity | None:
    """Return a process's activity so far; None if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    runs = sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line)
    ticks = sum(sum(map(int, _fields(one)[11:15])) for one in _family(pid))
    return Activity(runs, ticks * _TICK_S)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and not yet taken note of as ended."""
    return _children().get(pid, [])


def _children() -> dict[int, list[int]]:
    """Return the children of each process."""
    found: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _fields(int(entry))):
            found.setdefault(int(fields[1]), []).append(int(entry))
    return found


def _family(pid: int) -> Iterator[int]:
    """Return a process and those that it has started, directly or not, but for this process."""
    of_each, found = _children(), [pid]
    for one in found:
        yield one
        found += [child for child in of_each.get(one, []) if child != os.getpid()]


def _state(pid: int) -> str:
    """Return the state as ps(1) prints it; "X", dead, if there is no such process."""
    fields = _fields(pid)
    return fields[0] if fields else "X"


def _fields(pid: int) -> list[str]:
    """Return the fields of a process's stat from its state on; [] if it is gone.

    The name may itself hold parentheses.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
