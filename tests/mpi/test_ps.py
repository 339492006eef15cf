from __future__ import annotations

import pytest

from tests.cases.ps import PsTests
from tests.cases.transport import Body
from tests.support.mpi_ranks import run_ranks

pytestmark = pytest.mark.mpi


class TestMpiPs(PsTests):
    def run(self, size: int, body: Body) -> None:
        run_ranks(size, body)
