"""Collectives of groups whose ranks are on several hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402

from hpcdist.comm.hierarchy import Nodes  # noqa: E402
from hpcdist.comm.lanes import Wait  # noqa: E402
from hpcdist.comm.staggered import Staggered  # noqa: E402
from hpcdist.torch import across_hosts, trees  # noqa: E402
from hpcdist.torch.channel import Channel  # noqa: E402
from tests.support.hosts import hosts, missing  # noqa: E402
from tests.support.jobs import ROOT  # noqa: E402
from tests.torch.torch_ranks import filled, of_all  # noqa: E402


def test_hosts_with_consecutive_ranks():
    for members in [((0, 1), (2, 3)), ((0,), (1,), (2,)), ((0,), (1, 2)), ((0, 1),)]:
        assert Nodes(members).are_consecutive
    for members in [((0, 2), (1, 3)), ((0, 2), (1,)), ((1,), (0,))]:
        assert not Nodes(members).are_consecutive


class Opened(Wait):
    """A wait that ends when the test says so."""

    def __init__(self):
        self.open = False

    def ended(self):
        return self.open

    def missing(self):
        return [7]


def test_operations_overlap_and_none_overtakes_another():
    waits = {}
    begun = []

    def operation(k):
        for step in range(3):
            begun.append((k, step))
            yield waits.setdefault((k, step), Opened())

    under_way, count = 6, 8
    staggered = Staggered((operation(k) for k in range(count)), under_way)
    assert begun == [(k, 0) for k in range(under_way)]
    assert not staggered.ended() and staggered.missing() == [7]
    waits[1, 0].open = True
    assert not staggered.ended()
    assert (1, 1) not in begun  # operation 0 has not begun that step
    waits[0, 0].open = True
    assert not staggered.ended()
    assert begun[-2:] == [(0, 1), (1, 1)]
    waits[0, 1].open = True
    assert not staggered.ended()
    waits[0, 2].open = True
    assert not staggered.ended()
    assert begun[-1] == (under_way, 0)
    while not staggered.ended():
        for wait in list(waits.values()):
            wait.open = True
    for step in range(3):
        assert [k for k, of in begun if of == step] == list(range(count))


CONSECUTIVE = [
    ((0,), (1,)),
    ((0,), (1,), (2,)),
    ((0,), (1, 2)),
    ((0, 1), (2,)),
    ((0, 1), (2, 3)),
    ((0,), (1, 2, 3)),
    ((0, 1, 2), (3,)),
    ((0,), (1, 2), (3,)),
    ((0,), (1,), (2,), (3,)),
]
OTHERS = [((0, 2), (1,)), ((0, 2), (1, 3)), ((0, 1, 3), (2,)), ((0, 3), (1,), (2,))]


def on_hosts(hosts, monkeypatch):
    """Return the group of all ranks as if they were on such hosts."""
    pair = of_all(1)
    if sum(map(len, hosts)) != pair.size:
        pytest.skip(f"is for {sum(map(len, hosts))} ranks")
    group = pair.ours
    monkeypatch.setattr(group.queue, "channel", replace(group.queue.channel, nodes=Nodes(hosts)))
    return group


@pytest.fixture(params=CONSECUTIVE, ids=str)
def group(request, monkeypatch):
    """The group of all ranks as if they were on several hosts, which have consecutive ones."""
    return on_hosts(request.param, monkeypatch)


@pytest.fixture(params=[*CONSECUTIVE, *OTHERS], ids=str)
def any_group(request, monkeypatch):
    """The group of all ranks as if they were on several hosts."""
    return on_hosts(request.param, monkeypatch)


@pytest.mark.mpi
@pytest.mark.parametrize("length", [2**19, 600_007, 6_000_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_sums_are_those_in_rank_order(group, length, dtype):
    rank, size = dist.get_rank(), dist.get_world_size()
    given = [filled((length,), dtype, k) for k in range(size)]
    expected = given[0].clone()
    for other in given[1:]:
        expected += other
    assert across_hosts.reduces(group.queue.channel, expected) == (size > 2)
    for in_flight in range(1, 4):
        vectors = [given[rank].clone() for _ in range(in_flight)]
        works = [dist.all_reduce(vector, group=group, async_op=True) for vector in vectors]
        for work, vector in zip(works, vectors, strict=True):
            work.wait()
            assert torch.equal(vector, expected)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("length", "dtype"),
    [(3, torch.float32), (300_007, torch.bfloat16), (3_000_000, torch.float32)],
)
def test_sums_for_one_rank_each_are_those_in_rank_order(group, length, dtype, monkeypatch):
    monkeypatch.setattr(across_hosts, "scatters", lambda *_: True)
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [length + k for k in range(size)]
    given = [
        [filled((n,), dtype, 10 * k + part) for part, n in enumerate(lengths)] for k in range(size)
    ]
    expected = given[0][rank].clone()
    for other in given[1:]:
        expected += other[rank]
    for _ in range(2):
        out = torch.empty(lengths[rank], dtype=dtype)
        dist.reduce_scatter(out, given[rank], group=group)
        assert torch.equal(out, expected)
    out = torch.empty(lengths[rank], dtype=dtype)
    dist.reduce_scatter(out, given[rank], dist.ReduceOp.AVG, group=group)
    assert torch.equal(out, expected / size)


@pytest.mark.mpi
@pytest.mark.parametrize("length", [3, 600_007, 6_000_000])
def test_sums_for_each_root_are_those_in_rank_order(group, length, monkeypatch):
    monkeypatch.setattr(across_hosts, "reduces_for", lambda *_: True)
    rank, size = dist.get_rank(), dist.get_world_size()
    given = [filled((length,), torch.float32, k) for k in range(size)]
    expected = given[0].clone()
    for other in given[1:]:
        expected += other
    for root in range(size):
        vector = given[rank].clone()
        dist.reduce(vector, root, group=group)
        assert torch.equal(vector, expected if rank == root else given[rank])


@pytest.mark.mpi
@pytest.mark.parametrize("length", [0, 3, 300_007, 6_000_000])
def test_every_rank_gets_what_a_root_has(any_group, length):
    given = filled((length,), torch.float32, 1)
    for root in range(dist.get_world_size()):
        vector = given.clone() if dist.get_rank() == root else torch.zeros(length)
        dist.broadcast(vector, root, group=any_group)
        assert torch.equal(vector, given)


@pytest.mark.parametrize("tree", [trees.binomial, trees.chain])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_a_tree_reaches_all_once(tree, size):
    ranks = [(7 + 3 * k) % 16 for k in range(size)]
    ways = {rank: tree(ranks, rank) for rank in ranks}
    assert ways[ranks[0]][0] is None
    reached = [child for _, children in ways.values() for child in children]
    assert sorted(reached) == sorted(ranks[1:])
    assert all(ways[child][0] == rank for rank, (_, below) in ways.items() for child in below)


def test_which_sums_go_from_host_to_host():
    def channel(*widths):
        firsts = accumulate(widths, initial=0)
        members = tuple(tuple(range(b, b + w)) for b, w in zip(firsts, widths))
        transport = SimpleNamespace(rank=0, size=sum(widths))
        return Channel(transport, 0, Nodes(members))

    long = torch.empty(2**22)
    for widths in [(3, 3), (4, 2), (2, 2, 2)]:
        assert across_hosts.scatters(channel(*widths), long.nbytes)
    for widths in [(1, 1), (2, 2), (3, 1), (1, 1, 1, 1)]:
        assert not across_hosts.scatters(channel(*widths), long.nbytes)
    assert not across_hosts.scatters(channel(3, 3), 2**10)
    assert across_hosts.reduces_for(channel(1, 3), long, 0)
    assert across_hosts.reduces_for(channel(2, 1), long, 2)
    assert not across_hosts.reduces_for(channel(1, 1, 1), long, 1)
    assert not across_hosts.reduces_for(channel(1, 3), long, 1)
    assert not across_hosts.reduces_for(channel(1, 3), long[:99], 0)


@pytest.mark.mpi
@pytest.mark.parametrize("op", ["AVG", "MAX", "PRODUCT"])
def test_other_reductions(group, op):
    rank, size = dist.get_rank(), dist.get_world_size()
    vector = torch.full((500_000,), float(2 + rank % 2))
    dist.all_reduce(vector, getattr(dist.ReduceOp, op), group=group)
    all_ranks = torch.tensor([float(2 + k % 2) for k in range(size)])
    expected = {"AVG": all_ranks.sum() / size, "MAX": all_ranks.max(), "PRODUCT": all_ranks.prod()}
    assert (vector == expected[op]).all()


@pytest.mark.mpi
@pytest.mark.parametrize(
    "length", [20_000, 300_007, 3_000_000]
)  # the last: more than are under way
def test_gathers(any_group, length):
    rank, size = dist.get_rank(), dist.get_world_size()
    given = [
        torch.rand(length + k, generator=torch.Generator().manual_seed(k)) for k in range(size)
    ]
    for _ in range(3):
        rows = torch.empty(size, length)
        dist.all_gather_into_tensor(rows, given[rank][:length].clone(), group=any_group)
        assert all(
            torch.equal(row, all_of[:length]) for row, all_of in zip(rows, given, strict=True)
        )
        parts = [torch.empty(length + k) for k in range(size)]  # of other lengths
        dist.all_gather(parts, given[rank], group=any_group)
        assert all(map(torch.equal, parts, given))


@pytest.mark.skipif(bool(missing()), reason=missing() or "never")
@pytest.mark.parametrize("per_host", [(1, 1), (2, 2), (2, 1)])
def test_each_link_carries_a_vector_once_in_each_direction(per_host):
    with hosts(2, "200mbit") as two:
        out = two.run(per_host, "-W", "ignore", str(ROOT / "tests/scripts/torch_across_hosts.py"))
    found = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    assert found["same"] and found["hosts"] == 2
    assert found["sum"] == pytest.approx(1.0, rel=0.1)
    assert found["gather"] == pytest.approx(per_host[0], rel=0.1)
