"""What the whole suite needs to run the same on one process and under ``mpirun -n N pytest``."""

from __future__ import annotations

import gc
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings

from hpcdist.comm.process_manager import launched_rank, launched_size
from tests.support.ranks_used import job_sizes
from tests.support.summary import Result, few_failed, read_results, shown_with_more, tried_again

RANK = launched_rank()
SIZE = launched_size() or 1
AGAIN_AT_MOST = 3
TOGETHER = Path(__file__).parent / "mpi"

# All ranks draw the same examples, none writes into a shared directory, and a slow machine is no
# failure.
settings.register_profile(
    "ranks",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ranks")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expect-ranks",
        type=int,
        metavar="N",
        help="fail unless the MPI world has N ranks, and tests that need N > 1 ranks have run",
    )
    parser.addoption(
        "--results",
        type=Path,
        metavar="FILE",
        help="add how each test ended, as lines of JSON, to FILE.RANK: tests/support/summary.py",
    )
    parser.addoption(
        "--unless-passed",
        type=Path,
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="leave out tests that have passed according to the results there, or there, ...",
    )
    parser.addoption(
        "--unless-shown",
        type=Path,
        metavar="DIRECTORY",
        help="leave out tests that have passed among more ranks, according to the results there, "
        "and used no more of them than there are here",
    )
    parser.addoption(
        "--again",
        type=Path,
        metavar="FILE",
        help="the few tests that failed in the run with these --results, if all of it ended",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ran(config.getoption("--expect-ranks")))
    if run := config.getoption("--again"):
        if not hasattr(config, "workerinput"):  # what pytest-xdist's workers raise is a traceback
            _expect_few_failed(run)
        config.pluginmanager.register(Again(run))
    results = config.getoption("--results")
    if results and not hasattr(config, "workerinput"):  # pytest-xdist's workers tell the main one
        config.pluginmanager.register(Results(results.with_name(f"{results.name}.{RANK or 0}")))
    if RANK > 0:
        # Rank 0 tells how it goes; the others only what fails, see below.
        config.pluginmanager.unregister(name="terminalreporter")
        quiet = TerminalReporter(config, io.StringIO())
        config.pluginmanager.register(quiet, "terminalreporter")


@pytest.fixture
def programs() -> Iterator[tuple[object, object]]:
    """Build into fresh Programs, names counted afresh; gives (main, startup)."""
    import hpcdist as fluid  # not before a test needs it: some look at what is imported

    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        yield main, startup


@pytest.fixture
def none_connected() -> Iterator[None]:
    """Let a test connect tables as a new process does, and leave none to the next one."""
    from hpcdist.fluid.declared import tables as library

    library._open.tables = None  # private: a process has one set of them
    yield
    library._open.tables = None  # private: a process has one set of them


def _expect_few_failed(run: Path) -> None:
    try:
        few_failed(run, AGAIN_AT_MOST)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # At once: the other ranks may be waiting for this one until the job is ended.
    if RANK > 0 and report.failed:
        print(f"rank {RANK}: FAILED {report.nodeid}\n{report.longreprtext}", file=sys.stderr)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules without tests of several ranks where these alone are asked for.

    To import all modules takes each rank half a minute.
    """
    if config.option.markexpr != "mpi" or collection_path.suffix != ".py":
        return None
    together = TOGETHER in collection_path.parents or "mark.mpi" in collection_path.read_text()
    return None if together else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what ranks test together on all of them, first, and share out all other tests.

    That is what has the marker ``mpi``, as all of tests/mpi has: ``-m mpi`` selects it.
    """
    for item in items:
        if TOGETHER in item.path.parents and not item.get_closest_marker("mpi"):
            item.add_marker("mpi")
    results = (r for each in config.getoption("--unless-passed") for r in read_results(each))
    left_out = {result.test for result in results if result.outcome == "passed"}
    if directory := config.getoption("--unless-shown"):
        left_out |= shown_with_more(directory, SIZE)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]
    if SIZE == 1:
        return
    together = [item for item in items if item.get_closest_marker("mpi")]
    alone = [item for item in items if item not in set(together)]
    mine = alone[RANK::SIZE]
    config.hook.pytest_deselected(items=[item for item in alone if item not in set(mine)])
    items[:] = together + mine


def pytest_collection_finish() -> None:
    """Keep what is imported out of garbage collections: a full one takes 200 ms otherwise."""
    gc.collect()
    gc.freeze()


class Again:
    """Leaves only those tests that failed before."""

    def __init__(self, run: Path) -> None:
        self._run = run

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        try:
            failed = tried_again(self._run, [item.nodeid for item in items])
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in failed])
        items[:] = [item for item in items if item.nodeid in failed]


class Results:
    """Notes how each test has ended."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._adapts = False

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        job_sizes.clear()
        # One that asks how many ranks there are may do something else with fewer.
        self._adapts = hasattr(getattr(item, "module", None), "mpi_world")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
        reason = reason.removeprefix("Skipped: ")
        used = 0 if self._adapts else max(job_sizes, default=0)
        seconds = round(report.duration, 3)
        ended = Result(report.nodeid, report.outcome, reason, seconds, used, SIZE)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(ended)) + "\n")


class Ran:
    """Counts what ran, so that a run in which everything was skipped is not taken for a success."""

    def __init__(self, expected: int | None) -> None:
        self._expected = expected
        self._passed = self._passed_with_mpi = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed += 1
            self._passed_with_mpi += "mpi" in report.keywords

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if SIZE > 1 and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # other ranks run them
        problem = self._problem()
        if problem and session.exitstatus == pytest.ExitCode.OK:
            print(f"\nrank {RANK}: {problem}", file=sys.stderr)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _problem(self) -> str:
        if self._expected is None:
            return ""
        from hpcdist.comm.world import mpi_world

        size = mpi_world().size
        if size != self._expected:
            return f"expected an MPI world of {self._expected} ranks, got {size}"
        if not self._passed or (size > 1 and not self._passed_with_mpi):
            return f"no test ran that needs {size} ranks"
        return ""
