"""Writing the recording of a rank: at the end, after a failure, or on a signal."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from hpcdist.base.errors import LaunchError, TraceError
from hpcdist.base.trace import chrome, files, load, rates, status
from hpcdist.base.trace.files import RankOfJob, RankRecording
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import MIB, recorder
from hpcdist.base.version import version
from hpcdist.comm import mpi
from hpcdist.comm.clock_offset import ClockOffset, drift_between
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import waiting_cause
from hpcdist.launch import status_writer
from hpcdist.launch.options import Options
from hpcdist.launch.status_writer import Watch
from hpcdist.launch.words import counted, printable

ASKS = signal.SIGRTMIN  # kill -RTMIN PID: write what is recorded, and continue
TRACE_MIB = 64  # the ring under --trace
LAST_S = 10.0  # before a failure that are written
UNASKED = "hpcdist-recording"  # where a signal has a rank write that has no other place

logger = logging.getLogger("hpcdist")


@dataclass
class RankRecorder:
    """Writes the recording of this rank: into ``trace``, or else beside the logs.

    ``watch`` tells of the rank while it runs.
    """

    of: RankOfJob
    trace: str | None
    log_dir: str | None
    watch: Watch | None = None
    _clocks: ClockOffset = field(default_factory=lambda: ClockOffset(0, 0))
    _first: load.Sample = field(default_factory=load.sample)
    _written: bool = False

    @property
    def directory(self) -> str | None:
        """Where recordings are written without being asked for."""
        return self.trace or self.log_dir

    def begin(self, first_of_host: bool = True) -> None:
        """Begin to record, and listen to the signal that asks for what there is.

        Every rank calls it before any one calls `compared`. LaunchError if a file of somebody
        else's is where this rank would write.
        """
        if self.trace is not None:
            self.of = replace(self.of, **asdict(rates.measured()))
            recorder.begin(TRACE_MIB * MIB, always=True)
        else:
            recorder.start()
        if self.directory is not None:
            try:
                files.refuse_others_files(self.directory, self.of.rank)
                if self.of.rank == 0:
                    if self.trace is not None:
                        chrome.refuse_others_file(Path(self.trace, chrome.NAME))
                    files.remove_all(self.directory)
            except (OSError, TraceError) as error:
                raise LaunchError(f"{self.of} cannot record: {error}") from error
        if self.watch is not None:
            self.watch.prepare(first_of_host)
        if threading.current_thread() is threading.main_thread():
            signal.signal(ASKS, self._on_signal)

    def compared(self, clocks: ClockOffset) -> None:
        """Take how far this rank's clock is from rank 0's, and begin to tell of this rank."""
        self._clocks = clocks
        self.of = replace(self.of, offset_ns=clocks.offset_ns, error_ns=clocks.error_ns)
        if self.watch is not None:
            self.watch.begin()

    def script_has_ended(self, well: bool = True) -> None:
        """Mark the recording as complete: this rank's script has ended."""
        if self.watch is not None:
            self.watch.close(status.ENDED if well else status.FAILED)

    def end(self, clocks: ClockOffset | None = None) -> None:
        """Write all that the job has recorded, if a trace is wanted.

        ``clocks``: how far the clocks are from each other now; the drift since is corrected. If it
        cannot be written, a warning says so: the script has ended well.
        """
        if self.trace is None:
            return
        self._written = True
        try:
            self._write(self.trace, "end", clocks=clocks)
        except OSError as error:
            logger.warning("%s cannot write its recording: %s", self.of, error)

    def merge(self) -> None:
        """Make one trace of what all ranks have written. One rank calls it, when all have."""
        if self.trace is None:
            return
        try:
            ranks = files.read_all(self.trace)
            path = chrome.write(Path(self.trace, chrome.NAME), ranks)
        except (OSError, TraceError) as error:
            logger.warning("the trace of the job cannot be written: %s", error)
            return
        lost = sum(r.recording.noted - len(r.recording.events) for r in ranks)
        error_us = max(r.of.error_ns for r in ranks) / 1000
        text = f"trace of {counted(len(ranks), 'rank')} in {path}: open it in ui.perfetto.dev"
        text += f"; clocks agree to {error_us:.3g} us"
        if lost:
            text += f"; the first {counted(lost, 'event')} no longer fitted into memory"
        logger.info("%s", text)

    def fail(self) -> None:
        """Write the last seconds, unless all has been written. Raises nothing: a process ends."""
        self.script_has_ended(well=False)
        if self.directory is None or self._written or not recorder.on:
            return
        self._written = True
        try:
            self._write(self.directory, "failure", LAST_S)
        except OSError as error:
            logger.warning("%s cannot write its last events: %s", self.of, error)

    def said(self, text: str) -> None:
        """Write what this rank says about the end of the job, for the page about it."""
        if self.directory is None:
            return
        try:
            files.write_failure(self.directory, self.of.rank, text)
        except OSError as error:
            logger.warning("%s cannot write the report of the failure: %s", self.of, error)

    def hint(self) -> str:
        """Return the line of a message about a failure that says who reads what `fail` writes."""
        if self.directory is None or not recorder.on:
            return ""
        return f"\n  what each rank did last: python -m hpcdist report {self.directory}"

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        directory = self.directory or UNASKED
        try:
            logger.info("%s has written %s", self.of, self._write(directory, "signal"))
        except OSError as error:
            logger.warning("%s cannot write its events: %s", self.of, error)

    def _write(
        self,
        directory: str,
        cause: str,
        last_s: float | None = None,
        clocks: ClockOffset | None = None,
    ) -> Path:
        now, wait = time.monotonic_ns(), waiting_cause()
        events = recorder.taken()
        if last_s is not None:
            events = events.since(now - int(last_s * 1e9))
        drift = drift_between(self._clocks, clocks or self._clocks)
        for moment in ("begin", "end"):
            events.events[moment] = drift.stretched(events.events[moment])
        of = replace(
            self.of,
            offset_ns=drift.offset_ns,
            error_ns=drift.error_ns,
            drift_ppm=drift.rate * 1e6,
            why=cause,
            doing=str(here),
            waiting="" if wait is None else wait[0].value,
            written_ns=now,
            unix_ns=time.time_ns() - time.monotonic_ns(),
            load=load.average(),
            **asdict(self._first.until(load.sample())),
        )
        return files.write(directory, RankRecording(of, events))


def _of_process(script: str) -> dict[str, Any]:
    """Return script, command and versions for the head of a page about the job."""
    packages = (
        f"hpcdist {version()}",
        f"Python {platform.python_version()}",
        f"numpy {np.__version__}",
    )
    return {
        "script": printable(script),
        "command": printable(shlex.join(["python", *sys.orig_argv[1:]])),
        "versions": ", ".join(filter(None, (*packages, mpi.loaded_library()))),
        "began_ns": time.monotonic_ns(),
    }


def of_rank(options: Options, cluster: Cluster, rank: int, job: str) -> RankRecorder:
    """Return the writer of this process's recording; ``job`` is the job's name."""
    role = cluster.role_of(rank)
    host, pid = socket.gethostname(), os.getpid()
    of = RankOfJob(rank, role.kind, role.index, host, pid, world=cluster.size)
    if options.trace or options.log_dir:
        of = replace(of, **_of_process(options.script))
    watch = status_writer.of_rank(options, of, cluster.size, job)
    return RankRecorder(of, options.trace, options.log_dir, watch)
