"""``torch.distributed.split_group`` for groups of ours, which torch's own function refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.constants import default_pg_timeout

from hpcdist.base.errors import GroupError
from hpcdist.torch.process_group import MpiProcessGroup


@dataclass(frozen=True)
class Split:
    """A call of split_group as all ranks of the parent must make it."""

    split_ranks: list[list[int]]  # numbers within the parent
    timeout: timedelta
    group_desc: str
    backend: str


def split_group(
    by_torch: Callable[..., dist.ProcessGroup | None],
    parent_pg: dist.ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> dist.ProcessGroup | None:
    """Return this rank's group of the splits, None if it is in none. Collective in the parent.

    ``split_ranks`` are numbers within ``parent_pg``; ``backend`` names some of its devices with
    their backends, the CPU among them. A group of torch's own is split ``by_torch``.
    GroupError, on all ranks, if they disagree or the groups cannot be made.
    """
    whole = distributed_c10d._get_default_group()
    parent: Any = parent_pg or whole
    groups = distributed_c10d._world.pg_map
    if parent not in groups and isinstance(whole, MpiProcessGroup):
        raise GroupError(
            f"rank {whole.rank()} calls split_group of a group that it is not in, or that has been "
            "destroyed: only the ranks of a group can split it"
        )
    if not isinstance(parent, MpiProcessGroup):
        return by_torch(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
    of_parent, _ = groups[parent]
    split = Split(
        [sorted(map(int, ranks)) for ranks in split_ranks or ()],
        default_pg_timeout if timeout is None else timeout,
        group_desc or f"{parent.group_desc}:split:{parent.splits}",
        str(backend or of_parent),
    )
    calls: list[Any] = [None] * parent.size()
    dist.all_gather_object(calls, split, parent)
    ranks = dist.get_process_group_ranks(parent)
    fault = (
        _disagreement(calls, ranks)
        or _wrong_ranks(split.split_ranks, parent.size())
        or _wrong_backend(split.backend, str(of_parent))
    )
    if fault:
        raise GroupError(f"rank {whole.rank()}: split_group of {parent.group_desc!r}: {fault}")
    return _made(parent, split, ranks, pg_options)


def _disagreement(calls: Sequence[Split], ranks: Sequence[int]) -> str:
    """Return the difference if ranks call different things, else nothing; so the next two."""
    other = next((k for k, call in enumerate(calls) if call != calls[0]), None)
    if other is None:
        return ""
    return (
        f"every rank must make the same call, rank {ranks[0]} makes {calls[0]}, "
        f"rank {ranks[other]} {calls[other]}"
    )


def _wrong_ranks(splits: Sequence[Sequence[int]], size: int) -> str:
    expected = f"expected lists of ranks of the parent, 0 to {size - 1}, each rank in one at most"
    if not splits or not all(splits):
        return f"{expected}, got split_ranks={splits} with nothing in it"
    seen: set[int] = set()
    for rank in chain.from_iterable(splits):
        if rank in seen or not 0 <= rank < size:
            return f"{expected}, got split_ranks={splits}, rank {rank} " + (
                "twice" if rank in seen else f"of a group of {size}"
            )
        seen.add(rank)
    return ""


def _wrong_backend(backend: str, of_parent: str) -> str:
    own, wanted = (
        distributed_c10d.BackendConfig(distributed_c10d.Backend(name)).get_device_backend_map()
        for name in (of_parent, backend)
    )
    if "cpu" in wanted and wanted.items() <= own.items():
        return ""
    return f"expected backend={of_parent!r}, or a part of it for the CPU, got {backend!r}"


def _made(
    parent: MpiProcessGroup, split: Split, ranks: Sequence[int], pg_options: object
) -> dist.ProcessGroup | None:
    """Make this rank's group. Collective among its ranks; ``ranks``: the parent's in the job."""
    # The name follows from the parent's: its ranks may be in different numbers of groups.
    name = f"{parent.group_name}:split:{parent.splits}:"
    parent.splits += 1
    me = parent.rank()
    place = next((k for k, group in enumerate(split.split_ranks) if me in group), None)
    if place is None:
        return None
    members = split.split_ranks[place]
    of_job = [ranks[member] for member in members]
    world = distributed_c10d._world
    _, store = world.pg_map[distributed_c10d._get_default_group()]
    group: dist.ProcessGroup
    group, _ = distributed_c10d._new_process_group_helper(
        len(members),
        members.index(me),
        of_job,
        distributed_c10d.Backend(split.backend),
        store,
        distributed_c10d.GroupName(f"{name}{place}"),
        pg_options,
        timeout=split.timeout,
        group_desc=split.group_desc,
    )
    world.pg_group_ranks[group] = {rank: member for member, rank in enumerate(of_job)}
    return group
