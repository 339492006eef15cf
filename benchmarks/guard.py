"""Race this checkout against fixed earlier commits: nothing that was once fast becomes slow unseen.

    python benchmarks/guard.py                        # all works, about 10 minutes
    python benchmarks/guard.py --short                # what CI runs: about a minute
    python benchmarks/guard.py --work "linreg 2+2" --rounds 9

Each work is run by the baseline and by this checkout in turn, each with its own script of the same
name. A round's ratio is this checkout's speed over its baseline's: neighbours in time see the same
machine. The exit status is 1 if a work is slower than LEAST of its baseline, which takes many
rounds that agree (`verdict`); one noisy round never does. Where there is no git history, nothing is
raced, and it says so.
"""

from __future__ import annotations

import enum
import importlib.util
import math
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rounds import (
    CONSOLE,
    HERE,
    Failed,
    arguments,
    check_losses,
    json_line,
    json_object,
    run_text,
    say,
)
from vs_fluid import LIMIT_S, MPI_ENVIRONMENT, mpirun

# A baseline moves only by a decision that is told in the changelog, never to hide a fall.
FIRST = "6d653868"  # the first version: what a step costs
FOLDERS = "f42a2425"  # what the first version had not: sums in shared memory, tables, PyTorch

LEAST = 0.9  # of the baseline's speed
FEW, MANY = 3, 14  # rounds that a verdict takes, at least and at most
DOUBT = 1e-3  # a fall is believed if a fair coin would show it less often
Result = dict[str, Any]


def per_second(text: str) -> Result:
    """Return what a training script prints: its steps per second and losses."""
    found = json_line(text)
    if isinstance(found["steps_per_s"], dict):  # of sum_step.py: of each way
        found["steps_per_s"] = found["steps_per_s"]["fused"]
    return found


def of_tables(text: str) -> Result:
    """Return pulls with pushes per second, of what sparse_table.py's trainer prints."""
    found = json_object(text)
    each = [statistics.median(found[what]) for what in ("index", "pull", "take", "push")]
    return {"steps_per_s": 1 / sum(each), "losses": []}


def of_checkpoints(text: str) -> Result:
    """Return saves with restores per second, of what checkpoint.py prints."""
    seconds = json_object(text)["seconds"]
    return {
        "steps_per_s": 1 / (min(seconds["save"]) + min(seconds["restore, warm"])),
        "losses": [],
    }


def of_torch(text: str) -> Result:
    """Return calls per second over hpcdist, of the one line of torch_backend.py's table."""
    found = re.search(r"^\S.*?\s(\d+\.\d+) +\d+\.\d+ +\d+\.\d+$", text, re.MULTILINE)
    if found is None:
        raise Failed("no line of times among its output:\n" + text[-2000:])
    return {"steps_per_s": 1e3 / float(found[1]), "losses": []}


@dataclass(frozen=True)
class Work:
    """What is raced: ``words`` are a script of benchmarks/ and its options."""

    name: str
    baseline: str
    words: str
    ranks: int = 1
    servers: int = 0
    job: bool = True  # started by `python -m hpcdist`, if on several ranks
    short: bool = False
    tolerance: float = 1e-4  # of losses: sums in different orders
    result: Callable[[str], Result] = per_second
    needs: str = ""  # a module
    statuses: tuple[int, ...] = (0,)  # 1 if a target of the script's own may be missed


WORKS = (
    Work("linreg alone", FIRST, "train.py --warmup 1000 --steps 20000", short=True),
    Work("linreg 1+1", FIRST, "train.py --warmup 1000 --steps 10000", 2, 1, short=True),
    Work("linreg 2+2", FIRST, "train.py --warmup 1000 --steps 3000", 4, 2),
    Work("mlp 2+2", FIRST, "train.py --case mlp --warmup 5 --steps 40", 4, 2),
    Work("ctr 2+2", FIRST, "ctr_train.py --warmup 20 --steps 60", 4, 2, tolerance=2e-3),
    Work(
        "linreg, sums", FOLDERS, "train_sums.py --case linreg --warmup 500 --steps 4000", 2,
        short=True,
    ),
    Work("mlp, sums", FOLDERS, "train_sums.py --case mlp --warmup 10 --steps 100", 2),
    Work("sums of 4 KiB", FOLDERS, "sum_step.py --case small", 2, job=False),
    Work("sums of ResNet-50", FOLDERS, "sum_step.py --case resnet50", 2, job=False),
    Work(
        "table", FOLDERS, "sparse_table.py --trainer --rows 1000000 --ids 100000", 2, job=False,
        result=of_tables,
    ),
    Work(
        "checkpoint", FOLDERS, "checkpoint.py --gib 0.25 --rounds 3", result=of_checkpoints,
        statuses=(0, 1),
    ),
    Work(
        "DDP", FOLDERS, "torch_backend.py --only DDP", 2, job=False, result=of_torch, needs="torch"
    ),
    Work(
        "all_reduce of 64 bytes", FOLDERS, "torch_backend.py --only '64 bytes'", 2,
        job=False, result=of_torch, needs="torch",
    ),
)  # fmt: skip


class Missing(Failed):
    """A baseline that cannot be had; the text says why."""


class Verdict(enum.Enum):
    """What rounds say of a work."""

    OPEN = "more rounds are needed"
    PASSED = "passed"
    FELL = "FELL"


def verdict(ratios: Sequence[float], few: int = FEW) -> Verdict:
    """Say whether rounds show a fall below LEAST.

    The median of ``few`` rounds or more at LEAST or above passes. A fall is one that a sign test
    sees: so many rounds below LEAST that a fair coin would show as many with a probability under
    DOUBT. Rounds that do not agree after MANY pass.
    """
    if len(ratios) < few:
        return Verdict.OPEN
    if statistics.median(ratios) >= LEAST:
        return Verdict.PASSED
    below = sum(ratio < LEAST for ratio in ratios)
    if chance(below, len(ratios)) < DOUBT:
        return Verdict.FELL
    return Verdict.OPEN if len(ratios) < MANY else Verdict.PASSED


def chance(heads: int, tosses: int) -> float:
    """Return the probability that a fair coin shows ``heads`` or more in ``tosses``."""
    return float(sum(math.comb(tosses, k) for k in range(heads, tosses + 1)) / 2**tosses)


# -- the trees -------------------------------------------------------------------------------------
def checkout(commit: str, root: Path = HERE.parent) -> Path:
    """Return a folder with the tree of a commit, made once; raise Missing if it is not known."""
    folder = root / ".baselines" / commit
    if folder.exists():
        return folder
    if shutil.which("git") is None:
        raise Missing("there is no git on PATH")
    command = ["git", "-C", str(root), "archive", "--format=tar", commit, "hpcdist", "benchmarks"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise Missing(f"no commit {commit} here: clone the whole history ({said})")
    folder.parent.mkdir(exist_ok=True)
    made = tempfile.mkdtemp(dir=folder.parent)
    subprocess.run(["tar", "-x", "-C", made], input=done.stdout, check=True)
    Path(made).rename(folder)
    return folder


def run(work: Work, tree: Path) -> Result:
    """Run a work once, with the hpcdist and the script of a tree."""
    script, *options = shlex.split(work.words)
    command: list[str | Path] = [sys.executable]
    if work.ranks > 1:
        command = [mpirun(), "-n", str(work.ranks), sys.executable]
        command += ["-m", "hpcdist", "--pservers", str(work.servers)] if work.job else []
    command += [tree / "benchmarks" / script, *options]
    variables = MPI_ENVIRONMENT | {"PYTHONPATH": str(tree)}
    # In the tree: `python -m` looks for hpcdist in its own folder first.
    return work.result(run_text(command, variables, LIMIT_S, work.statuses, tree))


# -- the race --------------------------------------------------------------------------------------
def race(work: Work, few: int) -> tuple[Verdict, list[float], list[Result]]:
    """Run a work until its verdict; return it, the rounds' ratios, and this checkout's results.

    Raises Missing if the baseline cannot be had or cannot run here, Failed if this checkout cannot.
    """
    then: list[Result] = []
    now: list[Result] = []
    ratios: list[float] = []
    before = checkout(work.baseline)

    def baseline() -> None:
        try:
            then.append(run(work, before))
        except Failed as reason:
            raise Missing(f"{work.baseline} does not run here: {reason}") from reason

    sides = [baseline, lambda: now.append(run(work, HERE.parent))]
    while (found := verdict(ratios, few)) is Verdict.OPEN:
        with CONSOLE.status(f"{work.name}: round {len(ratios) + 1}"):
            for side in sides:
                side()
        sides.reverse()  # a machine that gets slower favours nobody
        ratios.append(now[-1]["steps_per_s"] / then[-1]["steps_per_s"])
    check_losses({work.baseline: then, "this checkout": now}, work.tolerance)
    return found, ratios, now


def main() -> None:
    """Race the works asked for, print a table and a JSON line; exit 1 if one fell."""
    parser = arguments(__doc__, 5)
    parser.add_argument("--short", action="store_true", help=f"{FEW} rounds of the short works")
    parser.add_argument("--work", action="append", choices=[w.name for w in WORKS])
    options = parser.parse_args()
    chosen = [w for w in WORKS if w.short or not options.short]
    if options.work:
        chosen = [w for w in WORKS if w.name in options.work]
    table = Table("work", title="speed beside a fixed earlier commit")
    for heading in ("baseline", "per s", "ratio", "lowest", "highest", "rounds", ""):
        table.add_column(heading, justify="right")
    rows = []
    for work in chosen:
        if work.needs and importlib.util.find_spec(work.needs) is None:
            CONSOLE.print(f"{work.name}: skipped: {work.needs} is not installed", markup=False)
            continue
        try:
            found, ratios, results = race(work, FEW if options.short else options.rounds)
        except Missing as reason:
            CONSOLE.print(f"{work.name}: skipped: {reason}", markup=False)
            continue
        speed = statistics.median(result["steps_per_s"] for result in results)
        shown = [f"{v:.2f}" for v in (statistics.median(ratios), min(ratios), max(ratios))]
        table.add_row(
            work.name, work.baseline, f"{speed:,.0f}", *shown, str(len(ratios)), found.value
        )
        rows.append({"work": work.name, "ratios": ratios, "verdict": found.value})
    if rows:
        CONSOLE.print(table)
    say(rows)
    sys.exit(any(row["verdict"] == Verdict.FELL.value for row in rows))


if __name__ == "__main__":
    main()
