"""What groups of the same ranks use one after another: a communicator and shared memory.

MPI frees both collectively, and ranks drop groups whenever they like. So what a dropped group had
is kept, and the next group of the same ranks has it, once all of them have dropped the former.
"""

from __future__ import annotations

import json
import threading
import uuid
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hpcdist.base.errors import DeadlineError
from hpcdist.comm.base import Transport
from hpcdist.comm.collective import RankGroup
from hpcdist.comm.hierarchy import Nodes, find_nodes
from hpcdist.torch.host_memory import HostMemory, host_memory
from hpcdist.torch.work import MpiWork


@dataclass(eq=False)
class Links:
    """What ranks made for one group; ``key`` is the same on all of them, and no other's."""

    key: str
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


class Connection:
    """A group's hold on its links, and that of its operations until they have ended."""

    def __init__(self, links: Links, leave: Callable[[Links], None]) -> None:
        self.links = links
        weakref.finalize(self, leave, links).atexit = False

    def ended(self, work: MpiWork) -> None:
        """Be told of an operation's end; operations refer to this until then."""
        self.links.end(work.operation.error)
        work.tell()


class Connections:
    """The links of this process that no group uses, and how groups come by theirs."""

    def __init__(self, transport: Transport, names: tuple[int, ...]) -> None:
        """``transport`` connects all ranks of the job, which messages call ``names``."""
        self._transport = transport
        self._names = names
        self._left: dict[tuple[int, ...], dict[str, Links]] = {}
        self._met: Counter[tuple[tuple[int, ...], str]] = Counter()

    def make(
        self, store: dist.Store, ranks: Sequence[int], name: str, deadline_s: float
    ) -> Connection:
        """Return the connection of a group of the job's ``ranks``. Collective among them."""
        of = tuple(ranks)
        left = self._left.setdefault(of, {})
        key = uuid.uuid4().hex
        offer = json.dumps([key, {links.key: links.unanswered for links in [*left.values()]}])
        offers = self._meet(store, of, name, offer, deadline_s)
        links = left.pop(reusable(offers), None)
        if links is None:
            transport = self._transport.subset(of, zlib.crc32(name.encode()) % 2**15)
            group = RankGroup(transport, tuple(self._names[rank] for rank in of), deadline_s)
            memory = host_memory(transport, group.names)
            nodes = None
            if memory is None and transport.size > 1:
                nodes, _ = find_nodes(group, 0)
            links = Links(offers[0][0], transport, memory, nodes)
        links.unanswered = 0

        def leave(links: Links) -> None:
            if not links.failed and not links.under_way:
                left[links.key] = links

        return Connection(links, leave)

    def _meet(
        self, store: dist.Store, ranks: tuple[int, ...], name: str, offer: str, deadline_s: float
    ) -> list[tuple[str, dict[str, int]]]:
        """Return the offers of all ranks of a group, once all make it.

        MPI's own wait for them has no deadline.
        """
        rank, times = self._transport.rank, self._met[ranks, name]  # torch gives names again
        keys = {r: f"makes/{times}/{k}" for k, r in enumerate(ranks)}
        store.set(keys[rank], offer)
        try:
            store.wait([*keys.values()], timedelta(seconds=deadline_s))
        except dist.DistStoreError as late:
            missing = tuple(r for r, key in keys.items() if not store.check([key]))
            error = DeadlineError(
                f"rank {rank} makes group {name!r} of ranks {list(ranks)} and rank "
                f"{', '.join(map(str, missing))} has not within {deadline_s:g} s: every rank must "
                "call new_group for all groups, in the same order"
            )
            error.missing = tuple(self._names[r] for r in missing)
            raise error from late
        self._met[ranks, name] += 1
        offers: list[Any] = [json.loads(text) for text in store.multi_get([*keys.values()])]
        return [(key, left) for key, left in offers]


def reusable(offers: Sequence[tuple[str, dict[str, int]]]) -> str:
    """Return the key of links that all ranks of a group have left, "" if there are none.

    Single messages that nobody has received would come to the next group: all must have been.
    """
    lefts = [left for _, left in offers]
    in_all = set.intersection(*map(set, lefts))
    return min((key for key in in_all if not sum(left[key] for left in lefts)), default="")
