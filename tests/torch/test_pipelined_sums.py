"""Sums of long vectors on one host, each of which takes many pieces of shared memory."""

from __future__ import annotations

import threading
import time
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402

from hpcdist.comm.base import SharedRows  # noqa: E402
from hpcdist.comm.pipelined_sum import SLOTS, share_of  # noqa: E402
from hpcdist.comm.progress import CROWDED  # noqa: E402
from hpcdist.torch import in_memory  # noqa: E402
from hpcdist.torch.host_memory import BUFFERS, CHUNK, LINE, HostMemory  # noqa: E402
from hpcdist.torch.reductions import reduction  # noqa: E402
from tests.torch.torch_ranks import of_all  # noqa: E402

LENGTHS = [CHUNK // 4 + 1, 300_007, 524_288, 1_500_001, 4_198_400]


def given(length, dtype, rank):
    random = np.random.default_rng([length, rank])
    return torch.from_numpy(random.normal(0, 1000, length)).to(dtype)


def in_rank_order(vectors):
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total += vector
    return total


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 1000, *LENGTHS])
def test_shares_are_lines_and_slots_fit(ranks, length):
    share = share_of(length, 4, ranks, in_memory.PIPELINE_BYTES)
    assert share > 0 and share * 4 % in_memory.LINE_BYTES == 0
    assert SLOTS * share * ranks * 4 <= in_memory.PIPELINE_BYTES


def memories(ranks):
    """Return what each of some ranks makes of memory that all see, here those of one process."""
    rows = np.zeros((ranks, LINE + BUFFERS * CHUNK), np.uint8)
    shared = SharedRows(rows, sync=lambda: None, free=lambda: None)
    return [
        HostMemory(
            SimpleNamespace(rank=rank, size=ranks, policy=CROWDED), shared, tuple(range(ranks))
        )
        for rank in range(ranks)
    ]


def sums(dtype, ranks, vectors):
    reducer = reduction(dist.ReduceOp.SUM, dtype, ranks)
    return [
        in_memory.all_reduce(memory, vector, reducer)
        for memory, vector in zip(memories(ranks), vectors, strict=True)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_ranks_may_move_on_in_any_order(seed):
    random = Random(seed)
    ranks, length = random.choice([2, 3, 4]), random.choice(LENGTHS[:4])
    vectors = [given(length, torch.float32, rank) for rank in range(ranks)]
    expected = in_rank_order(vectors)
    steps = sums(torch.float32, ranks, vectors)
    waits = [next(step) for step in steps]
    late = random.randrange(ranks)
    turns = 0
    while any(waits):
        turns += 1
        rank = random.randrange(ranks)
        if waits[rank] is None or (rank == late and random.random() < 0.8):
            continue
        if waits[rank].ended():
            waits[rank] = next(steps[rank], None)
        else:
            assert set(waits[rank].missing()) - {rank}
    assert turns > ranks
    for vector in vectors:
        assert torch.equal(vector, expected)


def test_who_sleeps_is_woken():
    vectors = [given(1_500_001, torch.float64, rank) for rank in range(3)]
    expected = in_rank_order(vectors)
    steps = sums(torch.float64, 3, vectors)
    asleep = []

    def run(rank):
        for wait in steps[rank]:
            while not wait.ended():
                begin = time.monotonic()
                wait.sleep(30)
                asleep.append(time.monotonic() - begin)
                if rank == 0:
                    time.sleep(0.001)  # the others sleep until this one comes

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert max(asleep) < 30  # nobody has slept through
    for vector in vectors:
        assert torch.equal(vector, expected)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [*in_memory.COMPILED, torch.bfloat16])
@pytest.mark.parametrize("length", LENGTHS)
def test_long_sums_are_those_in_rank_order(length, dtype):
    pair = of_all(0)
    vectors = [given(length, dtype, rank) for rank in range(pair.size)]
    vector = vectors[dist.get_rank()].clone()
    dist.all_reduce(vector, group=pair.ours)
    assert torch.equal(vector, in_rank_order(vectors))


@pytest.mark.mpi
@pytest.mark.parametrize("can_sleep", [True, False])
def test_long_sums_among_other_collectives_with_late_ranks(can_sleep, monkeypatch):
    if not can_sleep:  # as where there is no futex
        monkeypatch.setattr(in_memory, "CALL_NUMBER", None)
    pair, me = of_all(0), dist.get_rank()
    random, own = Random(1), Random(me)
    works = []
    for k in range(24):
        length = random.choice([1, 5000, *LENGTHS])
        dtype = random.choice([torch.float32, torch.float64, torch.bfloat16])
        tensor = torch.full((length,), float(k + me % 2), dtype=dtype)
        if random.random() < 0.3:
            out = torch.empty(pair.size, length, dtype=dtype)
            work = dist.all_gather_into_tensor(out, tensor, group=pair.ours, async_op=True)
            expected = k + torch.arange(pair.size)[:, None] % 2
        else:
            out = tensor
            work = dist.all_reduce(out, group=pair.ours, async_op=True)
            expected = torch.tensor(k * pair.size + pair.size // 2)
        works.append((work, out, expected))
        time.sleep(own.choice([0, 0, 0, 0.02]))
        while len(works) > random.randrange(4):
            work, out, expected = works.pop(0)
            work.wait()
            assert (out == expected).all()
