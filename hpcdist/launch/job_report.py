"""``python -m hpcdist report DIR -o job.html``: one page about a job, from its recordings."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.errors import MetricError, TraceError
from hpcdist.base.extras import install_command
from hpcdist.base.trace import (
    critical_path,
    failure,
    files,
    metric_files,
    programs,
    status,
    summary,
)
from hpcdist.base.trace.advice import Advice, advise
from hpcdist.base.trace.events import Cause, EventKind
from hpcdist.base.trace.files import RankOfJob, RankRecording
from hpcdist.base.trace.metric_files import Points
from hpcdist.base.trace.recorder import Recording
from hpcdist.base.trace.status import JobStatus
from hpcdist.base.trace.summary import RankSummary
from hpcdist.launch import axes, graphs, plots, report_header
from hpcdist.launch.command_line import Parser
from hpcdist.launch.operator_table import mean_rates, operators_of
from hpcdist.launch.words import counted, printable

DESCRIPTION = """\
Write one HTML page about a job.

  mpirun -n 4 python -m hpcdist --trace run --metrics run train.py
  python -m hpcdist report run -o job.html

It is made from the files of its ranks: recordings, which --trace DIR writes, or
a job that failed, beside its logs; and the metrics of --metrics DIR. The page needs no network.
This command needs jinja2 (python -m pip install jinja2)."""
MOST_RANKS = 8  # whose curves of one metric are drawn
MOST_NAMES, OTHERS = 7, "others"  # parameters with a colour of their own
MOST_PIECES = 20  # of parameters, that are listed for a server
WORDS = {
    programs.TRAINS: "the Program that trains",
    programs.SERVES: "the Program that serves",
    programs.STARTS: "the startup Program",
    programs.RUNS: "another Program",
}
TEMPLATE = Path(__file__).with_name("job_report.html")
SCRIPT = Path(__file__).with_name("job_report.js")


def parser() -> argparse.ArgumentParser:
    """Declare the command line of ``report``."""
    declared = Parser("report", description=DESCRIPTION)
    declared.add_argument(
        "directory", type=Path, metavar="DIR", help="what --trace, --log-dir or --metrics wrote"
    )
    declared.add_argument(
        "--metrics", type=Path, metavar="DIR", help="directory of the job's metrics (default: DIR)"
    )
    declared.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("job.html"),
        metavar="FILE",
        help="the page (default: job.html)",
    )
    return declared


def main(argv: Sequence[str]) -> None:
    """Write the page; exits with 1 if there is nothing to report on."""
    arguments = parser().parse_args(argv)
    try:
        metrics = metric_files.read_all(arguments.metrics or arguments.directory)
        # Metrics alone are a page, too.
        recordings = files.read_all(arguments.directory, required=not metrics)
        ranks = [summary.summarize(rank) for rank in recordings]
        advice, failures = advise(recordings, ranks), files.failures(arguments.directory)
        job = _job(arguments.metrics or arguments.directory)
        text = page(recordings, ranks, advice, str(arguments.directory), failures, metrics, job)
        arguments.output.write_text(text, encoding="utf-8")
    except (TraceError, MetricError, OSError) as error:
        print(f"hpcdist: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    lines = [
        counted(len(recordings), "rank"),
        *([counted(len(metrics), "metric")] if metrics else []),
    ]
    print(f"{arguments.output}: {', '.join(lines)}")
    for line in [
        *_of_failure(recordings, failures),
        *(f"{item.cause}: {item.text}" for item in advice),
    ]:
        print(f"  {printable(line)}")


def page(
    recordings: Sequence[RankRecording],
    ranks: Sequence[RankSummary],
    advice: Sequence[Advice],
    title: str,
    failures: Mapping[int, str],
    metrics: Mapping[str, Mapping[int, Points]] | None = None,
    job: JobStatus | None = None,
) -> str:
    """Return the page; TraceError if jinja2 is not installed.

    ``title``: of the page, where no file tells the script. ``failures``: the ranks' messages about
    the end of the job. ``metrics``: the curves that the job has written, by name and rank; without
    them the page shows the numbers that trainer 0 fetched. ``job``: what `top` knows of it.
    """
    try:
        import jinja2
    except ImportError as error:
        raise TraceError(f"the report needs jinja2: {install_command('report')}") from error
    number = critical_path.chosen_step(recordings)
    step = None if number is None else critical_path.times_of(recordings, number)
    path = [] if step is None else critical_path.critical_path(step)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=report_header.heading([rank.of for rank in ranks], job, title),
        facts=report_header.facts([rank.of for rank in ranks], job),
        ranks=ranks,
        said=list(failures.values()),
        silent=_silent(recordings),
        failed=[(rank.of, failure.activity(rank)) for rank in failure.failed(recordings)],
        memory=_memory(recordings),
        most_ranks=MOST_RANKS,
        operators=operators_of(recordings),
        rates=mean_rates([rank.of for rank in recordings if rank.of.role != "PSERVER"]),
        waits=plots.bars(
            [str(rank.of) for rank in ranks],
            [{cause: rank.share(s) for cause, s in rank.waits.items()} for rank in ranks],
            [cause.value for cause in Cause],
        ),
        traffic=_matrix(recordings),
        ways=summary.ways(recordings),
        step=step,
        time_line="" if step is None else plots.time_line(step, path, [r.of for r in ranks]),
        path=[] if step is None else _along(step, path, ranks),
        losses=_curves(metrics) if metrics else _losses(recordings),
        throughput=_throughput(recordings),
        advice=advice,
        lost=sum(rank.recording.noted - len(rank.recording.events) for rank in recordings),
        placement=(placed := _placement(recordings)),
        shares=_placement_bars(placed),
        programs=_programs(recordings),
        roles=graphs.COLOURS,
        script=SCRIPT.read_text(encoding="utf-8"),
        clocks_us=max((rank.of.error_ns for rank in recordings), default=0) / 1000,
    )


def _job(directory: Path) -> JobStatus | None:
    """Return which job writes its progress there, if one does."""
    try:
        return status.read_job(directory)
    except TraceError:
        return None


def _of_failure(recordings: Sequence[RankRecording], failures: Mapping[int, str]) -> list[str]:
    """Return lines about who stopped a job that failed."""
    lines = [line for text in failures.values() for line in text.splitlines()]
    if recordings and (silent := _silent(recordings)):
        lines.append(silent)
    for i, rank in enumerate(failure.failed(recordings)):
        lines.append(f"{'then' if i else 'first'} {rank.of}: {failure.activity(rank)}")
    return lines


def _silent(recordings: Sequence[RankRecording]) -> str:
    """Return a line about the ranks that have written nothing, or an empty string."""
    ranks = failure.silent(recordings)
    if not ranks:
        return ""
    return (
        f"nothing was written by {counted(len(ranks), 'rank')}: {', '.join(map(str, ranks))}. Such "
        "a rank was killed, is stopped, or was ended before it could write"
    )


def _matrix(recordings: Sequence[RankRecording]) -> dict[str, Any]:
    """Return the ranks, and for each a row of (MiB, share of the most); none without messages."""
    sent = summary.traffic(recordings)
    if not sent:
        return {}
    ranks, most = [str(rank.of.rank) for rank in recordings], max(sent.values()) or 1.0
    rows = [
        (
            str(a.of),
            [
                (sent.get(key := (a.of.rank, b.of.rank), 0.0) / 2**20, sent.get(key, 0.0) / most)
                for b in recordings
            ],
        )
        for a in recordings
    ]
    return {"ranks": ranks, "rows": rows}


def _placement(recordings: Sequence[RankRecording]) -> list[dict[str, Any]]:
    """Return each server's share of the parameters, as its Program declares them."""
    served = [
        (rank.of, program.parameters)
        for rank in recordings
        for program in rank.recording.programs
        if program.kind == programs.SERVES
    ]
    total = sum(one.nbytes for _, parameters in served for one in parameters)
    return [
        {
            "server": str(of),
            "count": len(parameters),
            "mib": (nbytes := sum(one.nbytes for one in parameters)) / 2**20,
            "share": nbytes / (total or 1),
            "parameters": parameters,
            "largest": sorted(parameters, key=lambda one: -one.nbytes)[:MOST_PIECES],
        }
        for of, parameters in served
    ]


def _placement_bars(placed: Sequence[dict[str, Any]]) -> str:
    """Return a bar for each server: the largest of all pieces, and the others together."""
    total = sum(one.nbytes for row in placed for one in row["parameters"])
    if not total:
        return ""
    sizes: Counter[str] = Counter()
    for row in placed:
        sizes.update({one.name: one.nbytes for one in row["parameters"]})
    names = [name for name, _ in sizes.most_common(MOST_NAMES)]
    shares = []
    for row in placed:
        parts: Counter[str] = Counter()
        for one in row["parameters"]:
            parts[one.name if one.name in names else OTHERS] += one.nbytes
        shares.append({name: nbytes / total for name, nbytes in parts.items()})
    return plots.bars([row["server"] for row in placed], shares, [*names, OTHERS])


def _programs(recordings: Sequence[RankRecording]) -> list[dict[str, Any]]:
    """Return the Programs by role, each once however many ranks have run it."""
    alike: dict[Any, dict[str, Any]] = {}
    for rank in recordings:
        role = "server" if rank.of.role == "PSERVER" else "trainer"
        # Two Programs of one rank with the same operators are two.
        seen: Counter[tuple[object, ...]] = Counter()
        for program in rank.recording.programs:
            kind = role, program.kind, tuple(one.type for one in program.operators)
            key = *kind, seen[kind]
            seen[kind] += 1
            alike.setdefault(key, {"role": role, "program": program, "of": []})
            alike[key]["of"].append(rank.of)
    rows = [
        {
            "title": f"{counted(len(same['of']), same['role'])}: {WORDS[same['program'].kind]}, "
            f"{counted(len(same['program'].operators), 'operator')}",
            "as_on": str(same["of"][0]),
            "several": len(same["of"]) > 1,
            "main": same["program"].kind in (programs.TRAINS, programs.SERVES),
            "left_out": same["program"].left_out
            + max(0, len(same["program"].operators) - graphs.MOST_DRAWN),
            "graph": graphs.graph(same["program"]),
        }
        for same in alike.values()
    ]
    return sorted(rows, key=lambda one: not one["main"])


def _along(
    step: critical_path.StepTimes,
    path: Iterable[critical_path.PathSegment],
    ranks: Sequence[RankSummary],
) -> list[str]:
    """Return how long the path is on each rank, in words, and how much of the step is on none."""
    spent: Counter[int] = Counter()
    for segment in path:
        spent[segment.rank] += segment.end - segment.begin
    total = max(step.end - step.begin, 1)
    names = {rank.of.rank: str(rank.of) for rank in ranks}
    shares = [(names[rank], ns) for rank, ns in spent.most_common()]
    shares.append(("from rank to rank", total - sum(spent.values())))
    return [f"{name}: {ns / 1e6:.3f} ms ({ns / total:.0%})" for name, ns in shares]


def _curves(metrics: Mapping[str, Mapping[int, Points]]) -> list[tuple[str, str]]:
    """Return a picture of every metric, with a line for each rank that has logged it."""
    pictures = []
    for name, by_rank in metrics.items():
        lines = {f"rank {rank}": by_rank[rank] for rank in list(by_rank)[:MOST_RANKS]}
        pictures.append((name, axes.curves(lines, "step", name)))
    return pictures


def _losses(recordings: Sequence[RankRecording]) -> list[tuple[str, str]]:
    """Return a curve of every number that trainer 0 has fetched."""
    for rank in recordings:
        if rank.of.role != "PSERVER":
            return [
                (name, axes.curve(*_values(rank.recording, name))) for name in _lines_of_rank(rank)
            ]
    return []


def _lines_of_rank(rank: RankRecording) -> list[str]:
    events = rank.recording.events
    numbers = np.unique(events[events["kind"] == EventKind.VALUE]["name"])
    return [rank.recording.names[number] for number in numbers]


def _values(recording: Recording, name: str) -> tuple[list[float], list[float], str, str]:
    events = recording.events
    samples = events[
        (events["kind"] == EventKind.VALUE) & (events["name"] == recording.names.index(name))
    ]
    return samples["step"].tolist(), samples["value"].tolist(), "step", name


def _memory(recordings: Sequence[RankRecording]) -> str:
    """Return curves of the memory of every rank, the first of many ones."""
    lines = {}
    starts = [
        of.offset_ns + int(samples["end"][0])
        for of, samples in map(_looks, recordings)
        if len(samples)
    ]
    for of, samples in map(_looks, recordings[:MOST_RANKS]):
        times = (samples["end"] + of.offset_ns - min(starts, default=0)) / 1e9
        lines[f"rank {of.rank}"] = list(zip(times.tolist(), (samples["value"] / 2**20).tolist()))
    return axes.curves(lines, "seconds", "MiB", from_zero=True)


def _looks(rank: RankRecording) -> tuple[RankOfJob, Any]:
    events = rank.recording.events
    return rank.of, events[events["kind"] == EventKind.MEMORY]


def _throughput(recordings: Sequence[RankRecording]) -> str:
    """Return a curve of the steps per second of the first trainer."""
    for rank in recordings:
        events = rank.recording.events
        ends = np.sort(events[events["kind"] == EventKind.STEP]["end"])
        if rank.of.role != "PSERVER" and len(ends) > 2:
            edges = np.linspace(ends[0], ends[-1], min(60, len(ends)))
            counts, _ = np.histogram(ends, edges)
            widths = np.diff(edges) / 1e9
            times = (edges[1:] - edges[0]) / 1e9
            points = list(zip(times.tolist(), (counts / widths).tolist()))
            return axes.curves({"": points}, "seconds", "steps/s", from_zero=True)
    return ""
