"""How often each operator ran, and how long that took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.recorder import Recording

OPERATORS = (
    EventKind.FEED,
    EventKind.OPERATOR,
    EventKind.FETCH,
)  # Fluid's feed and fetch are operators, too


@dataclass(frozen=True)
class OperatorTime:
    """The runs of one type of operator; times in nanoseconds."""

    name: str
    calls: int
    total: int
    least: int
    most: int

    @property
    def average(self) -> float:
        """Mean time of a run, in nanoseconds."""
        return self.total / self.calls


def operator_times(recording: Recording) -> list[OperatorTime]:
    """Return the times of all operators, in the order in which each first ended."""
    events = recording.events[np.isin(recording.events["kind"], OPERATORS)]
    events = events[np.argsort(events["end"], kind="stable")]
    numbers, firsts = np.unique(events["name"], return_index=True)
    times_of = []
    for number in numbers[np.argsort(firsts)]:
        calls = events[events["name"] == number]
        took = calls["end"] - calls["begin"]
        times = int(took.sum()), int(took.min()), int(took.max())
        times_of.append(OperatorTime(recording.names[number], len(calls), *times))
    return times_of


# By Fluid's words: largest first, but for the default, the order of first ends.
SORTED_BY = {
    "default": ("event first end time", None),
    "calls": ("number of calls", lambda row: row.calls),
    "total": ("total time", lambda row: row.total),
    "max": ("maximum time", lambda row: row.most),
    "min": ("minimum time", lambda row: row.least),
    "ave": ("average time", lambda row: row.average),
}


def table(rows: Sequence[OperatorTime], place: str, sorted_key: str, total_ns: int) -> str:
    """Return Fluid's report, in milliseconds; ``total_ns`` is what all runs together took."""
    words, key = SORTED_BY[sorted_key]
    if key is not None:
        rows = sorted(rows, key=key, reverse=True)
    operators = sum(row.total for row in rows)
    total_ns = max(total_ns, operators)
    share = operators / total_ns if total_ns else 0.0
    overhead = total_ns - operators
    lines = [
        "\n------------------------->     Profiling Report     <-------------------------\n",
        f"Place: {place}",
        "Time unit: ms",
        f"Sorted by {words} in descending order in the same thread\n",
        f"Total time: {total_ns / 1e6:.6g}",
        f"  Computation time       Total: {operators / 1e6:<10.6g}  Ratio: {100 * share:.6g}%",
        f"  Framework overhead     Total: {overhead / 1e6:<10.6g}  Ratio: {100 * (1 - share):.6g}%",
        "\n-------------------------       Event Summary       -------------------------\n",
    ]
    head = ("Calls", "Total", "Min.", "Max.", "Ave.", "Ratio.")
    width = max((len(row.name) for row in rows), default=0) + 16
    lines.append("Event".ljust(width) + "".join(text.ljust(12) for text in head))
    for row in rows:
        times = (row.total, row.least, row.most, row.average)
        cells = [str(row.calls), *(f"{t / 1e6:.6g}" for t in times)]
        cells.append(f"{row.total / operators if operators else 0:.6g}")
        lines.append(f"thread0::{row.name}".ljust(width) + "".join(c.ljust(12) for c in cells))
    return "\n".join(lines) + "\n"
