"""What the benchmarks share: contenders run in turn, medians, a table, one JSON line."""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
FROM_CHECKOUT = {"PYTHONPATH": str(HERE.parent)}  # hpcdist need not be installed
# One thread per process, alike for all: in a job the ranks are the parallelism.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)

CONSOLE = Console(stderr=True)
BARE = "bare mpi4py"  # the contender that does the same by hand: a measure of what is possible
LIMIT_S = 300.0  # of one measurement


class Failed(Exception):
    """A contender that did not give a result; the text says why."""


@dataclass(frozen=True)
class Contender:
    """One column: ``run()`` returns the JSON object of one measurement, or raises Failed."""

    name: str
    run: Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Target:
    """A ratio to reach: ``name`` makes ``least`` times the steps/s of ``over``, or more."""

    name: str
    over: str
    least: float


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of a child: this process's, one thread, no role of another job."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PADDLE_", "HPCDIST_PSERVERS", "HPCDIST_ROLE_MAP"))
        and name not in ("TRAINING_ROLE", "http_proxy", "https_proxy", "PYTHONPATH")
    }
    return kept | ONE_THREAD | dict(extra or {})


def json_line(text: str) -> dict[str, Any]:
    """Return the last line of ``text`` that is a JSON object with steps_per_s."""
    for line in reversed(text.splitlines()):
        start = line.find('{"steps_per_s"')
        if start >= 0:
            found: dict[str, Any] = json.loads(line[start:])
            return found
    raise Failed("no result among its output:\n" + text[-2000:])


def run_child(
    command: Sequence[str | Path], extra: Mapping[str, str] | None, limit_s: float
) -> dict[str, Any]:
    """Run a command to its end and return the JSON line that it prints."""
    return json_line(run_text(command, extra, limit_s))


def run_text(
    command: Sequence[str | Path],
    extra: Mapping[str, str] | None,
    limit_s: float,
    statuses: Collection[int] = (0,),
    folder: Path | None = None,
) -> str:
    """Run a command to its end and return what it prints; Failed at another exit status."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            env=environment(extra),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(str(error)) from error
    if done.returncode not in statuses:
        raise Failed(f"exit status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def json_object(text: str) -> dict[str, Any]:
    """Return the last line of ``text`` that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise Failed("no result among its output:\n" + text[-2000:])


def arguments(doc: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser that shows a script's docstring, with ``--rounds``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def command(name: str, words: Sequence[str | Path], extra: Mapping[str, str] | None) -> Contender:
    """Return the contender that runs a command, which prints its result."""
    return Contender(name, functools.partial(run_child, words, extra, LIMIT_S))


def race(
    case: str,
    title: str,
    contenders: Sequence[Contender],
    rounds: int,
    targets: Sequence[Target],
    tolerance: float | None = None,
) -> dict[str, Any]:
    """Run contenders in turn, compare their losses if a tolerance is given, and report."""
    results = interleave(title, contenders, rounds)
    if tolerance is not None:
        check_losses(results, tolerance)
    return report(case, title, results, targets)


def interleave(
    title: str, contenders: Sequence[Contender], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Run all contenders in turn, ``rounds`` times; one that fails is left out from then on."""
    results: dict[str, list[dict[str, Any]]] = {c.name: [] for c in contenders}
    failed: set[str] = set()
    for index in range(rounds):
        for contender in contenders:
            if contender.name in failed:
                continue
            with CONSOLE.status(f"{title}: round {index + 1} of {rounds}, {contender.name}"):
                try:
                    results[contender.name].append(contender.run())
                except Failed as reason:
                    failed.add(contender.name)
                    CONSOLE.print(f"{title}: {contender.name} is left out: {reason}", markup=False)
    return {name: found for name, found in results.items() if name not in failed}


def check_losses(results: Mapping[str, Sequence[dict[str, Any]]], tolerance: float) -> None:
    """Raise SystemExit unless all contenders computed the same losses: else the race is void."""
    runs = [(name, run["losses"]) for name, found in results.items() for run in found]
    for name, losses in runs[1:]:
        reference, expected = runs[0]
        far = [
            (step, a, b)
            for step, (a, b) in enumerate(zip(expected, losses))
            if abs(a - b) > tolerance * max(abs(a), abs(b))
        ]
        if far:
            step, a, b = far[0]
            raise SystemExit(f"loss of step {step}: {reference} computed {a:.7g}, {name} {b:.7g}")


def report(
    case: str,
    title: str,
    results: Mapping[str, Sequence[dict[str, Any]]],
    targets: Sequence[Target],
) -> dict[str, Any]:
    """Print the table of one case; return its numbers: steps/s, ratios, targets."""
    speeds = {name: [run["steps_per_s"] for run in found] for name, found in results.items()}
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    table = Table("contender", title=title)
    for heading in ("steps/s (median)", "lowest", "highest"):
        table.add_column(heading, justify="right")
    for name, found in speeds.items():
        table.add_row(name, *(f"{v:,.4g}" for v in (medians[name], min(found), max(found))))
    CONSOLE.print(table)
    ratios = {}
    for target in targets:
        if target.name not in medians or target.over not in medians:
            continue
        # The median over rounds: neighbours in time saw the same machine.
        ratio = statistics.median(a / b for a, b in zip(speeds[target.name], speeds[target.over]))
        reached = "reached" if ratio >= target.least else "MISSED"
        ratios[f"{target.name}/{target.over}"] = {"ratio": ratio, "target": target.least}
        CONSOLE.print(
            f"{target.name} / {target.over}: {ratio:.3g} (target {target.least:g}: {reached})"
        )
        if BARE in medians and target.over != BARE:
            by_hand = statistics.median(a / b for a, b in zip(speeds[BARE], speeds[target.over]))
            ratios[f"{target.name}/{target.over}"]["by_hand"] = by_hand
            CONSOLE.print(f"{BARE} / {target.over}: {by_hand:.3g}, the same by hand")
    return {"case": case, "steps_per_s": medians, "rounds": speeds, "ratios": ratios}


def say(rows: Sequence[dict[str, Any]]) -> None:
    """Print the results as one JSON line on standard output."""
    print(json.dumps({"results": list(rows)}), file=sys.stdout, flush=True)


def finish(rows: Sequence[dict[str, Any]]) -> None:
    """Print the results, and exit: with 1 if a target is missed."""
    say(rows)
    sys.exit(any(v["ratio"] < v["target"] for row in rows for v in row["ratios"].values()))
