"""Collectives of c10d over MPI: what gloo, torch's own backend, does with the same tensors."""

from __future__ import annotations

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402
from torch.distributed._functional_collectives import all_reduce  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

from hpcdist.errors import CommError  # noqa: E402
from tests.torch.torch_ranks import (  # noqa: E402
    WITH_AND_WITHOUT_MEMORY,
    Pair,
    close,
    drawn,
    filled,
    of_all,
    pairs,
    strided,
)

pytestmark = pytest.mark.mpi

ALL = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
COPIED = [*ALL, torch.int16, torch.bool, torch.complex64, torch.complex128]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
BITWISE = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]

# Empty, small, of several pieces of shared memory.
SHAPES = [(0,), (), (1,), (3, 5), (2, 0, 4), (4097,), (7, 40_000)]
WHICH = range(6)  # of the pairs of groups
APART = [False, True]  # elements that do not lie side by side


def pair_of(k: int) -> Pair:
    found = pairs()
    return found[k % len(found)]


@drawn(30, shape=SHAPES, dtype=ALL, op=OPS, k=WHICH, apart=APART)
def test_all_reduce_and_reduce(shape, dtype, op, k, apart):
    pair = pair_of(k)
    if not pair.here:
        return
    given = filled(shape, dtype, dist.get_rank())
    ours, theirs = (strided(given) if apart else given.clone()), given.clone()
    dist.all_reduce(ours, op, group=pair.ours)
    dist.all_reduce(theirs, op, group=pair.gloo)
    close(ours, theirs)
    ours, theirs = (strided(given) if apart else given.clone()), given.clone()
    root = pair.ranks[-1]
    dist.reduce(ours, root, op, group=pair.ours)
    dist.reduce(theirs, root, op, group=pair.gloo)
    if dist.get_rank() == root:
        close(ours, theirs)
    else:
        assert torch.equal(ours, given)


@WITH_AND_WITHOUT_MEMORY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("length", [5, 280_000])  # of one piece of shared memory, and of several
def test_sums_are_made_in_rank_order_whole_or_in_buckets(length, dtype, k):
    pair = of_all(k)
    rows = [
        torch.randn(length, generator=torch.Generator().manual_seed(rank)).mul_(3**rank).to(dtype)
        for rank in range(pair.size)
    ]
    total, backwards = rows[0].clone(), rows[-1].clone()
    for row, other in zip(rows[1:], rows[-2::-1]):
        total += row
        backwards += other
    assert pair.size < 3 or length < 1000 or not torch.equal(total, backwards), "order matters"
    own, root = rows[dist.get_rank()], pair.size - 1
    for bucket in (length, length // 3 + 1):
        ours, there = own.clone(), own.clone()
        for part in ours.split(bucket):
            dist.all_reduce(part, group=pair.ours)
        assert torch.equal(ours, total)
        for part in there.split(bucket):
            dist.reduce(part, root, group=pair.ours)
        assert torch.equal(there, total if dist.get_rank() == root else own)
    share = torch.empty(length, dtype=dtype)
    dist.reduce_scatter(share, [own] * pair.size, group=pair.ours)
    assert torch.equal(share, total)


@drawn(10, dtype=ALL[:4], op=BITWISE, k=WHICH)
def test_bitwise_reductions(dtype, op, k):
    pair = pair_of(k)
    if pair.here:
        given = filled((33,), dtype, dist.get_rank())
        ours, theirs = given.clone(), given.clone()
        dist.all_reduce(ours, op, group=pair.ours)
        dist.all_reduce(theirs, op, group=pair.gloo)
        assert torch.equal(ours, theirs)


@WITH_AND_WITHOUT_MEMORY
@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.int16])
def test_reductions_that_gloo_lacks(dtype, k):
    pair = of_all(k)
    size = pair.size
    everyone = [filled((50,), dtype, rank) for rank in range(size)]
    total = everyone[0].clone()
    for other in everyone[1:]:
        total = total + other
    ours = everyone[dist.get_rank()].clone()
    dist.all_reduce(ours, group=pair.ours)
    assert torch.equal(ours, total)
    if dtype != torch.bool:
        ours = everyone[dist.get_rank()].clone()
        dist.all_reduce(ours, dist.ReduceOp.AVG, group=pair.ours)
        rounding = "trunc" if dtype == torch.int16 else None
        close(ours, torch.div(total, size, rounding_mode=rounding))
    if dtype == torch.complex64:
        ours = everyone[dist.get_rank()].clone()
        dist.all_reduce(ours, dist._make_nccl_premul_sum(2.0), group=pair.ours)
        close(ours, total * 2)


@WITH_AND_WITHOUT_MEMORY
@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.bfloat16, torch.tensor([1 / 3])), (torch.int64, 3.0)]
)
def test_a_factor_is_of_the_tensors_dtype_on_every_rank(dtype, factor, k):
    pair = of_all(k)
    rows = [
        filled((50,), dtype, rank) + 2**40 * (dtype == torch.int64) for rank in range(pair.size)
    ]
    terms = [row * torch.as_tensor(factor).to(dtype).item() for row in rows]
    total = terms[0].clone()
    for term in terms[1:]:
        total += term
    tensor = rows[dist.get_rank()].clone()
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor), group=pair.ours)
    assert torch.equal(tensor, total)
    if dtype == torch.int64:
        with pytest.raises(CommError, match=r"of torch.int64: expected a factor in it, got 0\.5"):
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5), group=pair.ours)


@WITH_AND_WITHOUT_MEMORY
def test_means_of_complex_numbers_are_the_same_wherever_they_lie(k):
    pair = of_all(k)
    rows = [
        torch.randn(1003, dtype=torch.complex64, generator=torch.Generator().manual_seed(rank))
        for rank in range(pair.size)
    ]
    means = []
    for length in (1003, 3):
        tensor = rows[dist.get_rank()].clone()
        for part in tensor.split(length):
            dist.all_reduce(part, dist.ReduceOp.AVG, group=pair.ours)
        means.append(tensor)
    assert torch.equal(*means)


def test_operations_that_make_no_sense_are_refused():
    pair = pair_of(0)
    if pair.here:
        with pytest.raises(CommError, match="ReduceOp.BAND is not for tensors of torch.float32"):
            dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND, group=pair.ours)
        with pytest.raises(CommError, match="AVG is not for tensors of torch.bool"):
            dist.all_reduce(torch.ones(2) > 0, dist.ReduceOp.AVG, group=pair.ours)


def test_tensors_that_collectives_cannot_write_or_add_are_refused_before_they_begin():
    group = of_all(0).ours
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shared = distribute_tensor(torch.zeros(dist.get_world_size(), 2), mesh, [Shard(0)])
    refused = [
        (torch.ones(1).expand(4), r"float32\[4\] with strides \[0\] .* clone\(\)"),
        (shared, r"a DTensor: .* to_local\(\)"),
        (TwoTensor(torch.ones(2), torch.zeros(2)), "a TwoTensor: .* give them its parts"),
        (torch.zeros(2, dtype=torch.float8_e4m3fn), "SUM is not for tensors of torch.float8_e4m3"),
        (torch.nested.nested_tensor([torch.ones(2)]), "a tensor of nested tensors"),
    ]
    for tensor, words in refused:
        with pytest.raises(CommError, match=words):
            dist.all_reduce(tensor, group=group)
    rows = [torch.zeros(3) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, torch.ones(1).expand(3), group=group)  # what is only read may repeat
    assert all(row.tolist() == [1, 1, 1] for row in rows)


@pytest.mark.parametrize("length", [6, 3 * 2**18])  # the latter is summed by a compiled loop
def test_what_a_functional_collective_promises_is_waited_for(length):
    group, size = of_all(0).ours, dist.get_world_size()
    promised = all_reduce(torch.ones(3, length // 3), "sum", group)
    dist.all_reduce(promised.t(), group=group)
    dist.all_reduce(promised, group=group)
    rows = [torch.zeros(3, length // 3) for _ in range(size)]
    dist.all_gather(rows, promised, group=group)
    assert all(torch.equal(row, torch.full_like(row, size**3)) for row in [promised + 0, *rows])


@drawn(20, shape=SHAPES, dtype=COPIED, k=WHICH, apart=APART)
def test_broadcast_gather_scatter(shape, dtype, k, apart):
    pair = pair_of(k)
    if not pair.here:
        return
    me, root = dist.get_rank(), pair.ranks[-1]
    own = filled(shape, dtype, me)
    of_root = filled(shape, dtype, root)
    got = strided(own) if apart else own.clone()
    dist.broadcast(got, root, group=pair.ours)
    assert torch.equal(got, of_root)
    everyone = [torch.empty(shape, dtype=dtype) for _ in pair.ranks] if me == root else None
    dist.gather(own, everyone, root, group=pair.ours)
    for rank, row in zip(pair.ranks, everyone or ()):
        assert torch.equal(row, filled(shape, dtype, rank))
    got = torch.empty(shape, dtype=dtype)
    rows = [filled(shape, dtype, 50 + rank) for rank in pair.ranks] if me == root else None
    dist.scatter(got, rows, root, group=pair.ours)
    assert torch.equal(got, filled(shape, dtype, 50 + me))


@drawn(20, shape=SHAPES, dtype=COPIED, k=WHICH, apart=APART)
def test_all_gather(shape, dtype, k, apart):
    pair = pair_of(k)
    if not pair.here:
        return
    own = filled(shape, dtype, dist.get_rank())
    expected = [filled(shape, dtype, rank) for rank in pair.ranks]
    rows = [strided(torch.zeros(shape, dtype=dtype)) for _ in pair.ranks]
    dist.all_gather(rows, strided(own) if apart else own, group=pair.ours)
    for row, value in zip(rows, expected):
        assert torch.equal(row, value)
    if shape:
        whole = torch.zeros((pair.size * shape[0], *shape[1:]), dtype=dtype)
        whole = strided(whole) if apart else whole
        dist.all_gather_into_tensor(whole, own, group=pair.ours)
        assert torch.equal(whole, torch.cat(expected))


@drawn(20, shape=[(0,), (3,), (2, 7), (40_000, 5)], dtype=ALL, k=WHICH, as_tensor=APART)
def test_reduce_scatter(shape, dtype, k, as_tensor):
    pair = pair_of(k)
    if not pair.here:
        return
    of = [[filled(shape, dtype, 10 * r + q) for q in pair.ranks] for r in pair.ranks]
    got = torch.zeros(shape, dtype=dtype)
    if as_tensor:
        dist.reduce_scatter_tensor(got, torch.cat(of[pair.me]), group=pair.ours)
    else:
        dist.reduce_scatter(got, of[pair.me], group=pair.ours)
    total = of[0][pair.me].clone()
    for row in of[1:]:
        total += row[pair.me]
    assert torch.equal(got, total)  # in rank order: the very bits


@drawn(20, rows=[0, 1, 3], dtype=COPIED, k=WHICH)
def test_all_to_all(rows, dtype, k):
    pair = pair_of(k)
    if not pair.here:
        return
    me, ranks = pair.me, range(pair.size)
    # Rank r sends r + q + rows rows to rank q.
    parts = [filled((me + q + rows, 3), dtype, 10 * me + q) for q in ranks]
    expected = [filled((me + q + rows, 3), dtype, 10 * q + me) for q in ranks]
    got = [torch.zeros_like(part) for part in expected]
    dist.all_to_all(got, parts, group=pair.ours)
    whole = torch.zeros_like(torch.cat(expected))
    splits = [len(part) for part in parts]
    dist.all_to_all_single(whole, torch.cat(parts), splits, splits, group=pair.ours)
    for row, value in zip(got, expected):
        assert torch.equal(row, value)
    assert torch.equal(whole, torch.cat(expected))
    equal = torch.cat([filled((rows, 2), dtype, 10 * me + q) for q in ranks])
    got = torch.zeros_like(equal)
    dist.all_to_all_single(got, equal, group=pair.ours)
    assert torch.equal(got, torch.cat([filled((rows, 2), dtype, 10 * q + me) for q in ranks]))


@WITH_AND_WITHOUT_MEMORY
def test_objects_and_sparse_tensors(k):
    pair = of_all(k)
    me, size = dist.get_rank(), pair.size
    everyone = [None] * size
    dist.all_gather_object(everyone, {"rank": me, "text": "x" * me}, group=pair.ours)
    assert everyone == [{"rank": rank, "text": "x" * rank} for rank in range(size)]
    said = [f"rank {me}", me]
    dist.broadcast_object_list(said, size - 1, group=pair.ours)
    assert said == [f"rank {size - 1}", size - 1]
    rows = torch.tensor([[me, 0]])
    sparse = torch.sparse_coo_tensor(rows, torch.ones(2, 3), (size, 3))
    dist.all_reduce(sparse, group=pair.ours)
    dense = torch.zeros(size, 3)
    for rank in range(size):
        dense[rank] += 1
        dense[0] += 1
    assert torch.equal(sparse.to_dense(), dense)


@WITH_AND_WITHOUT_MEMORY
def test_groups_take_single_tensors_roots_and_operations_as_gloos_do(k):
    pair = of_all(k)
    own, last = torch.full((2,), float(dist.get_rank() + 1)), pair.size - 1
    found = []
    for group in (pair.ours, pair.gloo):
        total, most, sent, least = (own.clone() for _ in range(4))
        group.allreduce(total).wait()
        group.allreduce([most], dist.ReduceOp.MAX).wait()
        group.broadcast(sent, root=last).wait()
        group.reduce(least, last, op=dist.ReduceOp.MIN).wait()
        every, part, of_root = own.new_empty(pair.size, 2), own.new_empty(2), own.new_empty(2)
        group.allgather([*every], own).wait()
        group.reduce_scatter(part, [*every], dist.ReduceOp.MAX).wait()
        group.scatter(of_root, [*every] if dist.get_rank() == last else [], last).wait()
        gathered = own.new_zeros(pair.size, 2)
        group.gather([*gathered] if dist.get_rank() == 0 else [], own, root=0).wait()
        group.barrier(timeout=timedelta(seconds=60)).wait()
        if dist.get_rank() != last:
            least.zero_()  # who is not the root finds anything there
        found.append(torch.cat([t.flatten() for t in (total, most, sent, least, every, part)]))
        found[-1] = torch.cat([found[-1], of_root, gathered.flatten()])
    assert torch.equal(*found)
    with pytest.raises(CommError, match="expected one tensor, got 2; coalesced forms"):
        pair.ours.allreduce([own, own])
    with pytest.raises(CommError, match=f"root {pair.size}: expected a rank of the group, 0 to"):
        pair.ours.broadcast(own, pair.size)


OPERATORS = {  # of compiled functions: what each makes of rows, in the group of a name
    "all_reduce": lambda op, rows, size, name: op(rows, "sum", name),
    "all_reduce_": lambda op, rows, size, name: op(rows.clone(), "sum", name),
    "all_gather_into_tensor": lambda op, rows, size, name: op(rows, size, name),
    "all_gather_into_tensor_out": lambda op, rows, size, name: op(
        rows, size, name, out=rows.new_empty(size * len(rows), 3)
    ),
    "reduce_scatter_tensor": lambda op, rows, size, name: op(rows, "sum", size, name),
    "reduce_scatter_tensor_out": lambda op, rows, size, name: op(
        rows, "sum", size, name, out=rows.new_empty(len(rows) // size, 3)
    ),
    "all_to_all_single": lambda op, rows, size, name: op(rows, [2] * size, [2] * size, name),
    "broadcast": lambda op, rows, size, name: op(rows, size - 1, name),
}


@pytest.mark.parametrize("name", OPERATORS)
@WITH_AND_WITHOUT_MEMORY
def test_operators_of_compiled_functions(name, k):
    pair = of_all(k)
    rows = filled((2 * pair.size, 3), torch.float32, dist.get_rank())
    operators = torch.ops._c10d_functional
    ours, theirs = (
        operators.wait_tensor(
            OPERATORS[name](getattr(operators, name), rows, pair.size, group.group_name)
        )
        for group in (pair.ours, pair.gloo)
    )
    close(ours, theirs)


SAME_VALUES = {  # operations that leave equal tensors as they are
    "all_reduce": lambda x, pair, g: dist.all_reduce(x, dist.ReduceOp.MAX, g),
    "reduce": lambda x, pair, g: dist.reduce(x, pair.ranks[0], dist.ReduceOp.MAX, g),
    "broadcast": lambda x, pair, g: dist.broadcast(x, pair.ranks[-1], g),
    "scatter": lambda x, pair, g: dist.scatter(
        x, [x.detach().clone()] * pair.size if pair.me == 0 else None, pair.ranks[0], g
    ),
    "all_to_all": lambda x, pair, g: dist.all_to_all_single(x, x.detach().clone(), group=g),
}


@pytest.mark.parametrize("name", SAME_VALUES)
@WITH_AND_WITHOUT_MEMORY
def test_what_autograd_has_saved_may_be_overwritten_with_the_same(name, k):
    pair = of_all(k)
    for group in (pair.ours, pair.gloo):
        x = torch.full((pair.size, 2), 0.5, requires_grad=True)
        saved = x.exp()  # for the backward pass
        SAME_VALUES[name](saved, pair, group)
        saved.sum().backward()
        assert torch.equal(x.grad, saved)
