from __future__ import annotations

from tests.ps_cases import PsTests
from tests.threads import run_in_world
from tests.transport_cases import Body


class TestLoopbackPs(PsTests):
    def run(self, size: int, body: Body) -> None:
        run_in_world(size, body)
