"""GEO: the exchange of a trainer with the servers, once in several local steps.

With x the trainer's parameters, y its copy of the servers' parameters, and N trainers: d = (x - y)
/ N is sent, y += d, the servers add d; their new value z is sent back, x += z - y, y = z. A lone
trainer's z is its y bit for bit, so x never changes: that is local training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import CommError
from hpcdist.comm.base import Array
from hpcdist.ps.client import PsClient
from hpcdist.ps.plan import Plan, Route
from hpcdist.runtime.pserver.connection import StepProtocol
from hpcdist.runtime.pserver.exchange_plan import delta_of

Copy = Callable[[], object]  # of parameters, from a device or to it


class GeoExchange:
    """A trainer's differences from the servers.

    ``trained`` are its parameters in host memory by name; ``synced`` are the servers', if they have
    others.
    ``pieces`` are what messages leave from and come to, by name; connect with them, then `attach`.
    ``exchanged`` (int64 [2]) is sent with every exchange: its number, and the steps since the last.
    """

    def __init__(
        self,
        plan: Plan,
        trained: Mapping[str, Array],
        exchanged: Array,
        synced: Mapping[str, Array] | None = None,
    ) -> None:
        self._push_every = plan.mode.push_every
        self._trainers = plan.trainers
        self._exchanged = exchanged
        self._steps = 0  # since the last exchange
        self._dense = [route for route in plan.routes if not route.sparse]
        self._sparse = [route for route in plan.routes if route.sparse]
        self._trained = dict(trained)
        self._synced = {name: array.copy() for name, array in (synced or trained).items()}
        self._delta = {r.parameter: np.zeros_like(trained[r.parameter]) for r in self._dense}
        self._landing = {r.parameter: np.zeros_like(trained[r.parameter]) for r in self._dense}
        self._touched = {
            r.parameter: np.zeros(len(trained[r.parameter]), bool) for r in self._sparse
        }
        self.pieces: dict[str, Array] = {}
        for route in self._dense:
            for piece in route.slices:
                rows = slice(piece.begin, piece.end)
                self.pieces[delta_of(piece.name)] = self._delta[route.parameter][rows]
                self.pieces[piece.name] = self._landing[route.parameter][rows]
        self._client: PsClient | None = None
        self._down: Copy | None = None
        self._up: Copy | None = None

    def attach(self, client: PsClient, down: Copy | None, up: Copy | None) -> None:
        """Exchange through ``client``; ``down`` and ``up`` copy parameters from and to a device."""
        self._client, self._down, self._up = client, down, up

    def end_step(self, looked_up: Mapping[str, Sequence[Array]]) -> None:
        """Note the rows of tables that a step has looked up; exchange when it is time."""
        for table, ids in looked_up.items():
            for batch in ids:
                self._touched[table][batch.reshape(-1)] = True
        self._steps += 1
        if self._steps >= self._push_every:
            self._exchange()

    def flush(self) -> None:
        """Exchange once more if there were steps since the last time."""
        if self._steps:
            self._exchange()

    def catch_up(self, on_servers: Mapping[str, Array]) -> None:
        """Take over what the servers hold: others have exchanged since this trainer has."""
        if self._down is not None:
            self._down()
        for name, values in on_servers.items():
            # Where nothing has changed, adding a difference of 0 might still change a sign of 0.
            changed = np.flatnonzero(values != self._synced[name])
            trained, synced = self._trained[name].reshape(-1), self._synced[name].reshape(-1)
            trained[changed] += values.reshape(-1)[changed] - synced[changed]
            synced[changed] = values.reshape(-1)[changed]
        if self._up is not None:
            self._up()

    def restart(self, on_servers: Mapping[str, Array]) -> None:
        """Begin anew: the parameters were loaded, and the servers hold these."""
        self._steps = 0
        for touched in self._touched.values():
            touched[:] = False
        for name, values in on_servers.items():
            np.copyto(self._synced[name], values)

    # -- inside ------------------------------------------------------------------------------
    def _exchange(self) -> None:
        if self._client is None:
            raise CommError("GEO training is not connected to the parameter servers yet")
        if self._down is not None:
            self._down()
        client = self._client
        self._exchanged[1] = self._steps
        client.post_receives()
        for route in self._dense:
            self._take_difference(route.parameter)
        for packet in range(len(client.packets)):
            client.send_packet(packet)
        for route in self._sparse:
            self._push(client, route)
        client.wait_receives()
        for route in self._dense:
            name = route.parameter
            self._take_over(name, slice(None), self._landing[name])
        for route in self._sparse:
            self._pull(client, route)
        self._exchanged[0] += 1
        self._steps = 0
        if self._up is not None:
            self._up()

    def _take_difference(self, name: str) -> None:
        delta, synced = self._delta[name], self._synced[name]
        np.subtract(self._trained[name], synced, out=delta)
        delta /= self._trainers
        synced += delta

    def _push(self, client: PsClient, route: Route) -> None:
        """Send each server its rows that were looked up, or that moved, though there be none."""
        trained, synced = self._trained[route.parameter], self._synced[route.parameter]
        touched = self._touched[route.parameter]
        if route.moved_whole:
            touched |= (trained != synced).reshape(len(touched), -1).any(1)
        for piece, endpoint in zip(route.slices, route.endpoints):
            rows = piece.begin + np.flatnonzero(touched[piece.begin : piece.end])
            delta = (trained[rows] - synced[rows]) / trained.dtype.type(self._trainers)
            synced[rows] += delta
            client.push_rows(endpoint, delta_of(piece.name), rows - piece.begin, delta)
        touched[:] = False

    def _pull(self, client: PsClient, route: Route) -> None:
        """Receive the rows that any trainer has changed since this trainer's last request."""
        for piece, endpoint in zip(route.slices, route.endpoints):
            like = self._trained[route.parameter][piece.begin : piece.end]
            rows, values = client.changed_rows(endpoint, piece.name, delta_of(piece.name), like)
            self._take_over(route.parameter, piece.begin + rows, values)

    def _take_over(self, name: str, rows: Any, values: Array) -> None:
        synced = self._synced[name]
        self._trained[name][rows] += values - synced[rows]
        synced[rows] = values


def values_on_servers(
    plan: Plan, read: Callable[[str, dict[str, Array]], None]
) -> dict[str, Array]:
    """Return the parameters as the servers hold them; ``read(endpoint, arrays)`` fills arrays."""
    values = {r.parameter: np.empty(r.shape, r.dtype) for r in plan.routes}
    for endpoint in plan.endpoints:
        read(
            endpoint,
            {
                piece.name: values[route.parameter][piece.begin : piece.end]
                for route in plan.routes
                for piece, home in zip(route.slices, route.endpoints)
                if home == endpoint
            },
        )
    return values


class GeoStep(StepProtocol):
    """Trainers update by themselves; the send that ends a step exchanges when it is time."""

    _geo: GeoExchange | None = None
    _restored: dict[str, Array] | None = None  # what the servers had loaded

    def connect(
        self,
        trained: Mapping[str, Array],
        down: Copy | None = None,
        up: Copy | None = None,
    ) -> GeoExchange:
        """Connect at the first step, and return what ends each: `GeoExchange.end_step`."""
        geo = self._geo or GeoExchange(self.plan, trained, self.connection.step, self._restored)
        client = self.connection.connect(self.plan, geo.pieces.__getitem__, list(trained.values()))
        if self._geo is None:
            geo.attach(client, down, up)
            self._geo = geo
        return geo

    def settle(self) -> None:
        self.flush()

    def flush(self) -> None:
        if self._geo is not None:
            self._geo.flush()

    def catch_up(self) -> None:
        if self._geo is not None:
            self._geo.catch_up(self._values_on_servers())

    def resume(self) -> None:
        self._restored = self._values_on_servers()
        if self._geo is not None:
            self._geo.restart(self._restored)

    def _values_on_servers(self) -> dict[str, Array]:
        return values_on_servers(self.plan, self.connection.current().read)
