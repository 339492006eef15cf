from __future__ import annotations

from hpcdist.comm import loopback
from tests.ps_cases import PsTests
from tests.threads import run_threads
from tests.transport_cases import Body


class TestLoopbackPs(PsTests):
    def run(self, size: int, body: Body) -> None:
        run_threads([lambda t=t: body(t) for t in loopback.world(size)])
