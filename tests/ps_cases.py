"""What trainers and servers must do together: one class, inherited per transport."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from hpcdist.comm.base import Array, Transport
from hpcdist.comm.cluster import PSERVER, Cluster
from hpcdist.errors import CommError, DeadlineError
from hpcdist.ps.client import PsClient
from hpcdist.ps.messages import REPLY_TAG, VALUE_TAG, Hello, MessageKind, specs_payload
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
from hpcdist.ps.wire import receive_message
from tests.transport_cases import LIMIT_S, Body

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

        server.serve(self.begun.append, on_packet)
        return arrays


def _arrays(endpoint, gradients, parameters, arrays) -> ServerArrays:
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
    ) -> None:
        self.cluster = cluster
        self.trainer = cluster.role_of(transport.rank).index
        self.client = PsClient(
            transport, cluster, self.trainer, fingerprint="f", deadline_s=deadline_s
        )
        self.arrays: dict[str, Array] = {}
        self.specs = [spec for k in range(len(cluster.servers)) for spec in specs_of(k)]
        self.plans = []
        for k, endpoint in enumerate(cluster.endpoints):
            gradients, parameters = packets_of(specs_of(k))
            for packets in (gradients, parameters):
                self.arrays |= arena_views(packets) if laid_out else own_arrays(packets)
            self.plans.append(_arrays(endpoint, gradients, parameters, self.arrays))

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


class PsTests:
    """Cases over worlds of 2 to 4 ranks; a subclass says how a body runs on every rank."""

    def run(self, size: int, body: Body) -> None:
        """Run ``body`` on each of ``size`` ranks; raise if it raised on any of them."""
        raise NotImplementedError

    @pytest.mark.parametrize("laid_out", [True, False], ids=["in-place", "staged"])
    @pytest.mark.parametrize(
        ("trainers", "servers"), [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (3, 1)]
    )
    def test_steps_equal_the_closed_form(self, trainers: int, servers: int, laid_out: bool) -> None:
        steps = [4] * trainers

        def body(t: Transport) -> None:
            cluster = cluster_of(trainers, servers)
            if cluster.role_of(t.rank).kind == PSERVER:
                server = Served(t, cluster)
                server.serve()
                assert server.begun == [0, 1, 2, 3]
                assert {who for _, who in server.updates} == {tuple(range(trainers))}
                return
            trained = Trained(t, cluster, laid_out)
            trained.startup()
            assert (trained.arrays["w"] == 1).all()
            trained.client.connect(trained.plans)
            assert all(
                b.in_place == laid_out or len(b.packet.variables) == 1
                for b in trained.client._gradients + trained.client._parameters
            )
            for step in range(4):
                trained.step(backwards=(step + trained.trainer) % 2 == 1)
                trained.check(steps)
            trained.client.close()
            trained.client.close()

        self.run(trainers + servers, body)

    @pytest.mark.parametrize("steps", [[2, 5], [5, 2], [0, 3], [3, 0], [0, 0]])
    def test_trainers_leave_at_different_steps(self, steps: list[int]) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(2, 2)
            if cluster.role_of(t.rank).kind == PSERVER:
                server = Served(t, cluster)
                server.serve()
                assert server.begun == list(range(max(steps)))
                return
            trained = Trained(t, cluster)
            trained.startup()
            if steps[trained.trainer]:
                trained.client.connect(trained.plans)
            for _ in range(steps[trained.trainer]):
                trained.step()
                trained.check(steps)
            trained.client.close()

        self.run(4, body)

    def test_a_trainer_may_connect_and_leave_without_a_step(self) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(2, 1)
            if cluster.role_of(t.rank).kind == PSERVER:
                Served(t, cluster).serve()
                return
            trained = Trained(t, cluster)
            trained.client.connect(trained.plans)
            if trained.trainer == 0:
                trained.step()
                trained.check([1, 0])
            trained.client.close()

        self.run(3, body)

    def test_closing_in_the_middle_of_a_step_counts_what_was_sent(self) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(2, 2)
            if cluster.role_of(t.rank).kind == PSERVER:
                server = Served(t, cluster)
                server.serve()
                by_packet = dict.fromkeys(p for p, _ in server.updates)
                assert [server.updates.count((p, (0, 1))) for p in by_packet] == (
                    [2] if len(by_packet) == 1 else [1, 1]
                )
                return
            trained = Trained(t, cluster)
            trained.client.connect(trained.plans)
            trained.step()
            if trained.trainer == 1:
                for spec in trained.specs:
                    trained.arrays[spec.name][...] = gradient(spec, 1, 1)
                trained.client.send_packet(0)
                trained.client.close()
                spec = trained.specs[0]
                expected = expected_values(spec, [2, 2], 2)
                assert trained.arrays["w"].tobytes() == expected.tobytes()
            else:
                trained.step()
                trained.step()
                trained.client.close()
                for spec in trained.specs:
                    in_first = spec in trained.client.packets[0].variables
                    expected = expected_values(spec, [3, 2 if in_first else 1], 3)
                    got = trained.arrays[parameter_of(spec)]
                    assert got.tobytes() == expected.tobytes(), spec.name

        self.run(4, body)

    def test_reads_between_steps_are_of_whole_steps(self) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(2, 2)
            if cluster.role_of(t.rank).kind == PSERVER:
                Served(t, cluster).serve()
                return
            trained = Trained(t, cluster)
            trained.client.connect(trained.plans)
            for _ in range(3):
                trained.step()
                for array in trained.arrays.values():
                    array[...] = -1
                if trained.trainer == 0:  # the other one is in the next step already
                    trained.startup()
                    trained.check([3, 3])
            trained.client.close()

        self.run(4, body)

    def test_a_read_waits_for_the_end_of_a_step_that_is_half_applied(self) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(1, 2)
            if cluster.role_of(t.rank).kind == PSERVER:
                Served(t, cluster).serve()
                return
            trained = Trained(t, cluster)
            client, server = trained.client, cluster.servers[1]
            client.connect(trained.plans)
            for spec in trained.specs:
                trained.arrays[spec.name][...] = gradient(spec, 0, 0)
            client.post_receives()
            client.send_packet(1)  # big@GRAD alone: c and d of the same server are still old
            t.wait_all([client._receives[1]], lambda: "waiting for big", LIMIT_S)
            c = VarSpec("c", (3,), "float64")
            got = np.zeros(3)
            value = t.irecv(got, server, VALUE_TAG)
            asked = client._post(cluster.endpoints[1], MessageKind.READ, specs_payload([c]))
            t.wait_all(asked, lambda: "asking for c", LIMIT_S)
            with pytest.raises(DeadlineError):
                t.wait_all([value], lambda: "waiting for c", 0.2)
            assert t.iprobe(server, REPLY_TAG) is None
            client.send_packet(0)
            client.send_packet(2)
            client.wait_receives()
            header, _ = receive_message(t, server, REPLY_TAG, lambda: "waiting for c", LIMIT_S)
            assert header.kind is MessageKind.VALUE
            t.wait_all([value], lambda: "waiting for c", LIMIT_S)
            assert got.tobytes() == expected_values(replace(c, name="c@GRAD"), [1], 1).tobytes()
            client.close()

        self.run(3, body)

    def test_a_read_of_something_else_is_refused(self) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(1, 1)
            if cluster.role_of(t.rank).kind == PSERVER:
                Served(t, cluster).serve()
                return
            client = Trained(t, cluster).client
            ps0 = cluster.endpoints[0]
            with pytest.raises(CommError, match=r"trainer 0.*server 0.*no variable x"):
                client.read(ps0, {"x": np.zeros(3)})
            with pytest.raises(CommError, match=r"holds w as float32\[13, 1\], expected w float64"):
                client.read(ps0, {"w": np.zeros((13, 1))})
            client.read(ps0, {})
            got = np.zeros(1, np.float32)
            client.read(ps0, {"b": got})
            assert got == 1
            client.close()

        self.run(2, body)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                "shape",
                r"trainer 1 \(rank 1\) and server 0.*float32\[13, 1\], got w@GRAD float32\[14, 1\]",
            ),
            ("missing", r"trainer 1.*gradient b@GRAD: expected b@GRAD float32\[1\], got no such"),
            ("fingerprint", r"trainer 1.*program fingerprint: expected f, got other"),
            ("sync_mode", r"trainer 1.*sync_mode: expected True, got False"),
        ],
    )
    def test_another_program_ends_every_rank_with_one_message(
        self, change: str, message: str
    ) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(2, 1)
            if cluster.role_of(t.rank).kind == PSERVER:
                server = Served(t, cluster, expected_fingerprint="")
                with pytest.raises(CommError, match=message):
                    server.serve()
                return
            trained = Trained(t, cluster)
            plans = trained.plans
            if trained.trainer == 1:
                specs = specs_of(0)
                if change == "shape":
                    specs[0] = replace(specs[0], shape=(14, 1))
                elif change == "missing":
                    del specs[1]
                elif change == "fingerprint":
                    trained.client._fingerprint = "other"
                else:
                    trained.client._sync_mode = False
                gradients, parameters = packets_of(specs)
                arrays = own_arrays(gradients) | own_arrays(parameters)
                plans = [_arrays(plans[0].endpoint, gradients, parameters, arrays)]
            with pytest.raises(CommError, match=message):
                trained.client.connect(plans)

        self.run(3, body)

    def test_deadline_names_the_trainers_that_are_missing(self) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(2, 1)
            if cluster.role_of(t.rank).kind == PSERVER:
                with pytest.raises(
                    DeadlineError,
                    match=r"server 0 \(ps0:6174\), after step 1: waiting for w@GRAD, b@GRAD from "
                    r"trainer 1 \(rank 1\): nothing came within 2 s",
                ):
                    Served(t, cluster, deadline_s=2).serve()
                return
            trained = Trained(t, cluster, deadline_s=5)
            trained.client.connect(trained.plans)
            trained.step()
            if trained.trainer == 0:
                with pytest.raises(
                    DeadlineError,
                    match=r"trainer 0 \(rank 0\), step 2: waiting for w, b from server ps0:6174",
                ):
                    trained.step()

        self.run(3, body)

    def test_idle_time_is_not_bounded(self) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(1, 1)
            if cluster.role_of(t.rank).kind == PSERVER:
                Served(t, cluster, deadline_s=1).serve()
                return
            trained = Trained(t, cluster)
            never = t.recv_init(np.zeros(1), t.rank, 77)
            t.start([never])
            for connect in (True, False):
                with pytest.raises(DeadlineError):
                    t.wait_all([never], lambda: "a long evaluation", 2.5)
                if connect:
                    trained.client.connect(trained.plans)
                trained.step()
            trained.check([2])
            t.release([never])
            trained.client.close()

        self.run(2, body)
