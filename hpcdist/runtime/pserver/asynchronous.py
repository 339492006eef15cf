"""An asynchronous step: at its end the trainer receives the answers to its packets."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ps.client import PsClient
from hpcdist.runtime.pserver.bound_steps import last_of, staged
from hpcdist.runtime.pserver.synchronous import Synchronous, bind_sends
from hpcdist.runtime.staging import in_order


class Asynchronous(Synchronous):
    """No barriers stand in the Program: every exchange is numbered, and answered by itself."""

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        staging = staged(self.connection, binding)
        client, parameters = self.connect(binding, staging)
        calls, packets, unsent = bind_sends(ops, self.plan, client, staging, binding.arrays)
        last = last_of(ops)
        if (own := packets[last]) is not None:  # its call does nothing but send these
            calls[last], unsent = None, [*own, *unsent]
        end = self._end_of(client, unsent)
        calls[last] = in_order(calls[last], end, staging.up(parameters))
        return calls

    def _end_of(self, client: PsClient, unsent: Sequence[int]) -> Call:
        step, exchange = self.connection.step, client.exchanger(unsent)

        def end_step() -> None:
            exchange()
            step[0] += 1

        return end_step
