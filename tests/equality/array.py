"""The covering array: Programs in which all levels meet, first in pairs, then three at a time.

``python -m tests.equality.array`` trains them all, each by one process and by a job, and appends
what came of each to a file, a line of JSON each. It goes on from what is recorded and from that
file, first with what was not equal. Of what is refused, or differs, it finds the levels that are to
blame: Programs that follow do not have these together, so that no refusal hides the other levels.
``--slice --minutes 1`` trains for a minute Programs of an array of this day, and tries whether
some of what is recorded as refused still is.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from itertools import product
from pathlib import Path
from types import MappingProxyType

from tests.equality.covering import Covering
from tests.equality.features import FEATURES, IMPOSSIBLE, Choice, possible
from tests.equality.jobs import BY_ONE, EQUAL, REFUSED, Outcome, compare, refuses
from tests.equality.runs import REFUSALS, Levels, Run, read, recorded, unusual, whole

RESULTS = Path("equality.jsonl")
BAD_EXIT = 1
OF_A_JOB = ("mode", "trainers")  # on which it depends whether a job refuses
COSTLY = ("kernels", "save", "batches", "evaluation", "late", "metric")  # and seldom to blame
TRIED_AGAIN = 3  # refusals, in a slice
OF_A_SLICE = 7  # levels that are not the usual ones, in a Program of a slice

Key = frozenset[tuple[str, str]]
NONE: Levels = MappingProxyType({})


@dataclass
class Array:
    """What has been run, by levels; the last run of the same levels counts."""

    runs: dict[Key, Run] = field(default_factory=dict)
    trained: Callable[[Choice], Outcome] = compare
    refuses: Callable[[Choice], bool] = refuses

    def add(self, run: Run) -> Run:
        self.runs[_key(run.levels)] = run
        return run

    @property
    def refusals(self) -> list[Levels]:
        return [run.levels for run in self.runs.values() if run.outcome.kind == REFUSED]

    def run_all(self, ways: int, order: random.Random) -> Iterator[Run]:
        """Train Programs until all levels that go together have met, ``ways`` at a time.

        1: each level beside the usual ones, in every mode.
        """
        for bad in [run for run in self.runs.values() if run.bad]:
            yield self.add(Run(bad.levels, self.trained(bad.levels)))
        if ways == 1:
            for levels in plain():
                refused = any(holds(levels, together) for together in self.refusals)
                if not refused and _key(levels) not in self.runs:
                    yield from map(self.add, self.try_out(levels))
            return
        left = self._left(ways, order)
        while (choice := left.row()) is not None:
            for run in self.try_out(choice):
                yield self.add(run)
                if run.outcome.kind == REFUSED:
                    left.forbid(run.levels.items())
                else:
                    left.cover(whole(run.levels))

    def left(self, ways: int) -> int:
        """Return how many sets of levels have not met, and are not known to be refused."""
        return self._left(ways, random.Random(0)).left

    def _left(self, ways: int, order: random.Random) -> Covering:
        left = covering(ways, order, self.refusals)
        for run in self.runs.values():
            if run.outcome.kind != REFUSED:
                left.cover(whole(run.levels))
        return left

    def try_out(self, choice: Choice) -> list[Run]:
        """Train a Program; if it is not equal, find the levels without which it would be."""
        first = Run(unusual(choice), self.trained(choice))
        if first.outcome.kind == EQUAL:
            return [first]
        tried = {_key(first.levels): first}

        def same(levels: Levels) -> bool:
            if not possible(whole(levels)):
                return False
            if first.outcome.kind == REFUSED:
                return self.refuses(levels)
            run = tried[_key(levels)] = Run(levels, self.trained(levels))
            return run.outcome.kind == first.outcome.kind

        of_a_job = OF_A_JOB if self._by_a_job(first) else ()  # of these it is refused or not
        job = {name: level for name, level in first.levels.items() if name in of_a_job}
        cheap = {name: level for name, level in first.levels.items() if name not in COSTLY}
        blamed = cheap if same(cheap) else first.levels
        rest = {name: level for name, level in blamed.items() if name not in of_a_job}
        levels = self._like_another(blamed, same) or {**job, **needed(rest, same, job)}
        last = tried.pop(_key(levels), None) or Run(levels, self.trained(levels))
        found = last.outcome
        levels = {**levels, **{name: whole(choice)[name] for name in of_a_job}}
        return [*(run for run in tried.values() if run.bad), Run(levels, found)]

    @staticmethod
    def _by_a_job(run: Run) -> bool:
        """Say whether a job refuses what one process trains."""
        return run.outcome.kind == REFUSED and not run.outcome.why.startswith(BY_ONE)

    def _like_another(self, choice: Levels, same: Callable[[Levels], bool]) -> Levels | None:
        """Return the levels that are refused of another job, if this one refuses them as well."""
        here = {name: level for name, level in choice.items() if name in OF_A_JOB}
        for refused in self.refusals:
            levels = {name: level for name, level in refused.items() if name not in OF_A_JOB}
            if levels and holds(choice, levels) and same({**levels, **here}):
                return {**levels, **here}
        return None


def needed(levels: Levels, same: Callable[[Levels], bool], given: Levels = NONE) -> dict[str, str]:
    """Return those of ``levels``, none of which can be spared, that do the ``same`` as all do.

    They do beside what is ``given``. By halves (QuickXplain): the fewer there are, the fewer tries.
    """
    if len(levels) <= 1:
        return dict(levels)
    names = list(levels)
    first, rest = ({n: levels[n] for n in part} for part in (names[::2], names[1::2]))
    of_rest = {} if same({**given, **first}) else needed(rest, same, {**given, **first})
    spared = of_rest and same({**given, **of_rest})
    return {**({} if spared else needed(first, same, {**given, **of_rest})), **of_rest}


def plain() -> Iterator[dict[str, str]]:
    """Yield a Program for each level in each mode, with no other level that can be spared."""
    mode, *others = FEATURES
    spare = [{}, *({feature.name: level} for feature in others for level in feature.levels)]
    for feature in others:
        for level, way in product(feature.levels, mode.levels):
            if possible(here := {feature.name: level, mode.name: way}):
                beside = ({**one, **here} for one in spare)
                if found := next((row for row in beside if possible(whole(row))), None):
                    yield unusual(found)


def covering(ways: int, order: random.Random, refusals: Iterable[Levels]) -> Covering:
    """Return what is to meet: nothing that cannot be said, nothing that is refused."""
    found = Covering({feature.name: list(feature.levels) for feature in FEATURES}, ways, order)
    for one in IMPOSSIBLE:
        for levels in product(*one.levels.values()):
            found.forbid(zip(one.levels, levels))
    for levels in refusals:
        found.forbid(levels.items())
    return found


def _key(levels: Levels) -> Key:
    return frozenset(levels.items())


def holds(choice: Choice, levels: Levels) -> bool:
    return all(whole(choice)[name] == level for name, level in levels.items())


def array_of(runs: Iterable[Run]) -> Array:
    """Return the array of which these have been run, the last of the same levels."""
    array = Array()
    for run in runs:
        array.add(run)
    return array


def run_slice(seed: str, end: float) -> Iterator[Run]:
    """Train Programs of an array of this seed until a time; some that are refused are the first."""
    order = random.Random(seed)
    known = [run.levels for run in read(REFUSALS)]
    for levels in order.sample(known, min(len(known), TRIED_AGAIN)):
        run = Run(levels, compare(levels))
        if run.outcome.kind == EQUAL:
            run = Run(levels, Outcome("NO LONGER REFUSED", why=f"as {REFUSALS.name} says"))
        yield run
    left = covering(3, order, known)
    while time.monotonic() < end and (choice := left.row()) is not None:
        left.cover(choice)
        levels = fewer(choice, order)
        yield Run(levels, compare(levels))


def fewer(choice: Choice, order: random.Random) -> dict[str, str]:
    """Return some of a Program's unusual levels: of all together, one or the other is refused."""
    levels = unusual(choice)
    spared = [name for name in levels if name not in OF_A_JOB]
    for name in order.sample(spared, max(0, len(spared) - OF_A_SLICE)):
        without = {other: level for other, level in levels.items() if other != name}
        if possible(whole(without)):
            levels = without
    return levels


def main() -> int:
    """Train the Programs that are left; return how the process ends."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--ways", type=int, default=3, help="2: all pairs of levels; 3: triples")
    asked.add_argument("--slice", action="store_true", help="train other Programs each day")
    asked.add_argument("--seed", default=str(date.today()), help="of a slice (default: today)")
    asked.add_argument("--to", type=Path, default=RESULTS, help="where runs are appended")
    asked.add_argument("--minutes", type=float, default=float("inf"))
    given = asked.parse_args()
    logging.getLogger("hpcdist").setLevel(logging.ERROR)  # of batches that are not divided
    end = time.monotonic() + 60 * given.minutes
    if given.slice:
        print(f"a slice of the Programs of seed {given.seed}", flush=True)
        return report(run_slice(given.seed, end), end, lambda run: None)
    array = array_of([*recorded(), *read(given.to)])
    print(f"{len(array.runs)} runs are recorded, or in {given.to}", flush=True)
    with given.to.open("a") as file:
        for ways in range(1, given.ways + 1):
            runs = array.run_all(ways, random.Random("array"))
            bad = report(runs, end, lambda run: print(run, file=file, flush=True))
    return BAD_EXIT if bad or any(run.bad for run in array.runs.values()) else 0


def report(runs: Iterator[Run], end: float, record: Callable[[Run], None]) -> int:
    """Print runs that are not equal, and how many there were of each kind; 1 if one is wrong."""
    kinds: dict[str, int] = {}
    bad = 0
    while time.monotonic() < end and (run := next(runs, None)):
        record(run)
        bad += run.bad
        kinds[run.outcome.kind] = kinds.get(run.outcome.kind, 0) + 1
        if run.outcome.kind != EQUAL:
            print(run, flush=True)
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items())), flush=True)
    return BAD_EXIT if bad else 0


if __name__ == "__main__":
    sys.exit(main())
