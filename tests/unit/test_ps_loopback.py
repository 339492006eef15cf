from __future__ import annotations

from tests.cases.ps import PsTests
from tests.cases.transport import Body
from tests.support.threads import run_in_world


class TestLoopbackPs(PsTests):
    def run(self, size: int, body: Body) -> None:
        run_in_world(size, body)
