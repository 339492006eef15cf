"""Sums in two levels over threads that believe themselves on several hosts; the measured choice."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.comm.hierarchy import HierarchicalCollective, Nodes
from hpcdist.comm.host_collective import HostCollective
from hpcdist.comm.loopback import world
from hpcdist.errors import PlanAssertionError
from tests.cases.collective import Body, CollectiveTests
from tests.support.threads import run_threads


class TestHierarchicalByCount(CollectiveTests):
    exact_order = False

    def run(self, size: int, body: Body) -> None:
        def make(transport):
            flat = HostCollective(transport)
            body(HierarchicalCollective(flat, 2 if size == 4 else 0))

        run_threads([lambda t=t: make(t) for t in world(size)])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hosts", ["0011", "0101", "0122", "00001", "0102211", "000", "012", "0"])
def test_bucket_allreduce_over_hosts_of_any_shape_in_node_order(hosts, shared):
    size = len(hosts)
    rows = np.random.default_rng(2).normal(size=(size, 1003)).astype(np.float32)
    nodes = [[rows[r] for r in range(size) if hosts[r] == host] for host in sorted(set(hosts))]
    if len(nodes) in (1, size):  # one level: rank order
        nodes = [list(rows)]
    sums = [sum(node[1:], node[0]) for node in nodes]
    expected = sum(sums[1:], sums[0])

    def body(transport):
        flat = HostCollective(transport)
        group = HierarchicalCollective(flat)
        array = (group.empty(4 * 1003) if shared else np.empty(4 * 1003, np.uint8)).view("float32")
        reduction = group.allreduce_init(array, ordered=True)
        for _ in range(2):
            array[:] = rows[group.rank]
            reduction.start()
            reduction.wait()
            assert array.tobytes() == expected.tobytes()
        group.close()

    run_threads([lambda t=t: body(t) for t in world(size, [int(host) for host in hosts])])


def test_nodes():
    assert Nodes.by_count(6, 3).members == ((0, 1, 2), (3, 4, 5))
    assert Nodes.by_first_rank([0, 1, 0, 1, 4]).members == ((0, 2), (1, 3), (4,))
    assert str(Nodes.by_first_rank([0, 1, 0, 1, 4])) == "3 nodes of 1 to 2 ranks"
    assert Nodes.by_first_rank([0, 1, 0, 1, 4]).owners == 1
    assert not Nodes.by_first_rank([0, 0]).have_two_levels
    assert not Nodes.by_first_rank([0, 1]).have_two_levels
    for size, inter in ((4, 4), (2, 4), (5, 2)):
        with pytest.raises(PlanAssertionError, match=f"inter_nranks={inter}: .* {size} trainers"):
            Nodes.by_count(size, inter)
