"""One table of what has run in several runs of the tests, and of what has been skipped in all.

python -m tests.support.summary DIRECTORY ...          # results that pytest --results has written
python -m tests.support.summary --strict DIRECTORY ... # exit 1 if a skip is not to be expected here
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

AGAIN = "-again"  # how the second try of a run is called
SLOWEST = 10  # files that are printed
WORST_FIRST = ("failed", "passed", "skipped")


@dataclass(frozen=True)
class Result:
    """How a test has ended, after how long; the reason is that of a skip."""

    test: str
    outcome: str  # passed, failed, skipped
    reason: str
    seconds: float = 0.0  # of its own, without what is set up for several
    used: int = 0  # ranks, by a test that does not ask how many there are; else 0
    world: int = 1  # ranks that there were


@dataclass(frozen=True)
class Expected:
    """Skips for reasons like this are expected where the condition holds."""

    pattern: str
    holds: Callable[[], bool]


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


EXPECTED = (
    # Combinations of parameters that there cannot be.
    Expected("takes no sparse gradients|distributed tables live on servers", lambda: True),
    Expected("cupy|no GPU|NCCL", lambda: not Path("/dev/nvidia0").exists()),
    Expected("h5py was built without MPI", lambda: True),  # PyPI's always are
    Expected("HPCDIST_DATA_HOME", lambda: not os.environ.get("HPCDIST_DATA_HOME")),
    Expected("PADDLEREC", lambda: not os.environ.get("PADDLEREC")),
    Expected("node: apt-get", lambda: shutil.which("node") is None),
    Expected("mkdocs", lambda: importlib.util.find_spec("mkdocs") is None),  # `make site` builds it
    Expected("torch", lambda: importlib.util.find_spec("torch") is None),
    Expected("Slurm|slurmctld|root|browser", lambda: not can_install()),
)


def read_results(directory: Path) -> Iterator[Result]:
    """Yield what all files of a directory hold."""
    for file in sorted(directory.iterdir()):
        yield from read_file(file)


def read_file(file: Path) -> list[Result]:
    return [Result(**json.loads(line)) for line in file.read_text().splitlines()]


def shown_with_more(directory: Path, ranks: int) -> set[str]:
    """Return the tests that have passed among more ranks than these, and used no more."""
    results = read_results(directory) if directory.exists() else ()
    return {r.test for r in results if r.outcome == "passed" and 0 < r.used <= ranks < r.world}


def by_run(directory: Path) -> dict[str, dict[str, Result]]:
    """Return run -> test -> how it has ended; of several ranks the worst counts."""
    runs: dict[str, dict[str, Result]] = {}
    for file in sorted(directory.iterdir()):
        results = runs.setdefault(file.name.rpartition(".")[0], {})
        for result in read_file(file):
            before = results.setdefault(result.test, result)
            if WORST_FIRST.index(result.outcome) < WORST_FIRST.index(before.outcome):
                results[result.test] = result
    return runs


def by_rank(run: Path) -> list[list[Result]]:
    """Return how the tests of a run (DIRECTORY/NAME) have ended on each of its ranks."""
    files = [file for file in run.parent.iterdir() if file.name.rpartition(".")[0] == run.name]
    return [read_file(file) for file in files]


def few_failed(run: Path, at_most: int) -> set[str]:
    """Return which tests failed on some rank; ValueError if none did, or more than ``at_most``."""
    failed = {r.test for results in by_rank(run) for r in results if r.outcome == "failed"}
    if not 0 < len(failed) <= at_most:
        raise ValueError(f"{len(failed)} tests failed: from 1 to {at_most} are tried again")
    return failed


def tried_again(run: Path, tests: Iterable[str]) -> list[str]:
    """Return which of these tests failed on some rank; ValueError if one did not end on some."""
    tests = list(tests)
    ranks = by_rank(run)
    ended = set.intersection(*({r.test for r in results} for results in ranks)) if ranks else set()
    if unended := [test for test in tests if test not in ended]:
        raise ValueError(
            f"the run ended before {len(unended)} of its tests had, {unended[0]} among them: "
            "nothing is tried again"
        )
    failed = {r.test for results in ranks for r in results if r.outcome == "failed"}
    return [test for test in tests if test in failed]


def never_run(runs: Iterable[Mapping[str, Result]]) -> Counter[str]:
    """Return how many tests were skipped for which reason in all runs that have them."""
    ran: set[str] = set()
    reasons: dict[str, str] = {}
    for results in runs:
        ran |= {test for test, result in results.items() if result.outcome != "skipped"}
        reasons |= {test: r.reason for test, r in results.items() if r.outcome == "skipped"}
    return Counter(reason for test, reason in reasons.items() if test not in ran)


def slowest(runs: Iterable[Mapping[str, Result]], count: int) -> list[tuple[str, float]]:
    """Return the files whose tests took longest in all runs together, in seconds."""
    spent: Counter[str] = Counter()
    for results in runs:
        for test, result in results.items():
            spent[test.partition("::")[0]] += round(1000 * result.seconds)
    return [(file, ms / 1000) for file, ms in spent.most_common(count)]


def is_expected(reason: str) -> bool:
    return any(re.search(each.pattern, reason) and each.holds() for each in EXPECTED)


def main() -> None:
    """Print the table; exit 1 if asked to be strict and a skip is not expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("directory", nargs="+", type=Path)
    options = parser.parse_args()
    all_runs = []
    print(f"{'run':28} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for directory in options.directory:
        for run, results in by_run(directory).items():
            all_runs.append(results)
            count = Counter(result.outcome for result in results.values())
            numbers = (count[outcome] for outcome in ("passed", "failed", "skipped"))
            print("{:28} {:7} {:7} {:8}".format(run, *numbers))
            if run.endswith(AGAIN):
                passed = [test for test, r in results.items() if r.outcome == "passed"]
                print(*(f"  passed only when tried again: {test}" for test in passed), sep="\n")
    print("the slowest files, in seconds:")
    for file, seconds in slowest(all_runs, SLOWEST):
        print(f"{seconds:6.0f}  {file}")
    skipped = never_run(all_runs)
    unexpected = [reason for reason in skipped if not is_expected(reason)] if options.strict else []
    print("skipped in every run:" if skipped else "no test was skipped in every run")
    for reason, number in sorted(skipped.items()):
        print(f"{number:6}  {reason}{'   <- NOT EXPECTED HERE' * (reason in unexpected)}")
    if unexpected:
        sys.exit("tests were skipped that can run on this machine")


if __name__ == "__main__":
    main()
