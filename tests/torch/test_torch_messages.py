"""Messages between ranks of torch, and calls that do not fit together."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402
from torch.distributed.distributed_c10d import AllgatherOptions  # noqa: E402

from hpcdist.errors import CommError, DeadlineError  # noqa: E402
from hpcdist.torch.host_memory import SLEPT  # noqa: E402
from hpcdist.torch.job import job  # noqa: E402
from tests.torch.torch_ranks import (  # noqa: E402
    WITH_AND_WITHOUT_MEMORY,
    close,
    of_all,
    pairs,
    refused_when_forked,
)

pytestmark = pytest.mark.mpi


@WITH_AND_WITHOUT_MEMORY
def test_messages_large_and_of_several_pieces(k):
    pair = of_all(k)
    own = torch.arange(900_001, dtype=torch.float32) + dist.get_rank()
    rows = torch.empty(pair.size, 900_001)
    dist.all_gather_into_tensor(rows, own, group=pair.ours)
    expected = torch.stack([own - dist.get_rank() + rank for rank in range(pair.size)])
    assert torch.equal(rows, expected)
    got, turned = torch.empty(pair.size * 300_000), torch.empty(pair.size, 300_000)
    given = expected[:, :300_000].contiguous() * (1 + dist.get_rank())
    dist.all_to_all_single(turned, given, group=pair.ours)
    for rank in range(pair.size):
        assert torch.equal(turned[rank], expected[dist.get_rank(), :300_000] * (1 + rank))
    got = torch.empty(300_000)
    dist.reduce_scatter_tensor(got, given, group=pair.ours)
    factor = sum(1 + rank for rank in range(pair.size))
    close(got, expected[dist.get_rank(), :300_000] * factor)


def test_a_rank_that_a_group_has_not_is_named():
    pair = of_all(0)
    x = torch.zeros(2)
    with pytest.raises(CommError, match=f"to {pair.size}: expected a rank of the group, 0 to"):
        pair.ours.send([x], pair.size, 0)
    with pytest.raises(CommError, match="from -2: expected a rank of the group, 0 to"):
        pair.ours.recv([x], -2, 0)


@pytest.mark.mpi(min_size=2)
def test_torchs_function_for_it_sets_the_timeout_of_a_group():
    of_all(0)
    group = dist.new_group(backend="hpcdist")
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.3), group)
    begin = time.monotonic()
    with pytest.raises(DeadlineError, match=r"nothing came within 0\.3 s \(timed out\)"):
        dist.recv(torch.zeros(2), (dist.get_rank() + 1) % dist.get_world_size(), group, 7)
    assert time.monotonic() - begin < 30


@pytest.mark.mpi(min_size=2)
def test_ranks_that_miss_a_monitored_barrier_are_named_in_torchs_words():
    of_all(0)
    group = dist.new_group()  # it is broken after this
    others = range(1, dist.get_world_size())
    who = f"Rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}"
    expected = f"^{who} failed to pass monitoredBarrier: rank 0 waiting for barrier"
    if dist.get_rank() == 0:
        with pytest.raises(DeadlineError, match=expected):
            group.monitored_barrier(timedelta(seconds=0.3))
    dist.barrier()


def test_many_at_once_and_in_different_orders_of_groups():
    found = [pair for pair in pairs() if pair.here]
    if dist.get_rank() % 2:
        found = found[::-1]
    works = []
    for pair in found:
        for k in range(5):
            tensor = torch.full((1000,), float(k + 1))
            work = dist.all_reduce(tensor, group=pair.ours, async_op=True)
            works.append((work, tensor, (k + 1) * pair.size))
    for work, tensor, expected in reversed(works):
        work.wait()
        assert (tensor == expected).all()
        assert work.is_completed() and work.is_success()


@WITH_AND_WITHOUT_MEMORY
def test_futures_tell_their_results(k):
    pair = of_all(k)
    tensor = torch.ones(4)
    future = dist.all_reduce(tensor, group=pair.ours, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert torch.equal(doubled.wait(), torch.full((4,), 2.0 * pair.size))


def test_futures_tell_what_went_wrong():
    pair = of_all(0)
    if pair.size == 1:
        return
    group = dist.new_group(list(pair.ranks))  # it is broken after this
    work = dist.all_reduce(torch.ones(1 + dist.get_rank()), group=group, async_op=True)
    with pytest.raises(RuntimeError, match="ranks call different collectives as number 1"):
        work.get_future().wait()


@WITH_AND_WITHOUT_MEMORY
def test_messages_with_tags_and_from_anyone(k):
    pair = of_all(k)
    me, size = dist.get_rank(), pair.size
    right, left = (me + 1) % size, (me - 1) % size
    if size == 1:
        return
    ops = [
        dist.P2POp(dist.isend, torch.full((3,), float(me)), right, pair.ours),
        dist.P2POp(dist.irecv, got := torch.empty(3), left, pair.ours),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (got == left).all()
    # A later tag first; then any source.
    first, second = torch.empty(1), torch.empty(1)
    sends = [dist.isend(torch.tensor([10.0 * me + t]), right, pair.ours, tag=t) for t in (1, 2)]
    dist.recv(second, left, pair.ours, tag=2)
    received = dist.irecv(first, left, pair.ours, tag=1)
    received.wait()
    assert received.source_rank() == left
    assert (first.item(), second.item()) == (10 * left + 1, 10 * left + 2)
    for work in sends:
        work.wait()
    if me:
        dist.send(torch.tensor([me]), 0, pair.ours, tag=7)
        return
    sources = set()
    for _ in range(size - 1):
        got = torch.zeros(1, dtype=torch.int64)
        source = dist.recv(got, None, pair.ours, tag=7)
        assert got.item() == source
        sources.add(source)
    assert sources == set(range(1, size))


@WITH_AND_WITHOUT_MEMORY
def test_messages_from_anyone_come_by_their_tags(k):
    pair = of_all(k)
    if pair.size == 1:
        return
    if dist.get_rank() == 1:  # 5 MB: MPI sends them when somebody takes them
        dist.send(torch.full((1_250_000,), 7.0), 0, pair.ours, tag=7)
        dist.send(torch.full((1_250_000,), 5.0), 0, pair.ours, tag=5)
    if dist.get_rank() == 0:
        five, seven = torch.empty(1_250_000), torch.empty(1_250_000)
        first = dist.irecv(five, None, pair.ours, tag=5)
        dist.irecv(seven, None, pair.ours, tag=7).wait()
        first.wait()
        assert (five == 5).all() and (seven == 7).all()


@WITH_AND_WITHOUT_MEMORY
def test_messages_are_taken_in_the_order_in_which_they_are_asked_for(k):
    pair = of_all(k)
    if pair.size == 1:
        return
    if dist.get_rank() == 0:
        first, second = torch.empty(2), torch.empty(2)
        works = [dist.irecv(first, None, pair.ours), dist.irecv(second, 1, pair.ours)]
        dist.barrier(pair.ours)
        for work in reversed(works):
            work.wait()
        assert (first == 1).all() and (second == 2).all()
        return
    dist.barrier(pair.ours)
    if dist.get_rank() == 1:
        for k in (1, 2):
            dist.send(torch.full((2,), float(k)), 0, pair.ours)


def test_tensors_that_do_not_fit_are_refused():
    pair = of_all(0)
    own, longer = torch.ones(2), [torch.ones(3) for _ in range(pair.size)]
    doubles = [torch.ones(2, dtype=torch.float64) for _ in range(pair.size)]
    for wrong in (longer, doubles, longer[1:]):
        with pytest.raises(CommError, match="all_gather"):
            pair.ours.allgather([wrong], [own])
        with pytest.raises(CommError, match="reduce_scatter"):
            pair.ours.reduce_scatter([own], [wrong])
        with pytest.raises(CommError, match="all_to_all"):
            pair.ours.alltoall([own] * pair.size, wrong)
        with pytest.raises(CommError, match="gather"):
            pair.ours.gather([wrong], [own], dist.get_rank())
        with pytest.raises(CommError, match="scatter"):
            pair.ours.scatter([own], [wrong], dist.get_rank())


@WITH_AND_WITHOUT_MEMORY
def test_coalesced_forms(k):
    pair = of_all(k)
    tensors = [torch.full((n,), float(n)) for n in (3, 1, 5)]
    with dist._coalescing_manager(pair.ours):
        for tensor in tensors:
            dist.all_reduce(tensor, group=pair.ours)
    for n, tensor in zip((3, 1, 5), tensors):
        assert (tensor == n * pair.size).all()


def test_lists_of_tensors_are_gathered_within_the_time_that_the_call_gives():
    pair = of_all(0)
    me, size = dist.get_rank(), pair.size
    inputs = [torch.full((n,), float(me)) for n in (2, 3)]
    rows = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    pair.ours.allgather_coalesced(rows, inputs).wait()
    assert [[t.tolist() for t in row] for row in rows] == [[[r] * 2, [r] * 3] for r in range(size)]
    if size == 1:
        return
    group = dist.new_group(list(pair.ranks))  # it is broken after this
    if me == 0:
        opts = AllgatherOptions()
        opts.timeout = timedelta(milliseconds=50)
        with pytest.raises(CommError, match=r"within 0\.05 s"):
            group.allgather_coalesced(rows, inputs, opts).wait()
    dist.barrier(pair.ours)


def test_without_memory_other_calls_are_told_at_the_debug_level():
    pair = of_all(1)
    if pair.size == 1:
        return
    group = dist.new_group(list(pair.ranks))  # it is broken after this
    group.queue.memory, group.queue.checks = None, True  # as with TORCH_DISTRIBUTED_DEBUG=DETAIL
    pattern = r"barrier of uint8\[0\] on rank 0, all_reduce SUM of float32\[2\] on rank 1"
    with pytest.raises(CommError, match=pattern):
        dist.all_reduce(torch.ones(2), group=group) if dist.get_rank() else dist.barrier(group)


def test_without_memory_another_length_is_an_error():
    if of_all(1).size == 1:
        return
    group = dist.new_group([0, 1])  # it is broken after this
    if dist.get_rank() == 0:
        group.queue.memory = None
        dist.broadcast(torch.ones(2), 0, group=group)
    elif dist.get_rank() == 1:
        group.queue.memory = None
        with pytest.raises(CommError, match="rank 0 of the group sent 8 bytes, expected 12"):
            dist.broadcast(torch.ones(3), 0, group=group)


def test_ranks_that_call_different_things_are_told():
    pair = of_all(0)
    if pair.size == 1:
        return
    group = dist.new_group(list(pair.ranks))  # it is broken after this
    tensor = torch.ones(3 if dist.get_rank() else 4)
    pattern = r"different collectives as number 1 .*all_reduce SUM of float32\[4\] on rank 0, all_r"
    with pytest.raises(CommError, match=pattern):
        dist.all_reduce(tensor, group=group)
    with pytest.raises(CommError, match="an earlier operation failed"):
        dist.barrier(group=group)


def test_a_rank_that_sleeps_is_woken_by_the_one_it_waits_for():
    memory = of_all(0).ours.queue.memory
    if memory is None:
        pytest.skip("one rank waits for nobody")
    begin = time.monotonic()
    if memory.rank == 0:
        while any(head[SLEPT] <= memory.count for head in memory.others):
            time.sleep(1e-3)
        meeting = memory.meet()
    else:
        meeting = memory.meet()
        while not meeting.ended():
            assert meeting.sleep(60)
    while not meeting.ended():
        meeting.sleep(60)
    assert time.monotonic() - begin < 30


def test_a_process_that_a_rank_has_forked_communicates_nothing():
    group = of_all(0).ours
    store = dist.PrefixStore("p", job().store)
    for call, name in (
        (lambda: dist.all_reduce(torch.ones(1), group=group), "all_reduce SUM of float32[1]"),
        (lambda: store.set("key", "value"), "the store's set('p/key', 'value')"),
    ):
        assert f"has forked, calls {name}" in refused_when_forked(call)
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    assert total.item() == dist.get_world_size()
