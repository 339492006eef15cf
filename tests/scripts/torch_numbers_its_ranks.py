"""Ranks that a script numbers in reverse: every collective must follow its numbers, not MPI's."""

import os

import torch
import torch.distributed as dist

mpi, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
me = size - 1 - mpi
MAKE_WORLD
assert (dist.get_rank(), dist.get_world_size()) == (me, size)


def check(group, mine, members):
    """Check collectives of a group whose ranks, in its order, have the numbers ``members``."""
    numbers = [torch.zeros(1) for _ in members]
    dist.all_gather(numbers, torch.tensor([float(mine)]), group)
    assert [int(n) for n in numbers] == list(members), numbers
    for root in members:
        value = torch.tensor([float(mine)])
        dist.broadcast(value, root, group)
        assert value == root
        parts = [torch.tensor([10.0 * k]) for k in members] if mine == root else None
        part = torch.zeros(1)
        dist.scatter(part, parts, root, group)
        assert part == 10 * mine
    objects = [None] * len(members)
    dist.all_gather_object(objects, mine, group)
    assert objects == list(members)
    long = torch.full((3 << 20,), float(mine))  # through shared memory, in pieces
    dist.all_reduce(long, group=group)
    assert (long == sum(members)).all()
    last, first = members[-1], members[0]
    if mine == first != last:
        dist.send(torch.tensor([7.0]), last, group)
    if mine == last != first:
        value = torch.zeros(1)
        dist.recv(value, first, group)
        assert value == 7


check(None, me, range(size))
for members in [(0, 1), (0, size - 1), range(1, size)]:
    group = dist.new_group(list(members))
    if me in members:
        check(group, me, list(members))
dist.destroy_process_group()
dist.init_process_group("gloo")  # MPI's numbers again
assert dist.get_rank() == mpi
check(None, mpi, range(size))
print("as numbered")
