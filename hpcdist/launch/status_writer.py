"""A thread of each rank that writes its progress and metrics every few seconds."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence

from hpcdist.base import settings
from hpcdist.base.errors import LaunchError, MetricError, TraceError
from hpcdist.base.extras import install_command
from hpcdist.base.trace import prometheus, status, tensorboard
from hpcdist.base.trace.files import RankOfJob
from hpcdist.base.trace.metric_files import CsvLines, JsonLines, MetricWriter
from hpcdist.base.trace.metric_log import metric_log
from hpcdist.base.trace.position import here
from hpcdist.base.trace.recorder import recorder, resident
from hpcdist.base.trace.status import JobStatus, RankStatus, Waits
from hpcdist.comm.process_manager import slurm_job
from hpcdist.comm.progress import waiting_cause
from hpcdist.launch import logs
from hpcdist.launch.doctor.stale_files import sees_all
from hpcdist.launch.options import Options

CLOSING_S = 5.0  # how long the end of a rank may wait for a file system

logger = logging.getLogger("hpcdist")


def problem_with(options: Options) -> str:
    """Return why what is asked for cannot be written here, or an empty string."""
    if options.metrics_also and options.metrics is None:
        return f"--metrics-also {','.join(options.metrics_also)}: say where, with --metrics DIR"
    if "tensorboard" in options.metrics_also and not tensorboard.is_installed():
        return (
            "--metrics-also tensorboard: tensorboardX is not installed: "
            f"{install_command('tensorboard')}"
        )
    for purpose, directory in (
        ("directory of metrics", options.metrics),
        ("directory of Prometheus's files", options.prometheus),
    ):
        if directory is not None and (problem := logs.problem_with(purpose, directory)):
            return problem
    return ""


def of_rank(options: Options, of: RankOfJob, ranks: int, job: str) -> Watch | None:
    """Return the writer of this rank's status, if asked for; ``job`` names a job outside Slurm.

    A job that the script starts is another one: it does not write into this one's directories.
    """
    for setting in (settings.METRICS, settings.METRICS_ALSO, settings.PROMETHEUS):
        setting.forget()
    if options.metrics is None and options.prometheus is None:
        return None
    every_s = status.pace(settings.METRICS_EVERY.read(), ranks)
    by_slurm, _ = slurm_job()
    facts = JobStatus(str(by_slurm or job), options.script, ranks, time.time(), every_s)
    return Watch(of, facts, options.metrics, options.metrics_also, options.prometheus)


class Watch:
    """Writes the status and the metrics of this rank until it is closed."""

    def __init__(
        self,
        of: RankOfJob,
        facts: JobStatus,
        directory: str | None,
        also: Sequence[str] = (),
        scraped: str | None = None,
    ) -> None:
        """Write into ``directory``, metrics in the forms ``also`` too, and into ``scraped``."""
        self._of, self._facts = of, facts
        self._directory, self._also, self._scraped = directory, also, scraped
        self._writers: list[MetricWriter] = []
        self._metrics: dict[str, tuple[int, float]] = {}
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._closed = False
        self._complaints: set[str | None] = set()
        self._thread = threading.Thread(target=self._run, name="hpcdist-watch", daemon=True)
        self._script = threading.main_thread().ident or 0
        self._last_ns = self._moved_ns = time.monotonic_ns()
        self._step = self._noted = 0

    def prepare(self, first_of_host: bool) -> None:
        """Clear away what earlier jobs have left. Before any rank of the job begins.

        LaunchError if that cannot be.
        """
        try:
            if self._directory is not None and self._of.rank == 0:
                status.begin_job(self._directory, self._facts)
            if self._scraped is not None and first_of_host:
                prometheus.remove_dead(self._scraped, sees_all())
        except (OSError, TraceError) as error:
            raise LaunchError(f"{self._of} cannot write its first status: {error}") from error

    def begin(self) -> None:
        """Open the files, and write from now on; LaunchError if that cannot be."""
        trains_first = self._of.role != "PSERVER" and self._of.index == 0
        try:
            if self._directory is not None:
                lines = JsonLines(self._directory, self._of.rank)
                self._writers.append(lines)
                if "csv" in self._also:
                    self._writers.append(CsvLines(self._directory, self._of.rank, lines.start))
                if "tensorboard" in self._also:
                    self._writers.append(
                        tensorboard.EventFile(self._directory, self._of.rank, lines.start)
                    )
        except (OSError, MetricError) as error:
            raise LaunchError(f"{self._of} cannot write its metrics: {error}") from error
        metric_log.begin(fetches=trains_first)
        self._thread.start()

    def close(self, state: str) -> None:
        """Write the last of all, and say how the rank has ended. Raises nothing; once is enough."""
        if not self._writing.acquire(timeout=CLOSING_S):
            return  # the file system does not answer
        try:
            if not self._closed and os.getpid() == self._of.pid:
                self._write(state)
                self._closed = True
                metric_log.end()
                for writer in self._writers:
                    writer.close()
                if self._scraped is not None:
                    prometheus.path_of(self._scraped, self._of.pid).unlink(missing_ok=True)
        except OSError as error:
            self._complain(error)
        finally:
            self._writing.release()
        self._stop.set()

    def write(self) -> None:
        """Write what is new; the thread calls it."""
        with self._writing:
            if not self._closed:
                self._write(status.RUNS)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.write()
            self._stop.wait(self._facts.every_s)

    def _write(self, state: str) -> None:
        """Write everything; a file that cannot be written keeps no other from it."""
        noted = metric_log.taken()
        for one in noted:
            self._metrics |= {name: (one.step, value) for name, value in one.values.items()}
        now = self._status(state)
        for writer in self._writers:
            try:
                writer.write(noted)
            except OSError as error:
                self._complain(error)
        try:
            if self._directory is not None:
                status.write(self._directory, now)
            if self._scraped is not None:
                prometheus.write(self._scraped, now, self._facts.job)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if error.strerror not in self._complaints:
            self._complaints.add(error.strerror)
            logger.warning(
                "%s cannot write its status or metrics: %s; it keeps trying", self._of, error
            )

    def _status(self, state: str) -> RankStatus:
        now_ns = time.monotonic_ns()
        latest = recorder.latest(self._noted)
        lost = latest.noted - self._noted > len(latest.events)
        begin_ns = int(latest.events["end"][0]) if lost else self._last_ns
        # Of a script of torch's those that it names, or else those of its optimizer.
        step = here.step or metric_log.step or status.last_step(latest) or self._step
        steps_since = step - self._step if self._step else 0  # it may have been restored before
        if not lost and (steps := status.steps_in(latest)):
            steps_since = steps
        if step != self._step:
            self._moved_ns = now_ns
        waits = status.waits_within(latest, self._script, begin_ns, now_ns)
        waiting = waiting_cause()
        if waiting is not None and waiting[1] < self._last_ns:  # it is recorded when it ends
            waits = Waits(1.0, waiting[0].value)
        rank_status = RankStatus(
            rank=self._of.rank,
            role=self._of.role,
            index=self._of.index,
            host=self._of.host,
            pid=self._of.pid,
            unix_s=time.time(),
            state=state,
            step=step,
            steps_per_s=max(0, steps_since) * 1e9 / max(now_ns - self._last_ns, 1),
            waited=waits.share,
            cause=waits.cause,
            waits_for=waiting[0].value if waiting is not None else "",
            waits_s=(now_ns - waiting[1]) / 1e9 if waiting is not None else 0.0,
            idle_s=(now_ns - self._moved_ns) / 1e9,
            doing=str(here),
            rss_mib=resident() / 2**20,
            metrics=dict(self._metrics),
        )
        self._last_ns, self._step, self._noted = now_ns, step, latest.noted
        return rank_status
