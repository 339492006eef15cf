from __future__ import annotations

import pytest

from tests.mpi_ranks import run_ranks
from tests.ps_cases import PsTests
from tests.transport_cases import Body

pytestmark = pytest.mark.mpi


class TestMpiPs(PsTests):
    def run(self, size: int, body: Body) -> None:
        run_ranks(size, body)
