"""What the whole suite needs to run the same on one process and under ``mpirun -n N pytest``."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings

from hpcdist.launch.guard import launched_rank, launched_size

RANK = launched_rank(os.environ)
SIZE = launched_size(os.environ) or 1
TOGETHER = Path(__file__).parent / "mpi"  # and what is marked so

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


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ran(config.getoption("--expect-ranks")))
    if RANK > 0:
        # Rank 0 tells how it goes; the others only what fails, see below.
        config.pluginmanager.unregister(name="terminalreporter")
        quiet = TerminalReporter(config, io.StringIO())
        config.pluginmanager.register(quiet, "terminalreporter")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # At once: the other ranks may be waiting for this one until the job is ended.
    if RANK > 0 and report.failed:
        print(f"rank {RANK}: FAILED {report.nodeid}\n{report.longreprtext}", file=sys.stderr)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what ranks test together on all of them, first, and share out all other tests."""
    if SIZE == 1:
        return
    together = [i for i in items if TOGETHER in i.path.parents or i.get_closest_marker("mpi")]
    alone = [item for item in items if item not in set(together)]
    mine = alone[RANK::SIZE]
    config.hook.pytest_deselected(items=[item for item in alone if item not in set(mine)])
    items[:] = together + mine


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
        from hpcdist.comm.mpi import MpiTransport

        size = MpiTransport.world().size
        if size != self._expected:
            return f"expected an MPI world of {self._expected} ranks, got {size}"
        if not self._passed or (size > 1 and not self._passed_with_mpi):
            return f"no test ran that needs {size} ranks"
        return ""
