"""A synchronous step: packets leave as gradients become ready, the barrier waits for parameters."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ps.client import PsClient
from hpcdist.ps.plan import Plan
from hpcdist.runtime.pserver.bound_steps import BoundSteps, staged
from hpcdist.runtime.pserver.exchange_plan import (
    contiguous_groups,
    exchanges_of_this_turn,
    is_pushed,
    keys_of,
)
from hpcdist.runtime.staging import Staging, in_order


class Synchronous(BoundSteps):
    """Barriers stand in the Program: after the sends, and where parameters are received."""

    def contiguous(self) -> list[list[str]]:
        return contiguous_groups(exchanges_of_this_turn(self.plan))

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        staging = staged(self.connection, binding)
        client, parameters = self.connect(binding, staging)
        scheduled = {value.name for value in self.plan.scheduled}
        calls, packets, _ = bind_sends(ops, self.plan, client, staging, binding.arrays)
        for i, op in enumerate(ops):
            if op.type == "send_barrier":
                calls[i] = client.post_receives
            elif op.type == "fetch_barrier":
                calls[i] = in_order(client.wait_receives, staging.up(parameters))
            elif op.type == "recv" and scheduled.issuperset(op.output("Out")):
                calls[i] = self._ask(client, op, staging)
        first, end = _ending(ops, calls, packets, binding)
        if first < end:
            last = [number for i in range(first, end) for number in packets[i] or ()]
            calls[first:end] = [None] * (end - first)
            calls[end] = in_order(client.exchanger(last), staging.up(parameters))
        return calls

    def _ask(self, client: PsClient, op: Operator, staging: Staging) -> Call | None:
        """Return the call that reads the schedule's values of the step that has ended."""
        names = op.output("Out")
        arrays = {name: staging.host(name) for name in names}
        read = functools.partial(client.read, op.attrs["epmap"][0], arrays)
        return in_order(read, staging.up(names))

    def connect(self, binding: Binding, staging: Staging) -> tuple[PsClient, list[str]]:
        """Connect the arrays of a Program; return the client, and the parameters received."""
        blocks = [
            block for exchange in exchanges_of_this_turn(self.plan) for block in exchange.blocks
        ]
        names = [name for block in blocks for name in (block.gradient, block.parameter)]
        client = self.connection.connect(self.plan, staging.host, list(map(staging.host, names)))
        return client, [block.parameter for block in blocks]


def _ending(
    ops: Sequence[Operator],
    calls: Sequence[Call | None],
    packets: Sequence[Sequence[int] | None],
    binding: Binding,
) -> tuple[int, int]:
    """Return the range of operators that may be one exchange with the barrier that ends a step.

    They follow each other up to it, and do nothing but send packets and post receives.
    """
    ends = [i for i, op in enumerate(ops) if op.type == "fetch_barrier"]
    if len(ends) != 1:
        return 0, 0
    place = {id(op): i for i, op in enumerate(binding.program.global_block().ops)}
    first = end = ends[0]
    while first:
        before, op = ops[first - 1], ops[first]
        only = packets[first - 1] is not None or before.type == "send_barrier"
        adjacent = place.get(id(before), -2) + 1 == place.get(id(op), -1)
        if not adjacent or not (only or calls[first - 1] is None):
            break
        first -= 1
    return first, end


def bind_sends(
    ops: Sequence[Operator],
    plan: Plan,
    client: PsClient,
    staging: Staging,
    arrays: Mapping[str, Any],
) -> tuple[list[Call | None], list[list[int] | None], list[int]]:
    """Return each operator's call, its packets, and those that no operator's gradient completes.

    A packet leaves with the last of its gradients, a sparse gradient that is pushed by itself. An
    operator whose call does more than send packets has None in place of them.
    """
    waiting: list[int] = []  # by packet, as the client counts them: gradients that it still lacks
    packet_of: dict[str, int] = {}
    for exchange in exchanges_of_this_turn(plan):
        local = {block.key: block.gradient for block in exchange.blocks}
        for packet in exchange.gradients:
            names = [local[v.name] for v in packet.variables if v.name in local]
            packet_of.update(dict.fromkeys(names, len(waiting)))
            waiting.append(len(names))
    unsent = [number for number, lacking in enumerate(waiting) if not lacking]
    pushed = {
        name: (endpoint, key)
        for route in plan.routes
        if is_pushed(plan, route)
        for name, key, endpoint in zip(
            plan.local_gradients(route), keys_of(plan, route), route.endpoints
        )
    }
    calls: list[Call | None] = []
    packets: list[list[int] | None] = []
    for op in ops:
        names = op.input("X") if op.type == "send" else []
        complete = []
        for name in (name for name in names if name in packet_of):
            number = packet_of[name]
            waiting[number] -= 1
            if not waiting[number]:
                complete.append(number)
        pushes = [_push(client, *pushed[name], arrays[name]) for name in names if name in pushed]
        dense = staging.down(name for name in names if name in packet_of)
        calls.append(in_order(dense, sender(client, complete), *pushes))
        packets.append(complete if complete and not (dense or pushes) else None)
    return calls, packets, unsent


def _push(client: PsClient, endpoint: str, key: str, gradient: Any) -> Call:
    def push() -> None:
        sent = gradient if isinstance(gradient.rows, np.ndarray) else gradient.get()
        client.push_rows(endpoint, key, sent.rows, sent.value, beside_rows=sent.moves)

    return push


def sender(client: PsClient, packets: Sequence[int]) -> Call | None:
    """Return the call that starts these packets; None if there are none."""
    return in_order(*(functools.partial(client.send_packet, number) for number in packets))
