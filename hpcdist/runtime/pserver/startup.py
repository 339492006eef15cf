"""The startup Program of a trainer: it reads the parameters' first values from the servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.base.trace.position import here
from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.ps.plan import Plan
from hpcdist.runtime.pserver.bound_steps import staged
from hpcdist.runtime.pserver.connection import ServerConnection
from hpcdist.runtime.staging import in_order


def bind_startup(
    ops: Sequence[Operator], plan: Plan, connection: ServerConnection, binding: Binding
) -> list[Call | None]:
    """Return the calls that read the parameters, one request per server, at the last operator.

    The operators name what this Program needs: a test Program may need some parameters only.
    """
    staging = staged(connection, binding)
    named = {name for op in ops if op.type == "recv" for name in op.output("Out")}
    by_endpoint: dict[str, dict[str, Any]] = {}
    for route in plan.routes:
        for piece, endpoint in zip(route.slices, () if route.remote else route.endpoints):
            if piece.name in named:
                by_endpoint.setdefault(endpoint, {})[piece.name] = staging.host(piece.name)

    def read_all() -> None:
        here.doing = "reading the parameters' first values from the servers"
        for endpoint, arrays in by_endpoint.items():
            connection.reader.read(endpoint, arrays)
        here.doing = ""

    calls: list[Call | None] = [None] * len(ops)
    reading = [i for i, op in enumerate(ops) if op.type in ("recv", "fetch_barrier")]
    if reading:
        received = [name for arrays in by_endpoint.values() for name in arrays]
        calls[reading[-1]] = in_order(read_all, staging.up(received))
    return calls
