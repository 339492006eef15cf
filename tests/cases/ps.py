"""What trainers and servers must do together: one class, inherited per transport."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER
from hpcdist.errors import CommError, DeadlineError
from hpcdist.ps.messages import REPLY_TAG, REQUEST_TAG, VALUE_TAG, MessageKind, specs_payload
from hpcdist.ps.packets import PacketBuffer, VarSpec
from hpcdist.ps.wire import post_message, receive_message
from tests.cases.transport import LIMIT_S, Body
from tests.support.ps_model import (
    Served,
    Trained,
    cluster_of,
    expected_values,
    gradient,
    own_arrays,
    packets_of,
    parameter_of,
    server_arrays,
    specs_of,
)


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
            for plan in trained.plans:
                for packet in (*plan.gradients, *plan.parameters):
                    buffer = PacketBuffer(packet, trained.arrays)
                    assert buffer.in_place == laid_out or len(packet.variables) == 1
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
            while not trained.arrays["big"].any():
                assert not client.answered()
            c = VarSpec("c", (3,), "float64")
            got = np.zeros(3)
            value = t.irecv(got, server, VALUE_TAG)
            asked = post_message(t, server, REQUEST_TAG, MessageKind.READ, 0, 0, specs_payload([c]))
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

    @pytest.mark.parametrize("laid_out", [True, False], ids=["in-place", "staged"])
    def test_the_last_packets_may_be_one_exchange_that_ends_the_step(self, laid_out: bool) -> None:
        def body(t: Transport) -> None:
            cluster = cluster_of(2, 1)
            if cluster.role_of(t.rank).kind == PSERVER:
                Served(t, cluster).serve()
                return
            trained = Trained(t, cluster, laid_out)
            client = trained.client
            trained.startup()
            client.connect(trained.plans)
            packets = range(len(client.packets))
            ends = [client.exchanger(packets[first:]) for first in range(len(packets) + 1)]
            for first, end in enumerate(ends):
                for spec in trained.specs:
                    trained.arrays[spec.name][...] = gradient(spec, trained.trainer, client.step)
                for index in packets[:first]:
                    client.send_packet(index)
                end()
                trained.check([len(ends)] * 2)
            assert client.step == len(ends)
            with pytest.raises(CommError, match="cannot end the step, not sent: "):
                ends[-1]()
            client.send_packet(0)
            with pytest.raises(CommError, match="sent twice in one step"):
                ends[0]()
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
            differs = cluster.role_of(t.rank).index == 1
            trained = Trained(
                t,
                cluster,
                fingerprint="other" if differs and change == "fingerprint" else "f",
                sync_mode=not (differs and change == "sync_mode"),
            )
            plans = trained.plans
            if differs:
                specs = specs_of(0)
                if change == "shape":
                    specs[0] = replace(specs[0], shape=(14, 1))
                elif change == "missing":
                    del specs[1]
                gradients, parameters = packets_of(specs)
                arrays = own_arrays(gradients) | own_arrays(parameters)
                plans = [server_arrays(plans[0].endpoint, gradients, parameters, arrays)]
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
