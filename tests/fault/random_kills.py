"""A campaign of ranks that end or hang at random, in all modes; it goes on where it was stopped.

``python -m tests.fault.random_kills results.jsonl --jobs 200`` appends an outcome a line, and tells
what all jobs in the file have come to: hangs, deaths that nobody named, processes left over.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tests.fault import hangs, kills, online_kills, resumes
from tests.fault.campaign import AS_PROMISED, BROKEN, Outcome, attempt
from tests.support.jobs import can_be_tolerant


class Family(NamedTuple):
    """Jobs of one kind."""

    share: int  # of the jobs of a campaign, relative to the others
    draw: Callable[[int], Any]
    run: Callable[[Any, Path], str]


def families() -> dict[str, Family]:
    """Return what can be run here."""
    found = {
        "kills": Family(7, kills.draw, kills.run),
        "hybrid": Family(1, lambda seed: kills.draw(seed, [kills.HYBRID]), kills.run),
        "hangs": Family(3, hangs.draw, hangs.run),
        "resumes": Family(3, resumes.draw, resumes.run),
        "online": Family(1, online_kills.draw, online_kills.run),
    }
    if importlib.util.find_spec("torch"):
        from tests.torch import shrink_kills, torch_kills

        found["torch"] = Family(2, torch_kills.draw, torch_kills.run)
        if can_be_tolerant():
            found["shrink"] = Family(1, shrink_kills.draw, shrink_kills.run)
    return found


def job(seed: int, number: int, chosen: dict[str, Family]) -> tuple[str, int]:
    """Return the family of a job of a campaign, and its seed there."""
    rng = random.Random(f"{seed}:{number}")
    names = list(chosen)
    (name,) = rng.choices(names, [chosen[name].share for name in names])
    return name, rng.randrange(2**31)


def outcomes(results: Path) -> list[dict[str, Any]]:
    """Return what a file holds; a line that a crash has cut short does not count."""
    lines = results.read_text().split("\n")[:-1] if results.exists() else []
    return [json.loads(line) for line in lines]


def append(results: Path, seed: int, number: int, family: str, outcome: Outcome) -> None:
    """Append an outcome, on a line of its own also after one that was cut short."""
    text = json.dumps({"seed": seed, "number": number, "family": family, **asdict(outcome)})
    with results.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.truncate(_whole_lines(results.read_bytes()[:size]))
        file.write(text.encode() + b"\n")


def _whole_lines(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def summary(found: Sequence[dict[str, Any]]) -> str:
    """Return what jobs have come to."""
    verdicts = Counter(outcome["verdict"] for outcome in found)
    kinds = Counter(outcome["family"] for outcome in found)
    broken = ", ".join(f"{verdicts[kind]} {kind}" for kind in (*BROKEN, "wrong"))
    deaths = sum(outcome["deaths"] for outcome in found)
    return (
        f"{deaths} deaths and hangs in {len(found)} jobs ({dict(sorted(kinds.items()))}): "
        f"{verdicts[AS_PROMISED]} {AS_PROMISED}, {broken}"
    )


def main() -> None:
    """Run jobs that the file does not hold yet; exit 1 if any job in it has gone wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.random_kills")
    parser.add_argument("results", type=Path, help="a file of a campaign, made if it is not there")
    parser.add_argument("--jobs", type=int, default=0, help="how many to run (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="of a new campaign (default: 0)")
    parser.add_argument("--only", nargs="+", choices=families(), help="families of jobs")
    chosen = parser.parse_args()
    kinds = {k: v for k, v in families().items() if k in (chosen.only or families())}
    before = outcomes(chosen.results)
    done = [outcome["number"] for outcome in before if outcome["seed"] == chosen.seed]
    first = max(done, default=-1) + 1
    for number in range(first, first + chosen.jobs):
        name, seed = job(chosen.seed, number, kinds)
        outcome = attempt(kinds[name].draw(seed), kinds[name].run)
        append(chosen.results, chosen.seed, number, name, outcome)
        print(f"{number} {name} {seed} {outcome}", flush=True)
    found = outcomes(chosen.results)
    print(summary(found))
    sys.exit(any(outcome["verdict"] != AS_PROMISED for outcome in found))


if __name__ == "__main__":
    main()
