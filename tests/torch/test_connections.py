"""Groups of the same ranks use one communicator and one shared memory after another."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402

from hpcdist.torch.connections import reusable  # noqa: E402
from hpcdist.torch.job import job  # noqa: E402
from tests.torch.torch_ranks import WITH_AND_WITHOUT_MEMORY, of_all, pairs  # noqa: E402


def made(ranks: list[int] | None = None) -> dist.ProcessGroup:
    pairs()  # begins the job
    return dist.new_group(ranks, backend="hpcdist")


def key(group: dist.ProcessGroup) -> str:
    return str(group.queue.links.key)


def sums(group: dist.ProcessGroup) -> bool:
    """Tell whether a sum of the group is right: of zeros, but for its last rank's."""
    value = torch.arange(40) * (group.rank() == group.size() - 1)
    group.allreduce([value]).wait()  # torch's function refuses a group that has been destroyed
    return bool(torch.equal(value, torch.arange(40)))


@pytest.mark.mpi
@WITH_AND_WITHOUT_MEMORY
def test_the_next_group_of_the_same_ranks_has_what_a_dropped_one_had(k):
    keys = set()
    for number in range(6):
        group = made()
        if k:
            group.queue.memory = None
        assert sums(group)
        if group.size() > 1 and group.rank() < 2:
            peer, tensor = 1 - group.rank(), torch.tensor([float(number)])
            work = dist.isend(tensor, group=group, group_dst=peer)
            got = torch.empty(1)
            dist.recv(got, group=group, group_src=peer)
            work.wait()
            assert got == number
            del work
        keys.add(key(group))
        dist.destroy_process_group(group)
        del group
    assert len(keys) == 1


@pytest.mark.mpi
def test_a_name_may_come_again():
    # As torch's do with use_local_synchronization: what ranks told of the former group is not read.
    size, me = of_all(0).size, of_all(0).me
    store = dist.PrefixStore("comes again", job().store)
    keys = set()
    for _ in range(4):
        connection = job().connections.make(store, range(size), me, "comes again", 60.0)
        keys.add(connection.links.key)
        del connection
    assert len(keys) == 1


@pytest.mark.mpi
def test_groups_that_live_have_links_of_their_own():
    first, second = made(), made()
    assert key(first) != key(second)
    dist.destroy_process_group(first)
    third = made()  # its ranks still refer to the first one
    assert len({key(first), key(second), key(third)}) == 3
    assert sums(first) and sums(second) and sums(third)
    dist.destroy_process_group(second)
    dist.destroy_process_group(third)


@pytest.mark.mpi
def test_a_message_that_nobody_received_does_not_come_to_the_next_group():
    pair = of_all(0)
    if pair.size == 1:
        pytest.skip("is for several ranks")
    group = made()
    before = key(group)
    if pair.me == 0:
        dist.send(torch.tensor([1.0]), group=group, group_dst=1)
    dist.barrier(group)
    dist.destroy_process_group(group)
    del group
    group = made()
    assert key(group) != before
    got = torch.tensor([2.0])
    if pair.me == 0:
        dist.send(got, group=group, group_dst=1)
    elif pair.me == 1:
        got.zero_()
        dist.recv(got, group=group, group_src=0)
    assert got == 2
    dist.destroy_process_group(group)


@pytest.mark.mpi
def test_what_was_dropped_half_done_is_not_used_again():
    size, me = of_all(0).size, of_all(0).me
    store = dist.PrefixStore("half done", job().store)
    connection = job().connections.make(store, range(size), me, "half done", 60.0)
    before = connection.links.key
    connection.links.begin()  # of an operation whose wait was interrupted, with its group
    del connection
    connection = job().connections.make(store, range(size), me, "half done", 60.0)
    assert connection.links.key != before


@pytest.mark.mpi
def test_what_one_rank_keeps_no_rank_uses_again():
    group = made()
    before, kept = key(group), group if of_all(0).me == 0 else None
    dist.destroy_process_group(group)
    del group
    group = made()
    assert key(group) != before and sums(group)
    dist.destroy_process_group(group)
    del kept, group
    group = made()
    assert sums(group)
    dist.destroy_process_group(group)


@pytest.mark.mpi
def test_many_groups_of_any_ranks_sum_what_they_should():
    size = of_all(0).size
    draw, live, keys, mine = random.Random(size), [], set(), 0
    for _ in range(60):
        ranks = sorted(draw.sample(range(size), draw.randint(1, size)))
        live.append((ranks, made(ranks)))
        if draw.random() < 0.6:
            _, group = live.pop(draw.randrange(len(live)))
            dist.destroy_process_group(group)
            del group
        for of, group in live:
            if dist.get_rank() in of:
                assert sums(group)
        if dist.get_rank() in ranks:
            mine += 1
        keys |= {key(group) for of, group in live if dist.get_rank() in of}
    assert len(keys) < mine
    for _, group in live:
        dist.destroy_process_group(group)


def test_links_are_used_again_if_all_have_left_them_and_no_message_is_under_way():
    assert reusable([{"a": 0, "b": 0}, {"b": 0, "c": 0}], "abc") == "b"
    assert reusable([{"a": 2}, {"a": -1}, {"a": -1}], "a") == "a"
    assert reusable([{"a": 1, "b": 0}, {"a": 0, "b": 0}], "ab") == "b"
    assert reusable([{"a": 1}, {"a": 0}], "a") == ""
    assert reusable([{}, {"a": 0}], "a") == ""
    assert reusable([{"a": 0, "b": 0}, {"a": 0, "b": 0}], "b") == "b"  # a is of another order
