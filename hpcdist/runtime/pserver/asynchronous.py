"""An asynchronous step: at its end the trainer receives the answers to its packets."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ps.client import PsClient
from hpcdist.runtime.pserver.bound_steps import last_of, staged
from hpcdist.runtime.pserver.synchronous import Synchronous, bind_sends, sender
from hpcdist.runtime.staging import in_order


class Asynchronous(Synchronous):
    """No barriers stand in the Program: every exchange is numbered, and answered by itself."""

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        staging = staged(self.connection, binding)
        client, parameters = self.connect(binding, staging)
        calls, unsent = bind_sends(ops, self.plan, client, staging, binding.arrays)
        last = last_of(ops)
        end = self._end_of(client)
        calls[last] = in_order(calls[last], sender(client, unsent), end, staging.up(parameters))
        return calls

    def _end_of(self, client: PsClient) -> Call:
        step = self.connection.step

        def end_step() -> None:
            client.post_receives()
            client.wait_receives()
            step[0] += 1

        return end_step
