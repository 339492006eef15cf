"""Fluid's module ``profiler``: a table of the operators that have run, and a trace."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns

from hpcdist.base import settings
from hpcdist.base.errors import GraphError, TraceError
from hpcdist.base.trace import chrome
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.files import RankOfJob, RankRecording
from hpcdist.base.trace.operator_times import SORTED_BY, operator_times, table
from hpcdist.base.trace.recorder import MIB, recorder
from hpcdist.base.warned import warn

__all__ = ["profiler", "reset_profiler", "start_profiler", "stop_profiler"]

_PLACES = {"CPU": "CPU", "GPU": "CUDA", "All": "All"}  # what the report calls a state
_OPTIONS = ("Default", "OpDetail", "AllOpDetail")
_MIB = 64  # for a recorder that is turned off


@dataclass
class _Profile:
    """What is being profiled, since when, and how the recorder was before."""

    state: str
    begin_ns: int
    recorded: bool
    always: bool


_running: list[_Profile] = []


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Record every operator from now on; nothing changes if that is so already.

    ``state``: "CPU", "GPU" or "All"; ``tracer_option`` is checked, and changes nothing. GraphError
    (a ValueError) for other words.
    """
    if _running:
        return
    _expect("state", state, tuple(_PLACES))
    _expect("tracer_option", tracer_option, _OPTIONS)
    recorder.start()
    _running.append(_Profile(state, monotonic_ns(), recorder.on, recorder.always))
    if not recorder.on:
        recorder.begin(_MIB * MIB)
    recorder.always = True


def stop_profiler(sorted_key: str | None = None, profile_path: str = "/tmp/profile") -> None:
    """Print a table of the operators since the start, and write a trace to ``profile_path``.

    ``sorted_key``: None (in the order of their first ends), "calls", "total", "max", "min" or
    "ave", largest first. The trace is in Chrome's format, for ui.perfetto.dev; a rank other than 0
    of a job adds its number to the path. Does nothing if nothing was started.
    """
    if not _running:
        return
    _expect("sorted_key", sorted_key, (None, *SORTED_BY))
    profile = _running.pop()
    all_of_it = recorder.taken()
    recorder.always = profile.always
    if not profile.recorded:
        recorder.begin(0)
    events = all_of_it.since(profile.begin_ns)
    if len(events.events) == len(all_of_it.events) < all_of_it.noted:
        warn(
            "the profiler's first events no longer fitted into memory: profile fewer steps, or "
            f"raise {settings.RECORD_MIB.name}"
        )
    runs = events.events[
        (events.events["kind"] == EventKind.STEP) | (events.events["kind"] == EventKind.RUN)
    ]
    total = int((runs["end"] - runs["begin"]).sum())
    place = _PLACES[profile.state]
    print(table(operator_times(events), place, sorted_key or "default", total), flush=True)
    of = _this_process()
    path = Path(f"{profile_path}.{of.rank}" if of.rank else profile_path)
    try:
        chrome.write(path, [RankRecording(of, events)])
    except OSError as error:
        raise TraceError(f"the profile cannot be written to {path}: {error.strerror}") from error


def reset_profiler() -> None:
    """Forget what has been profiled so far."""
    for profile in _running:
        profile.begin_ns = monotonic_ns()


@contextmanager
def profiler(
    state: str,
    sorted_key: str | None = None,
    profile_path: str = "/tmp/profile",
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Profile what is inside the ``with``; see `start_profiler` and `stop_profiler`."""
    start_profiler(state, tracer_option)
    yield
    stop_profiler(sorted_key, profile_path)


def _this_process() -> RankOfJob:
    role, index = settings.PADDLE_ROLE.read(), settings.TRAINER_ID.read()
    if role == "PSERVER":
        servers = settings.PSERVER_ENDPOINTS.read().split(",")
        index = servers.index(settings.CURRENT_ENDPOINT.read())
    return RankOfJob(settings.RANK.read() or 0, role, index, socket.gethostname(), os.getpid())


def _expect(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise GraphError(f"profiler: {name} must be one of {choices}, got {value!r}")
