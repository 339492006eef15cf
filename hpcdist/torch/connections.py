"""What groups of the same ranks use one after another: a communicator and shared memory.

MPI frees both collectively, and ranks drop groups whenever they like. So what a dropped group had
is kept, and the next group of the same ranks has it, once all of them have dropped the former.

A script may number its ranks otherwise than MPI does (``file://``, ``store=``), and may make worlds
of some of them. So the members of a group tell each other their ranks in the job by its store.
"""

from __future__ import annotations

import json
import threading
import uuid
import weakref
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hpcdist.base.errors import CommError, DeadlineError
from hpcdist.comm.base import Transport
from hpcdist.comm.collective import RankGroup
from hpcdist.comm.hierarchy import Nodes, find_nodes
from hpcdist.torch.host_memory import HostMemory, host_memory
from hpcdist.torch.work import MpiWork


@dataclass(eq=False)
class GroupLinks:
    """What ranks made for one group; ``key`` is the same on all of them, and no other's."""

    key: str
    ranks: tuple[int, ...]  # the job's, in the order of the group
    transport: Transport
    memory: HostMemory | None
    nodes: Nodes | None  # the hosts, where there are several
    failed: bool = False  # an operation: messages of it may still come
    under_way: int = 0  # operations; one that was dropped half done stays
    unanswered: int = 0  # single messages that this rank has sent less those that it has received
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def count(self, sent: int) -> None:
        """Note a single message that is sent, or one that is received (-1)."""
        with self._counting:
            self.unanswered += sent

    def begin(self) -> None:
        """Note the beginning of an operation."""
        with self._counting:
            self.under_way += 1

    def end(self, error: Exception | None) -> None:
        """Note the end of an operation."""
        with self._counting:
            self.under_way -= 1
            self.failed |= error is not None


class GroupConnection:
    """A group's hold on its links, and that of its operations until they have ended."""

    def __init__(self, links: GroupLinks, leave: Callable[[GroupLinks], None]) -> None:
        self.links = links
        weakref.finalize(self, leave, links).atexit = False

    def ended(self, work: MpiWork) -> None:
        """Settle an operation that has ended; operations refer to this until then."""
        self.links.end(work.operation.error)
        work.tell()


class Connections:
    """The links of this process that no group uses, and how groups come by theirs."""

    def __init__(self, transport: Transport, names: tuple[int, ...]) -> None:
        """``transport`` connects all ranks of the job, which messages call ``names``."""
        self._transport = transport
        self._names = names
        self._left: dict[tuple[int, ...], dict[str, GroupLinks]] = {}

    def make(
        self, store: dist.Store, members: Sequence[int], me: int, name: str, deadline_s: float
    ) -> GroupConnection:
        """Return the connection of a group. Collective among its members, who share ``store``.

        ``members`` are their numbers as the script gives them, ``me`` this process's place there.
        """
        rank, size = self._transport.rank, len(members)
        key = uuid.uuid4().hex
        left = {
            links.key: links.unanswered
            for ranks, unused in [*self._left.items()]
            if len(ranks) == size and ranks[me] == rank
            for links in [*unused.values()]
        }
        offers = self._meet(store, members, me, name, Offer(rank, key, left), deadline_s)
        of = tuple(offer.rank for offer in offers)
        unused = self._left.setdefault(of, {})
        links = unused.pop(reusable([offer.left for offer in offers], unused), None)
        if links is None:
            transport = self._transport.subset(of, zlib.crc32(name.encode()) % 2**15)
            group = RankGroup(transport, tuple(self._names[rank] for rank in of), deadline_s)
            memory = host_memory(transport, group.names)
            nodes = None
            if memory is None and transport.size > 1:
                nodes, _ = find_nodes(group, 0)
            links = GroupLinks(offers[0].key, of, transport, memory, nodes)
        links.unanswered = 0

        def leave(links: GroupLinks) -> None:
            if not links.failed and not links.under_way:
                unused[links.key] = links

        return GroupConnection(links, leave)

    def _meet(
        self,
        store: dist.Store,
        members: Sequence[int],
        me: int,
        name: str,
        offer: Offer,
        deadline_s: float,
    ) -> list[Offer]:
        """Return the offers of all members of a group, once all make it.

        MPI's own wait for them has no deadline.
        """
        times = store.add(f"makes/{me}", 1)  # torch gives names again, and scripts stores
        keys = [f"makes/{times}/{k}" for k in range(len(members))]
        store.set(keys[me], json.dumps(astuple(offer)))
        try:
            store.wait(keys, timedelta(seconds=deadline_s))
        except RuntimeError as late:  # of torch's own stores, some raise no DistStoreError
            if isinstance(late, CommError) and not isinstance(late, dist.DistStoreError):
                raise
            came = {k: _offer(store.get(key)) for k, key in enumerate(keys) if store.check([key])}
            if len(came) == len(keys):
                raise
            raise self._nobody_came(members, me, name, deadline_s, came) from late
        known: Any = store  # torch's stubs do not have it
        texts = store.multi_get(keys) if known.has_extended_api() else map(store.get, keys)
        offers = [_offer(text) for text in texts]
        if len({other.rank for other in offers}) < len(offers):
            raise CommError(
                f"rank {self._names[offer.rank]} makes group {name!r} of {len(offers)} processes, "
                f"which are ranks {[other.rank for other in offers]} of their jobs: expected ranks "
                "of one job; start all of them by one mpirun (or srun), or leave groups across "
                "jobs to torch (without hpcdist)"
            )
        return offers

    def _nobody_came(
        self,
        members: Sequence[int],
        me: int,
        name: str,
        deadline_s: float,
        came: Mapping[int, Offer],
    ) -> DeadlineError:
        """Return the error that names the members who have not come to make a group."""
        absent = [number for k, number in enumerate(members) if k not in came]
        error = DeadlineError(
            f"rank {members[me]} makes group {name!r} of ranks {list(members)} and rank "
            f"{', '.join(map(str, absent))} has not within {deadline_s:g} s: every rank must "
            "call init_process_group, and new_group for all groups, in the same order (if it is "
            "only slow, raise --deadline, in ms, or the timeout that the script gives)"
        )
        here = {offer.rank for offer in came.values()}
        if len(members) == self._transport.size:
            missing = sorted({*range(self._transport.size)} - here)
        else:  # as MPI numbers them, if those that came are
            as_mpi = all(members[k] == offer.rank for k, offer in came.items())
            missing = absent if as_mpi else []
        error.missing = tuple(self._names[r] for r in missing)
        return error


@dataclass(frozen=True)
class Offer:
    """What a member of a group tells the others: its rank in the job, and links it has left.

    ``key`` names new links if no others can be used; ``left``: keys, and messages not received.
    """

    rank: int
    key: str
    left: Mapping[str, int]


def _offer(text: bytes) -> Offer:
    return Offer(*json.loads(text))


def reusable(lefts: Sequence[Mapping[str, int]], here: Collection[str]) -> str:
    """Return the key of links that all ranks of a group have left, "" if there are none.

    ``here``: those that connect these very ranks, in this order. Single messages that nobody has
    received would come to the next group: all must have been.
    """
    in_all = set(here).intersection(*lefts)
    return min((key for key in in_all if not sum(left[key] for left in lefts)), default="")
