"""What servers and trainers of parameter-server tests do, and what they should have."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hpcdist.comm.base import Array, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.ps.client import PsClient
from hpcdist.ps.messages import Hello
from hpcdist.ps.packet_exchange import ServerArrays
from hpcdist.ps.packets import (
    Packet,
    VarSpec,
    aligned_bytes,
    layout,
    plan_packets,
    twin_packets,
)
from hpcdist.ps.server import PsServer
from tests.cases.transport import LIMIT_S

RATE = np.float32(0.1)

# By server: a packet of two, one that travels alone, one that is packed again, of another dtype.
SHAPES = (
    {"w": ((13, 1), "float32"), "b": ((1,), "float32")},
    {"big": ((300, 70), "float32"), "c": ((3,), "float64"), "d": ((5,), "float32")},
    {"e": ((40,), "float32")},
)


def cluster_of(trainers: int, servers: int) -> Cluster:
    """Return trainers first, then servers."""
    ranks = range(trainers + servers)
    return Cluster(tuple(ranks[:trainers]), tuple(ranks[trainers:]))


def specs_of(server: int) -> list[VarSpec]:
    """Return the gradients of one server."""
    return [VarSpec(f"{n}@GRAD", shape, dtype) for n, (shape, dtype) in SHAPES[server].items()]


def parameter_of(spec: VarSpec) -> str:
    """Return the parameter that a gradient belongs to."""
    return spec.name.removesuffix("@GRAD")


def packets_of(specs: list[VarSpec]) -> tuple[tuple[Packet, ...], tuple[Packet, ...]]:
    """Return gradient packets and the parameter packets that answer them."""
    gradients = plan_packets(specs)
    return gradients, twin_packets(gradients, {s.name: parameter_of(s) for s in specs})


def gradient(spec: VarSpec, trainer: int, step: int) -> Array:
    """Return what ``trainer`` computes at ``step``: numbers whose sum depends on its order."""
    count = int(np.prod(spec.shape))
    values = np.sin(np.arange(count) + 7.0 * trainer + 0.3 * step + len(spec.name))
    return (values * 10.0 ** (trainer - 1)).astype(spec.dtype).reshape(spec.shape)


def expected_values(spec: VarSpec, steps: list[int], upto: int) -> Array:
    """Return the parameter after ``upto`` steps, trainer k taking part in the first steps[k]."""
    value = np.ones(spec.shape, spec.dtype)
    for step in range(min(upto, max(steps))):
        rows = [gradient(spec, k, step) for k, n in enumerate(steps) if step < n]
        update(value, np.stack(rows))
    return value


def update(value: Array, rows: Array) -> None:
    """Subtract the mean of ``rows``, summed in their order, times the rate."""
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    value -= total / np.asarray(len(rows), value.dtype) * RATE


@dataclass
class Served:
    """One server over its whole life, and what its callbacks saw."""

    transport: Transport
    cluster: Cluster
    deadline_s: float = LIMIT_S
    expected_fingerprint: str = "f"
    goes_on: bool = False  # when trainers die
    deaths: list[tuple[int, int]] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    updates: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def serve(self) -> dict[str, Array]:
        """Serve until all trainers have left; return the parameters."""
        index = self.cluster.role_of(self.transport.rank).index
        gradients, parameters = packets_of(specs_of(index))
        arrays = {
            s.name: np.ones(s.shape, s.dtype) for packet in parameters for s in packet.variables
        }
        server = PsServer(
            self.transport,
            self.cluster,
            index,
            expected=Hello(
                len(self.cluster.trainers), True, self.expected_fingerprint, gradients, parameters
            ),
            arrays=arrays,
            deadline_s=self.deadline_s,
            on_death=(lambda k, steps: self.deaths.append((k, steps))) if self.goes_on else None,
        )

        def on_packet(packet: int, contributors: tuple[int, ...]) -> None:
            self.updates.append((packet, contributors))
            for spec in gradients[packet].variables:
                update(arrays[parameter_of(spec)], server.gradients[spec.name][list(contributors)])

        server.serve(self.begun.append, lambda packet, who: [partial(on_packet, packet, who)])
        return arrays


def server_arrays(endpoint, gradients, parameters, arrays) -> ServerArrays:
    where = {"gradient_arrays": arrays, "parameter_arrays": arrays}
    return ServerArrays(endpoint, gradients, parameters, **where)


class Trained:
    """One trainer: its arrays, either each on its own or laid out as the packets want."""

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        laid_out: bool = True,
        deadline_s: float = LIMIT_S,
        fingerprint: str = "f",
        sync_mode: bool = True,
    ) -> None:
        self.cluster = cluster
        self.trainer = cluster.role_of(transport.rank).index
        self.client = PsClient(
            transport,
            cluster,
            self.trainer,
            fingerprint=fingerprint,
            sync_mode=sync_mode,
            deadline_s=deadline_s,
        )
        self.arrays: dict[str, Array] = {}
        self.specs = [spec for k in range(len(cluster.servers)) for spec in specs_of(k)]
        self.plans = []
        for k, endpoint in enumerate(cluster.endpoints):
            gradients, parameters = packets_of(specs_of(k))
            for packets in (gradients, parameters):
                self.arrays |= arena_views(packets) if laid_out else own_arrays(packets)
            self.plans.append(server_arrays(endpoint, gradients, parameters, self.arrays))

    def startup(self) -> None:
        """Read all parameters from their servers."""
        for k, endpoint in enumerate(self.cluster.endpoints):
            names = [parameter_of(spec) for spec in specs_of(k)]
            self.client.read(endpoint, {name: self.arrays[name] for name in names})

    def step(self, backwards: bool = False) -> None:
        """Compute and exchange once, the packets in either order."""
        for spec in self.specs:
            self.arrays[spec.name][...] = gradient(spec, self.trainer, self.client.step)
        self.client.post_receives()
        order = range(len(self.client.packets))
        for index in reversed(order) if backwards else order:
            self.client.send_packet(index)
        self.client.wait_sends()
        self.client.wait_receives()

    def check(self, steps: list[int]) -> None:
        """Compare all parameters, bit by bit, with the closed form."""
        for spec in self.specs:
            expected = expected_values(spec, steps, self.client.step)
            got = self.arrays[parameter_of(spec)]
            assert got.tobytes() == expected.tobytes(), (spec.name, self.client.step)


def arena_views(packets: tuple[Packet, ...]) -> dict[str, Array]:
    """Return the variables as views of one arena in which every packet is contiguous."""
    offsets, nbytes = layout(packets)
    arena = aligned_bytes((nbytes,))
    views = {}
    for packet, begin in zip(packets, offsets, strict=True):
        views |= packet.views(arena[begin : begin + packet.nbytes])
    return views


def own_arrays(packets: tuple[Packet, ...]) -> dict[str, Array]:
    """Return an array of its own for each variable."""
    return {s.name: np.zeros(s.shape, s.dtype) for packet in packets for s in packet.variables}
