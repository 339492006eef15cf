"""Groups over MPI."""

from __future__ import annotations

import pytest

from hpcdist.comm.host_collective import HostCollective
from tests.cases.collective import Body, HostCollectiveTests
from tests.support.mpi_ranks import run_ranks

pytestmark = pytest.mark.mpi


class TestMpiCollective(HostCollectiveTests):
    def run(self, size: int, body: Body) -> None:
        run_ranks(size, lambda t: body(HostCollective(t)))
