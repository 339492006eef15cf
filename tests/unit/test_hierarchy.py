"""Sums in two levels over threads that believe themselves on several hosts; the measured choice."""

from __future__ import annotations

import numpy as np
import pytest

from hpcdist.comm.choice import ROUNDS, MeasuredCollective
from hpcdist.comm.hierarchy import HierarchicalCollective, Nodes
from hpcdist.comm.host_collective import HostCollective
from hpcdist.comm.loopback import world
from hpcdist.errors import PlanAssertionError
from tests.collective_cases import Body, CollectiveTests
from tests.threads import run_threads


class TestHierarchicalByCount(CollectiveTests):
    exact_order = False

    def run(self, size: int, body: Body) -> None:
        def make(transport):
            flat = HostCollective(transport)
            body(HierarchicalCollective(flat, 2 if size == 4 else 0))

        run_threads([lambda t=t: make(t) for t in world(size)])


class TestMeasured(CollectiveTests):
    exact_order = False

    def run(self, size: int, body: Body) -> None:
        def make(transport):
            body(MeasuredCollective(HierarchicalCollective(HostCollective(transport))))

        hosts = [rank % 2 for rank in range(size)]
        run_threads([lambda t=t: make(t) for t in world(size, hosts)])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hosts", ["0011", "0101", "0122", "00001", "0102211", "000", "012", "0"])
def test_sums_over_hosts_of_any_shape_in_node_order(hosts, shared):
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


@pytest.mark.parametrize("flat_is_faster", [False, True])
def test_the_faster_way_is_chosen_and_told_once(flat_is_faster):
    said = []

    def body(transport):
        group = MeasuredCollective(HierarchicalCollective(HostCollective(transport)), said.append)
        arrays = [np.zeros(n, np.float32) for n in (5000, 3)]
        reductions = [group.allreduce_init(a) for a in arrays]
        for reduction in reductions:  # a rank's clock decides: rank 1 finds one way slow
            for way, times in enumerate(reduction._seconds):
                slow = way == (1 if flat_is_faster else 0)
                times.extend([10.0 if slow and transport.rank == 1 else 1e-3] * 3 * ROUNDS)
        for step in range(2 * ROUNDS + 2):
            for array, reduction in zip(arrays, reductions):
                array[:] = transport.rank + step
                reduction.start()
            for array, reduction in zip(arrays, reductions):
                while not reduction.test():
                    pass
                reduction.wait()
                assert (array == 6 + 4 * step).all()
        assert group.choice == (0 if flat_is_faster else 1)
        group.close()

    run_threads([lambda t=t: body(t) for t in world(4, [0, 0, 1, 1])])
    (line,) = said
    assert "2 buckets, 0.02 MB, on 2 nodes of 2 ranks: flat " in line
    assert line.endswith(f"{'flat' if flat_is_faster else 'hierarchical'} from now on")


def test_fixed_order_is_not_measured():
    def body(transport):
        group = MeasuredCollective(HierarchicalCollective(HostCollective(transport)))
        group.allreduce_init(np.zeros(9), ordered=True).start()
        assert not group._measured

    run_threads([lambda t=t: body(t) for t in world(4, [0, 0, 1, 1])])


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
