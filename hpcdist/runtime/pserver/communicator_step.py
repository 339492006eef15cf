"""A step with the communicator: at its end full gradients are passed to it, which cuts them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import CommError
from hpcdist.comm.base import Array
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ops.embedding.selected_rows import SelectedRows
from hpcdist.runtime.pserver.bound_steps import BoundSteps, last_of, staged
from hpcdist.runtime.pserver.communicator import Communicator, check_answered, read_settings
from hpcdist.runtime.pserver.row_partition import cuts_of
from hpcdist.runtime.staging import in_order


class CommunicatorStep(BoundSteps):
    """Gradients are queued and merged; parameters are taken over between two steps."""

    _communicator: Communicator | None = None

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        arrays, cuts = binding.arrays, cuts_of(self.plan)
        staging = staged(self.connection, binding)
        trained = {c.parameter: staging.host(c.parameter) for c in cuts if c.parameters}
        communicator = self._communicator or self._new_communicator(trained)
        client = self.connection.connect(
            self.plan, communicator.pieces.__getitem__, list(trained.values())
        )
        if self._communicator is None:
            communicator.attach(client, staging.up(trained))
            self._communicator = communicator
        dense = {c.gradient: staging.host(c.gradient) for c in cuts if c.parameters}
        rows: dict[str, SelectedRows] = {}  # a sparse gradient's memory is another's after its send
        end = functools.partial(communicator.end_step, dense, rows)
        pushed = {c.gradient for c in cuts if not c.parameters}
        calls: list[Call | None] = [None] * len(ops)
        for i, op in enumerate(ops):
            if op.type == "send":
                taken = [_take(n, arrays[n], rows) for n in op.input("X") if n in pushed]
                calls[i] = in_order(*taken)
        last = last_of(ops)
        calls[last] = in_order(calls[last], staging.down(dense), end)
        return calls

    def _new_communicator(self, trained: dict[str, Array]) -> Communicator:
        mode = self.plan.mode
        settings = read_settings(joint=mode.joint)
        if mode.dc_asgd:
            check_answered(settings)
        if settings.queue > 1 and self.plan.tables:  # rows of a step would be newer than the rest
            raise CommError(
                f"table {self.plan.tables[0].parameter!r} has is_distributed=True: its gradients "
                "are sent at every step, so those of other parameters must not wait: set CPU_NUM "
                "or FLAGS_communicator_send_queue_size to 1"
            )
        connection = self.connection
        threads = connection.transport.concurrent
        return Communicator(cuts_of(self.plan), trained, settings, connection.step, threads=threads)

    def settle(self) -> None:
        if self._communicator is not None:
            self._communicator.settle()

    def flush(self) -> None:
        if self._communicator is not None:
            self._communicator.flush()


def _take(name: str, gradient: Any, rows: dict[str, SelectedRows]) -> Call:
    """Return the call that copies a sparse gradient into ``rows``, from a device if need be."""

    def take() -> None:
        on_host = isinstance(gradient.rows, np.ndarray)
        rows[name] = gradient.copy() if on_host else gradient.get()

    return take
