"""The table of a job's operators: calls, time, and time relative to the least."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcdist.base.trace import programs
from hpcdist.base.trace.events import EventKind
from hpcdist.base.trace.files import RankOfJob, RankRecording
from hpcdist.base.trace.operator_times import OperatorTime, operator_times
from hpcdist.base.trace.programs import Moved
from hpcdist.base.trace.rates import Rates

MOST_OPERATORS = 40
SLOW, SLOW_S, SLOW_SHARE = 5, 50e-6, 0.1  # times, and seconds more than the least; of all


def operators_of(recordings: Sequence[RankRecording]) -> list[dict[str, Any]]:
    """Return the operators of all trainers together since they train, the longest first."""
    rows: dict[str, list[OperatorTime]] = defaultdict(list)
    for rank in recordings:
        if rank.of.role != "PSERVER":
            steps = rank.recording.events["kind"] == EventKind.STEP
            first = int(rank.recording.events["begin"][steps].min()) if steps.any() else 0
            for row in operator_times(rank.recording.since(first)):
                rows[row.name].append(row)
    total = sum(row.total for same in rows.values() for row in same) or 1
    usual_s = {name: _usual_s(same) for name, same in rows.items()}
    most_s = SLOW_SHARE * sum(s * sum(row.calls for row in rows[n]) for n, s in usual_s.items())
    planned = _planned(recordings)
    rates = mean_rates([rank.of for rank in recordings if rank.of.role != "PSERVER"])
    operators: list[dict[str, Any]] = []
    for name, same in rows.items():
        calls, took = sum(row.calls for row in same), sum(row.total for row in same)
        plan, usual = planned.get(name), usual_s[name]
        least_s = 0.0 if plan is None else rates.least_s(plan.nbytes, plan.flops or 0)
        slow = usual > max(SLOW * least_s, least_s + SLOW_S) and usual * calls > most_s
        operators.append(
            {
                "name": name,
                "calls": calls,
                "total_ms": took / 1e6,
                "mean_us": took / calls / 1e3,
                "most_us": max(row.most for row in same) / 1e3,
                "share": took / total,
                "plan": plan,
                "least_us": least_s * 1e6,
                "times": usual / least_s if least_s else 0.0,
                "slow": bool(least_s) and slow and plan is not None and plan.flops is not None,
            }
        )
    return sorted(operators, key=lambda row: -row["total_ms"])[:MOST_OPERATORS]


def _usual_s(same: Sequence[OperatorTime]) -> float:
    """Return the mean of an operator's calls but for each rank's longest, in seconds.

    The first one may have compiled its kernel.
    """
    longest = [row.most for row in same if row.calls > 1]
    calls = sum(row.calls for row in same) - len(longest)
    return (sum(row.total for row in same) - sum(longest)) / calls / 1e9


@dataclass(frozen=True)
class PlannedCall:
    """What a call of a type of operator does in the Program that trains, on average; `Moved`."""

    nbytes: float
    flops: float | None


def _planned(recordings: Sequence[RankRecording]) -> dict[str, PlannedCall]:
    """Return the planned cost of a call of each type of operator."""
    moved: dict[str, list[Moved]] = defaultdict(list)
    for rank in recordings:
        for program in rank.recording.programs:
            for one in program.moved if program.kind == programs.TRAINS else ():
                moved[one.type].append(one)
    return {
        type_: PlannedCall(
            sum(one.nbytes for one in same) / (count := sum(one.operators for one in same)),
            None
            if any(one.flops is None for one in same)
            else sum(one.flops or 0 for one in same) / count,
        )
        for type_, same in moved.items()
    }


def mean_rates(ranks: Sequence[RankOfJob]) -> Rates:
    """Return the rates of the ranks that have measured theirs, the mean of each."""
    by_rank = [(of.bytes_per_s, of.flops_per_s, of.call_s) for of in ranks]
    measured = [rates for rates in by_rank if min(rates) > 0]
    return Rates(*map(statistics.fmean, zip(*measured)))
