"""``python -m hpcdist top DIR|JOBID``: the progress of a running job's ranks, in a terminal.

It reads the files written under ``--metrics DIR``, so it runs wherever that directory is visible,
for instance on a login node, and opens no port.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcdist.base.errors import HpcdistError, TraceError
from hpcdist.base.setting import Number
from hpcdist.base.trace import status
from hpcdist.base.trace.status import JobStatus, RankStatus
from hpcdist.launch.command_line import Parser, argument
from hpcdist.launch.console import console_of, on_terminal
from hpcdist.launch.words import counted, printable

DESCRIPTION = """\
Show the progress of a job's ranks: steps, waits, memory, metrics.

  python -m hpcdist top DIR      the job that was started with --metrics DIR
  python -m hpcdist top 4711     a Slurm job, where its directory is seen

It ends when the job does, or with Ctrl-C. If stdout is not a terminal, it prints once."""
LATE_S = 10.0  # without a word from a rank, beyond three times as long as it takes to write
STUCK_S = 30.0  # without a step, in one and the same wait
SLURM_JOB = re.compile(r"\d+([_+]\d+)?")
MOST_METRICS = 4
HEADS = ("rank", "host", "step", "steps/s", "waits", "for", "memory", "now")
AROUND = 9  # lines of a screen that are not ranks
CUT = ("for", "host", "now")  # what is cut where a terminal is narrow, in this order; numbers never
LEAST = 8  # characters of these that are worth showing
BETWEEN = 2  # columns


@dataclass(frozen=True)
class TopView:
    """What is shown: a line about the job, what is wrong, and a row for each rank."""

    title: str
    metrics: str
    troubles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    hidden: int  # ranks without a row
    over: bool  # all ranks have ended


def parser() -> argparse.ArgumentParser:
    """Declare the command line of ``top``."""
    declared = Parser("top", description=DESCRIPTION)
    declared.add_argument("job", metavar="DIR|JOBID", help="the job")
    declared.add_argument("--once", action="store_true", help="print all ranks once and exit")
    declared.add_argument(
        "--every",
        type=argument(Number(0)),
        metavar="S",
        help="seconds between two updates (default: as often as the job writes)",
    )
    return declared


def main(argv: Sequence[str]) -> None:
    """Show the job that the command line names; exits with 1 if there is none to show."""
    arguments = parser().parse_args(argv)
    try:
        directory = find(arguments.job)
        if arguments.once or not on_terminal():
            _print(_look(directory, None))
        else:
            _follow(directory, arguments.every)
    except HpcdistError as error:
        print(f"hpcdist: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


# -- which directory -------------------------------------------------------------------------------
def find(job: str) -> Path:
    """Return the directory that a job writes into; TraceError if there is none."""
    path = Path(job)
    if path.is_dir() or not SLURM_JOB.fullmatch(job):
        status.read_job(path)
        return path
    number, folder = _from_slurm(job)
    looked = [Path(), *([] if folder is None else [folder])]
    for parent in looked:
        for file in sorted(parent.glob(f"*/{status.JOB}")):
            with contextlib.suppress(TraceError):  # other programs have files of this name, too
                if status.read_job(file.parent).job == number:
                    return file.parent
    places = " and ".join(sorted({str(place.absolute()) for place in looked}))
    raise TraceError(f"job {job} has no directory in {places}: give the directory of its --metrics")


def _from_slurm(job: str) -> tuple[str, Path | None]:
    """Return a job's own number, and where it was submitted if Slurm is here and knows it.

    The tasks of an array, such as 4711_3, have numbers of their own.
    """
    command = ["scontrol", "show", "job", "-o", job]
    plain = job.partition("+")[0]
    try:
        scontrol = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return plain, None
    number = re.search(r"\bJobId=(\d+)", scontrol.stdout)
    folder = re.search(r"\bWorkDir=(\S+)", scontrol.stdout)
    return number[1] if number else plain, Path(folder[1]) if folder else None


# -- what is shown ---------------------------------------------------------------------------------
def view(job: JobStatus, ranks: Sequence[RankStatus], now_s: float, most: int | None) -> TopView:
    """Return the view at a time of the wall clock, ``most`` rows at most. Pure."""
    late_s = 3 * job.every_s + LATE_S
    late = [r.rank for r in ranks if r.state == status.RUNS and now_s - r.unix_s > late_s]
    running = [r for r in ranks if r.state == status.RUNS]
    over = len(ranks) == job.ranks and not running
    troubles = []
    if late and len(late) == len(running):
        ago = now_s - max(r.unix_s for r in running)
        troubles.append(
            f"nothing has been written for {_seconds(ago)}: the job was killed, or the clock here "
            "differs"
        )
    else:
        troubles += [
            f"{r}: no sign of life for {_seconds(now_s - r.unix_s)}"
            for r in ranks
            if r.rank in late
        ]
    troubles += [f"{r} failed or was stopped: {r.doing}" for r in ranks if r.state == status.FAILED]
    troubles += _stuck([r for r in running if r.rank not in late])
    missing = sorted(set(range(job.ranks)) - {r.rank for r in ranks})
    if missing:
        named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        troubles.append(f"{counted(len(missing), 'rank')} of {job.ranks} not heard of yet: {named}")
    # The troubled ones first, then those that others may be waiting for.
    shown = sorted(
        ranks, key=lambda r: (r.rank not in late and r.state != status.FAILED, r.waited, r.rank)
    )
    shown_ranks = {r.rank for r in (shown if most is None else shown[: max(most, 1)])}
    return TopView(
        title=_title(job, ranks, now_s, over),
        metrics=_metrics(ranks),
        troubles=tuple(troubles),
        rows=tuple(_row(r, r.rank in late, now_s) for r in ranks if r.rank in shown_ranks),
        hidden=len(ranks) - len(shown_ranks),
        over=over,
    )


def _stuck(ranks: Sequence[RankStatus]) -> list[str]:
    """Return the words for a job in which all that waits has done so for long: who does not?"""
    waiting = [r for r in ranks if r.waits_for and r.waits_s > STUCK_S and r.idle_s > STUCK_S]
    if not waiting:
        return []
    longest = max(waiting, key=lambda r: r.waits_s)
    text = f"{longest} has waited for {longest.waits_for} for {_seconds(longest.waits_s)}"
    idle = [r for r in ranks if not r.waits_for and r.idle_s > STUCK_S]
    if idle:
        text += "; not waiting: " + ", ".join(f"{r}: {r.doing}" for r in idle[:4])
    return [text]


def _title(job: JobStatus, ranks: Sequence[RankStatus], now_s: float, over: bool) -> str:
    roles = Counter("server" if r.serves else "trainer" for r in ranks)
    trainers = [r for r in ranks if not r.serves]
    step = max((r.step for r in trainers), default=0)
    until = max(r.unix_s for r in ranks) if over else now_s
    parts = [
        f"{job.script}, job {job.job}: {_seconds(max(0.0, until - job.unix_s))}",
        ", ".join(counted(count, role) for role, count in sorted(roles.items(), reverse=True)),
        f"step {step}",
        "ended" if over else f"{max((r.steps_per_s for r in trainers), default=0.0):.4g} steps/s",
    ]
    return " · ".join(filter(None, parts))


def _metrics(ranks: Sequence[RankStatus]) -> str:
    """Return the latest metrics of the first rank that has some."""
    for rank in ranks:
        if rank.metrics:
            newest = sorted(rank.metrics.items(), key=lambda item: -item[1][0])[:MOST_METRICS]
            values = ", ".join(f"{name} {value:.5g}" for name, (_, value) in sorted(newest))
            return f"{values} (step {newest[0][1][0]}, rank {rank.rank})"
    return ""


def _row(rank: RankStatus, late: bool, now_s: float) -> tuple[str, ...]:
    now = rank.state if rank.state != status.RUNS else rank.doing
    if rank.state == status.RUNS and rank.waits_for:
        now = f"waiting for {rank.waits_for}, {_seconds(rank.waits_s)}"
    if late:
        now = f"silent for {_seconds(now_s - rank.unix_s)}"
    return (
        f"{rank.rank} {'server' if rank.serves else 'trainer'} {rank.index}",
        rank.host,
        str(rank.step),
        f"{rank.steps_per_s:.4g}" if rank.steps_per_s else "",
        f"{rank.waited:.0%}",
        rank.cause,
        f"{rank.rss_mib:,.0f} MiB",
        now,
    )


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


# -- in the terminal -------------------------------------------------------------------------------
def _look(directory: Path, most: int | None) -> TopView:
    job, ranks = status.read_job(directory), status.read_all(directory)
    return view(job, ranks, time.time(), most)


def _follow(directory: Path, every_s: float | None) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    period_s = every_s or min(status.read_job(directory).every_s, 10.0)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            frame = _look(directory, console.height - AROUND)
            live.update(drawn(frame, console.width), refresh=True)
            if frame.over:
                return
            time.sleep(period_s)


def _print(view: TopView) -> None:
    console = console_of(160)
    console.print(drawn(view, console.width))


def fitted(rows: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """Return how wide columns are in a terminal of ``width``, 0 for those that are left out. Pure.

    ``rows``: the heads too.
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    for least in (LEAST, 0):
        for head in CUT:
            over = sum(w + BETWEEN for w in widths if w) - BETWEEN - width
            i = HEADS.index(head)
            if over > 0 and least:
                widths[i] = min(widths[i], max(least, widths[i] - over))
            elif over > 0 and head != "now":
                widths[i] = 0
    return widths


def drawn(view: TopView, width: int) -> Any:
    """Return the view as rich draws it in ``width`` columns."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def line(text: str, style: str = "") -> Text:
        return Text(printable(text), style)

    table = Table(box=None, padding=(0, BETWEEN, 0, 0), pad_edge=False)
    widths = fitted([HEADS, *view.rows], width)
    for head, least in zip(HEADS, widths):
        if least:
            right = head in ("step", "steps/s", "waits", "memory")
            justify: Any = "right" if right else "left"
            table.add_column(head, justify=justify, width=least, no_wrap=True, overflow="ellipsis")
    for row in view.rows:
        table.add_row(*(line(text) for text, least in zip(row, widths) if least))
    lines = [line(view.title, "bold")]
    if view.metrics:
        lines.append(line(view.metrics))
    lines += [line(trouble, "bold red") for trouble in view.troubles]
    below = [line(f"and {counted(view.hidden, 'rank')} more")] if view.hidden else []
    return Group(*lines, table, *below)
