"""GEO's steps of a Program: the send that ends one exchanges when it is time."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from hpcdist.executor.control import Binding
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import Call
from hpcdist.runtime.pserver.bound_steps import BoundSteps, staged
from hpcdist.runtime.pserver.geo_exchange import GeoExchange, GeoStep
from hpcdist.runtime.staging import Staging, in_order, rebound


class BoundGeo(GeoStep, BoundSteps):
    """Trainers update by themselves; the send that ends a step exchanges when it is time."""

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        staging = staged(self.connection, binding)
        names = [route.parameter for route in self.plan.routes]
        down, up = staging.down(names), staging.up(names)
        trained = {name: staging.host(name) for name in names}
        if down is not None and self._geo is None:
            down()
        geo = self.connect(trained, down, up)
        (signal,) = (op for op in ops if op.type == "send")
        end = _bind_end(geo, signal, binding)
        return [end if op is signal else None for op in ops]


def _bind_end(geo: GeoExchange, signal: Operator, binding: Binding) -> Call:
    """Return the call that ends a trainer's step: ``signal`` names the ids it looked up."""

    def make() -> Call | None:
        staging = Staging(binding.arrays, binding.backend, {})
        looked_up: dict[str, list[np.ndarray]] = {}
        for ids, table in zip(signal.input("X"), signal.attrs["send_varnames"]):
            looked_up.setdefault(table, []).append(staging.host(ids))
        end = functools.partial(geo.end_step, looked_up)
        return in_order(staging.down(signal.input("X")), end)

    return rebound(binding, make)
