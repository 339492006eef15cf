"""Decides which ranks of a host are stuck although they owe others their end. Pure.

A rank owes its end while others wait for it, and when all scripts have ended. It is stuck if its
main thread has not run, and it has used no processor, for as long as the deadline. One that
computes, or looks again and again, may be right to: it is named, and waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from hpcdist.launch.facts import Fact
from hpcdist.launch.processes import Activity


class ExitStage(Enum):
    """How far a rank is; the value of one in which it owes its end says where it is."""

    SCRIPT = "in its script"
    AWAITS = ""
    LEAVES = "after its script, in what is registered with atexit"
    FINALIZES = " "
    GONE = "in the end of its interpreter"


_STAGES = {
    Fact.AWAITS: ExitStage.AWAITS,
    Fact.LEAVES: ExitStage.LEAVES,
    Fact.FINALIZES: ExitStage.FINALIZES,
    Fact.GONE: ExitStage.GONE,
}
WAITS_FIRST_S = 7.0  # how long others that wait for one that is stopped may take to say for what
_OWING = (ExitStage.SCRIPT, ExitStage.LEAVES, ExitStage.GONE)


class StuckFinding(Enum):
    """What is wrong with a rank."""

    STOPPED = "stopped"
    BLOCKED = "blocked"
    COMPUTES = "computes"  # which may be right


@dataclass(frozen=True)
class Suspect:
    """A rank that may be stuck, and where."""

    pid: int
    finding: StuckFinding
    stage: ExitStage


@dataclass
class _Owes:
    stage: ExitStage
    since_s: float
    activity: Activity
    told: bool = False


class StuckRanks:
    """Compares what ranks have done, look by look."""

    def __init__(
        self,
        ranks: Sequence[int],
        deadline_s: float,
        activity: Callable[[int], Activity | None],
        is_stopped: Callable[[int], bool],
        waits: Callable[[int], bool],
    ) -> None:
        """``waits`` tells whether a rank waits for others itself, by its stack."""
        self._ranks = list(ranks)
        self._deadline_s = deadline_s
        self._activity = activity
        self._is_stopped = is_stopped
        self._waits = waits
        self._owes: dict[int, _Owes] = {}
        self._stopped_s = dict.fromkeys(ranks, 0.0)
        self._last_s: float | None = None

    def forget(self, pid: int) -> None:
        """Watch a rank no longer: it has ended."""
        self._ranks.remove(pid)
        self._owes.pop(pid, None)

    def look(self, now_s: float, noted: Iterable[tuple[int, ...]]) -> list[Suspect]:
        """Return the findings. ``noted``: (process id, fact, rank), first come first."""
        stages = dict.fromkeys(self._ranks, ExitStage.SCRIPT)
        for pid, fact, _ in noted:
            if pid in stages and fact in _STAGES:
                stages[pid] = _STAGES[Fact(fact)]
        awaited = any(stage is not ExitStage.SCRIPT for stage in stages.values())
        suspects = self._stopped(now_s, stages)
        for pid, stage in stages.items():
            if stage not in _OWING or (stage is ExitStage.SCRIPT and not awaited):
                self._owes.pop(pid, None)
            elif (finding := self._finding(pid, stage, now_s)) is not None:
                suspects.append(Suspect(pid, finding, stage))
        return suspects

    def _finding(self, pid: int, stage: ExitStage, now_s: float) -> StuckFinding | None:
        owes = self._owes.get(pid)
        if owes is not None and owes.stage is stage:
            if now_s - owes.since_s < self._deadline_s:
                return None
            told = owes.told
        else:
            owes, told = None, False
        done = self._activity(pid)
        if done is None:
            return None
        self._owes[pid] = _Owes(stage, now_s, done, told)
        if owes is None or (stage is ExitStage.SCRIPT and self._waits(pid)):
            return None
        if done.blocked_since(owes.activity, now_s - owes.since_s):
            return StuckFinding.BLOCKED
        self._owes[pid].told = True
        return None if told else StuckFinding.COMPUTES

    def _stopped(self, now_s: float, stages: dict[int, ExitStage]) -> list[Suspect]:
        """Return those that have been stopped for so long; if all are, somebody wants it so."""
        passed_s = now_s - (now_s if self._last_s is None else self._last_s)
        self._last_s = now_s
        stopped = [pid for pid in stages if self._is_stopped(pid)]
        if len(stopped) == len(stages):
            stopped = []
        for pid in stages:
            self._stopped_s[pid] = self._stopped_s[pid] + passed_s if pid in stopped else 0.0
        limit_s = self._deadline_s + WAITS_FIRST_S
        late = [pid for pid in stopped if self._stopped_s[pid] >= limit_s]
        return [Suspect(pid, StuckFinding.STOPPED, stages[pid]) for pid in late]
