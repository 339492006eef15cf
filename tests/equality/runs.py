"""Programs that were trained, by their levels, and what came of each; the files of them.

A file that is appended to has a line of JSON for each. What is recorded of the Programs that were
equal is a text of which the first line names the features and their levels as they were; each other
line is a Program: a letter for the level of each feature, and how far its worst value was off.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.equality.features import FEATURES, Choice
from tests.equality.jobs import EQUAL, REFUSED, Outcome

REFUSALS = Path(__file__).with_name("refused.jsonl")
EQUALS = Path(__file__).with_name("equal.txt")
LETTERS = string.ascii_letters

# By feature, with those levels that need a package which may not be installed here.
DECLARED = {f.name: list(dict.fromkeys((*f.levels, *f.extra))) for f in FEATURES}

Levels = Mapping[str, str]


@dataclass(frozen=True)
class Run:
    """A Program that was trained: its levels that are not the usual ones, and what came of it."""

    levels: Levels = field(hash=False)
    outcome: Outcome

    @staticmethod
    def parse(line: str) -> Run:
        levels, kind, off, why = json.loads(line)
        return Run(levels, Outcome(kind, off, why))

    def __str__(self) -> str:
        outcome = self.outcome
        off = outcome.off if outcome.off == float("inf") else float(f"{outcome.off:.1e}")
        return json.dumps([self.levels, outcome.kind, off, outcome.why])

    @property
    def bad(self) -> bool:
        return self.outcome.kind not in (EQUAL, REFUSED)


def whole(levels: Levels) -> dict[str, str]:
    """Return the level of every feature."""
    return {feature.name: levels.get(feature.name, feature.usual) for feature in FEATURES}


def unusual(choice: Choice) -> dict[str, str]:
    """Return the levels that are not the usual ones."""
    usual = {feature.name: feature.usual for feature in FEATURES}
    return {name: level for name, level in choice.items() if level != usual.get(name)}


def read(path: Path) -> list[Run]:
    """Return the runs of a file of lines of JSON; none if there is no such file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [run for run in map(Run.parse, lines) if is_declared(run.levels)]


def recorded() -> list[Run]:
    """Return the runs that are recorded here: equal ones, and refusals."""
    equal = equal_runs(EQUALS.read_text()) if EQUALS.exists() else ()
    return [*equal, *read(REFUSALS)]


def record(runs: Iterable[Run]) -> None:
    """Record the runs that were equal, and those that were refused."""
    runs = list(runs)
    EQUALS.write_text(equals_text(run for run in runs if run.outcome.kind == EQUAL))
    refused = sorted(str(run) for run in runs if run.outcome.kind == REFUSED)
    REFUSALS.write_text("".join(f"{run}\n" for run in refused))


def equals_text(runs: Iterable[Run]) -> str:
    """Return the file of these runs, all of which were equal."""
    lines = []
    for run in runs:
        row = whole(run.levels)
        letters = "".join(LETTERS[of.index(row[name])] for name, of in DECLARED.items())
        lines.append(f"{letters} {run.outcome.off:.1e}\n")
    return json.dumps(list(DECLARED.items())) + "\n" + "".join(sorted(lines))


def equal_runs(text: str) -> Iterator[Run]:
    """Yield the runs of such a file; a feature that is newer had its usual level in them."""
    first, *lines = text.splitlines()
    features = json.loads(first)
    for line in lines:
        letters, off = line.split()
        row = {name: of[LETTERS.index(c)] for (name, of), c in zip(features, letters, strict=True)}
        if is_declared(row):
            yield Run(unusual(row), Outcome(EQUAL, float(off)))


def is_declared(levels: Levels) -> bool:
    """Say whether there are all of these levels, which later ones may have replaced."""
    return all(level in DECLARED.get(name, ()) for name, level in levels.items())
