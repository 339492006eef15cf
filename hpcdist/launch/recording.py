"""When a rank writes what it has recorded: at the end, at a failure, and when a signal asks."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from hpcdist.comm.clock_offset import ClockOffset
from hpcdist.comm.cluster import RankRole
from hpcdist.comm.progress import waiting_cause
from hpcdist.executor.position import here
from hpcdist.launch.words import counted
from hpcdist.trace import chrome, files
from hpcdist.trace.files import RankOfJob, RankRecording
from hpcdist.trace.recorder import MIB, recorder

ASKS = signal.SIGRTMIN  # kill -RTMIN PID: write what is recorded, and go on
TRACE_MIB = 64  # the ring under --trace
LAST_S = 10.0  # before a failure that are written
UNASKED = "hpcdist-recording"  # where a signal has a rank write that has no other place

logger = logging.getLogger("hpcdist")


@dataclass
class RankRecorder:
    """Writes the recording of this rank: into ``trace``, or else beside the logs."""

    of: RankOfJob
    trace: str | None
    log_dir: str | None
    _written: bool = False

    @property
    def directory(self) -> str | None:
        """Where recordings are written without being asked for."""
        return self.trace or self.log_dir

    def begin(self) -> None:
        """Begin to record, and listen to the signal that asks for what there is."""
        if self.trace is not None:
            recorder.begin(TRACE_MIB * MIB, always=True)
        else:
            recorder.start()
        if self.directory is not None and self.of.rank == 0:
            files.remove_all(self.directory)
        if threading.current_thread() is threading.main_thread():
            signal.signal(ASKS, self._asked)

    def compared(self, clocks: ClockOffset) -> None:
        """Take how far this rank's clock is from rank 0's."""
        self.of = replace(self.of, offset_ns=clocks.offset_ns, error_ns=clocks.error_ns)

    def end(self) -> None:
        """Write all that the job has recorded, if a trace is wanted."""
        if self.trace is not None:
            self._write(self.trace, "end")
            self._written = True

    def merge(self) -> None:
        """Make one trace of what all ranks have written. One rank calls it, when all have."""
        if self.trace is None:
            return
        ranks = files.read_all(self.trace)
        path = chrome.write(Path(self.trace, "trace.json"), ranks)
        lost = sum(r.recording.noted - len(r.recording.events) for r in ranks)
        error_us = max(r.of.error_ns for r in ranks) / 1000
        said = f"trace of {counted(len(ranks), 'rank')} in {path}: open it in ui.perfetto.dev"
        said += f"; clocks agree to {error_us:.3g} us"
        if lost:
            said += f"; the first {counted(lost, 'event')} no longer fitted into memory"
        logger.info("%s", said)

    def fail(self) -> None:
        """Write the last seconds, unless all has been written. Raises nothing: a process ends."""
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
            logger.warning("%s cannot write why the job failed: %s", self.of, error)

    def hint(self) -> str:
        """Return the line of a message about a failure that says who reads what `fail` writes."""
        if self.directory is None or not recorder.on:
            return ""
        return f"\n  what each rank did last: python -m hpcdist report {self.directory}"

    def _asked(self, signum: int, frame: FrameType | None) -> None:
        where = self.directory or UNASKED
        try:
            logger.info("%s has written %s", self.of, self._write(where, "signal"))
        except OSError as error:
            logger.warning("%s cannot write its events: %s", self.of, error)

    def _write(self, directory: str, why: str, last_s: float | None = None) -> Path:
        now, cause = time.monotonic_ns(), waiting_cause()
        found = recorder.taken()
        if last_s is not None:
            found = found.since(now - int(last_s * 1e9))
        of = replace(
            self.of,
            why=why,
            doing=str(here),
            waiting="" if cause is None else cause.value,
            written_ns=now,
            unix_ns=time.time_ns() - time.monotonic_ns(),
        )
        return files.write(directory, RankRecording(of, found))


def of_rank(
    rank: int, world: int, role: RankRole, trace: str | None, log_dir: str | None
) -> RankRecorder:
    """Return what writes the recording of this process, one of ``world`` ranks."""
    of = RankOfJob(rank, role.kind, role.index, socket.gethostname(), os.getpid(), world=world)
    return RankRecorder(of, trace, log_dir)
