"""Trainers that die while servers serve, over a transport whose threads can die."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from hpcdist.comm import loopback
from hpcdist.comm.cluster import PSERVER
from hpcdist.comm.loopback import LoopbackTransport
from hpcdist.errors import RankFailure
from tests.support.ps_model import Served, Trained, cluster_of, gradient
from tests.support.threads import run_threads

STEPS = 4


def run(
    trainers: int, servers: int, last_act: Callable[[Trained], object], whole: int
) -> list[Served]:
    """Have trainer 1 die after ``last_act``, the others make STEPS steps; return the servers.

    After ``whole`` steps the others wait until every server knows.
    """
    cluster = cluster_of(trainers, servers)
    served: list[Served] = []

    def body(t: LoopbackTransport) -> None:
        role = cluster.role_of(t.rank)
        if role.kind == PSERVER:
            server = Served(t, cluster, goes_on=True)
            served.append(server)
            server.serve()
            return
        trained = Trained(t, cluster)
        if role.index == 1:
            last_act(trained)
            t.die()
            return
        trained.client.connect(trained.plans)
        for step in range(STEPS):
            if step == whole:
                while len(served) < servers or not all(server.deaths for server in served):
                    time.sleep(0.001)
            trained.step()
        trained.client.close()
        membership.append(trained)

    membership: list[Trained] = []
    run_threads([lambda t=t: body(t) for t in loopback.world(trainers + servers)])
    assert len(membership) == trainers - 1
    return served


def connects(trained: Trained) -> None:
    trained.client.connect(trained.plans)


def makes_two_steps(trained: Trained) -> None:
    connects(trained)
    trained.step()
    trained.step()


def sends_part_of_its_third_step(trained: Trained) -> None:
    makes_two_steps(trained)
    for spec in trained.specs:
        trained.arrays[spec.name][...] = gradient(spec, 1, 2)
    trained.client.post_receives()
    trained.client.send_packet(0)
    trained.client.wait_sends()


def reads(trained: Trained) -> None:
    trained.startup()


@pytest.mark.parametrize(("trainers", "servers"), [(2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize(
    ("last_act", "whole"),
    [
        (lambda trained: None, 0),
        (reads, 0),
        (connects, 0),
        (makes_two_steps, 2),
        (sends_part_of_its_third_step, 2),
    ],
)
def test_the_others_go_on(trainers, servers, last_act, whole):
    others = tuple(k for k in range(trainers) if k != 1)
    for server in run(trainers, servers, last_act, whole):
        assert server.deaths == [(1, whole)]
        assert server.begun == list(range(STEPS))
        packets = {p for p, _ in server.updates}
        for packet in packets:
            who = [k for p, k in server.updates if p == packet]
            assert who[:whole] == [tuple(range(trainers))] * whole
            # What it had sent of a step that was not applied counts nowhere.
            assert who[whole:] == [others] * (STEPS - whole)


def test_without_leave_to_go_on_a_death_ends_the_server():
    cluster = cluster_of(2, 1)
    world = loopback.world(3)

    def serves() -> None:
        with pytest.raises(RankFailure) as failure:
            Served(world[2], cluster).serve()
        assert failure.value.ranks == (1,)

    run_threads([serves, world[1].die])


def test_a_server_does_not_outlive_all_its_trainers():
    cluster = cluster_of(2, 1)
    world = loopback.world(3)
    served = Served(world[2], cluster, goes_on=True)

    def serves() -> None:
        with pytest.raises(RankFailure):
            served.serve()
        assert sorted(served.deaths) == [(0, 0), (1, 0)]

    run_threads([serves, world[0].die, world[1].die])
