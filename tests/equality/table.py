"""What is equal, refused or untried of each feature in each mode: from runs to docs/equality.md.

``python -m tests.equality.table`` adds the runs of equality.jsonl to those that are recorded
(``equal.txt`` and ``refused.jsonl``), and writes the tables of docs/equality.md from these two.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.equality import features as f
from tests.equality.array import OF_A_JOB, RESULTS, array_of
from tests.equality.jobs import BY_ONE, EQUAL, HALF, OPERATOR, REFUSED
from tests.equality.runs import Levels, Run, read, record, recorded, whole

PAGE = Path(__file__).parents[2] / "docs/equality.md"
BEGIN, END = "<!-- made by python -m tests.equality.table -->\n", "<!-- end of what is made -->\n"
WAYS = 3  # levels that are to meet
UNTRIED, REFUSAL, NOTHING = "untried", "refused", "—"

FOLDER = re.compile(r"/dev/shm/equality-\w+/job/(?:program-\d+/)?")  # of one run
Cell = tuple[str, str, str]  # a feature, its level, a mode


@dataclass
class Equals:
    """How many equal Programs had a level in a mode, and how far the worst value was off."""

    programs: int = 0
    cells: dict[Cell, tuple[int, float]] = field(default_factory=dict)

    def add(self, run: Run) -> None:
        row, off = whole(run.levels), run.outcome.off
        self.programs += 1
        for name, level in row.items():
            counted = level if row["strategy"] in HALF else ""
            known, worst = self.cells.get(cell := (name, level, row["mode"]), (0, 0.0))
            if row["strategy"] not in HALF or counted == row["strategy"]:
                worst = max(worst, off)
            self.cells[cell] = known + 1, worst


def tables(equals: Equals, refused: Sequence[Run]) -> str:
    """Return the tables of the page: the same whether torch, which some levels need, is here."""
    modes = list(f.MODE.levels)
    lines = [f"| | {' | '.join(modes)} |", f"|---|{'---|' * len(modes)}"]
    for feature in f.FEATURES:
        if feature is f.MODE:
            continue
        for level in dict.fromkeys((*feature.levels, *feature.extra)):
            cells = [_cell(equals, refused, (feature.name, level, mode)) for mode in modes]
            if level in feature.extra and set(cells) <= {UNTRIED, NOTHING}:
                continue
            lines.append(f"| {feature.name}: {level} | {' | '.join(cells)} |")
    lines += ["", "| refused together | in | because |", "|---|---|---|"]
    return "\n".join([*lines, *_refusals(refused)]) + "\n"


def _cell(equals: Equals, refused: Iterable[Run], cell: Cell) -> str:
    name, level, mode = cell
    if not f.has_meaning(name, level, mode):
        return NOTHING
    if cell in equals.cells:
        count, off = equals.cells[cell]
        return f"{off:.0e} ({count})"
    here = {name: level, "mode": mode}
    for feature in f.FEATURES:  # what every Program of the mode must have
        only = [v for v in feature.levels if f.possible({"mode": mode, feature.name: v})]
        here |= {feature.name: only[0]} if len(only) == 1 else {}
    alone = (_without(run.levels, ("trainers",)).items() for run in refused)
    if any((name, level) in levels <= here.items() for levels in alone):
        return REFUSAL
    return UNTRIED


def _without(levels: Levels, names: Iterable[str]) -> dict[str, str]:
    return {name: level for name, level in levels.items() if name not in names}


def _refusals(refused: Iterable[Run]) -> list[str]:
    """Return a row for what is refused in some modes, the fewest levels first."""
    modes: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for run in refused:
        others = tuple(sorted(_without(run.levels, OF_A_JOB).items()))
        everywhere = run.outcome.why.startswith(BY_ONE)
        mode = "one process" if everywhere else run.levels.get("mode", f.MODE.usual)
        modes.setdefault(others, {})[mode] = run.outcome.why
    rows = []
    for levels, found in sorted(modes.items(), key=lambda of: (len(of[0]), of[0])):
        named = ", ".join(f"{name}: {level}" for name, level in levels)
        why = next(iter(found.values())).removeprefix(f"{BY_ONE}: ").partition(": ")[2]
        where = ", ".join(mode for mode in ("one process", *f.MODE.levels) if mode in found)
        rows.append(f"| {named} | {where} | {_plain(why)} |")
    return rows


def _plain(text: str) -> str:
    """Return an error's first words as a cell of a table."""
    words = OPERATOR.sub(r"operator \1\2 ", FOLDER.sub("", text))
    words = words.replace("|", "/").replace("<", "&lt;")
    return words if len(words) <= 120 else words[:120].rpartition(" ")[0] + " …"


def written(page: str, made: str) -> str:
    """Return a page with the tables in their place."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{made}{END}{rest.partition(END)[2]}"


def made_of(runs: Iterable[Run]) -> str:
    """Return what the page says of these runs."""
    array, equals = array_of(runs), Equals()
    for run in array.runs.values():
        if run.outcome.kind == EQUAL:
            equals.add(run)
    refused = [run for run in array.runs.values() if run.outcome.kind == REFUSED]
    left, all_of_them = array.left(WAYS), array_of(refused).left(WAYS)
    return (
        f"{equals.programs:,} Programs were equal. Of {all_of_them:,} triples of levels that can "
        f"meet and are not refused, {left:,} have not met in any.\n\n{tables(equals, refused)}"
    )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--of", type=Path, default=RESULTS, help="the runs that are added")
    array = array_of([*recorded(), *read(asked.parse_args().of)])
    record(array.runs.values())
    PAGE.write_text(written(PAGE.read_text(), made_of(recorded())))
    if wrong := [run for run in array.runs.values() if run.bad]:
        sys.exit("not equal, and not in the tables:\n" + "\n".join(map(str, wrong)))


if __name__ == "__main__":
    main()
