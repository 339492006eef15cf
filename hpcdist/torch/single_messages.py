"""send, recv and recv from any rank, beside a group's collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from hpcdist.base.errors import CommError
from hpcdist.comm.base import ANY
from hpcdist.comm.lanes import Lane, Steps, Wait
from hpcdist.torch.channel import Channel
from hpcdist.torch.group_queue import GroupQueue
from hpcdist.torch.memory import checked, described, flat, put_back
from hpcdist.torch.work import MpiWork


class SingleMessages:
    """The messages from rank to rank of one group; see `MpiProcessGroup`."""

    def __init__(self, queue: GroupQueue) -> None:
        self._queue = queue
        # Of one tag they are filled in the order of their calls, of several side by side; after
        # them those from one rank that are called while they wait, as messages would match in MPI.
        self._from_anyone: dict[int, Lane] = defaultdict(Lane)

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> MpiWork:
        """Send a tensor to a rank of the group."""
        checked([tensor], ())
        channel, vector, links = self._channel(tag), flat(tensor), self._queue.links

        def steps() -> Steps:
            yield channel.exchange([(to, vector)])
            links.count(1)

        name = self._queue.group.names[to]
        operation = f"rank {name} to take {described(tensor)}, tag {tag}"
        return self._queue.go(MpiWork(self._queue.mover, Lane(), []), steps(), lambda: operation)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> MpiWork:
        """Fill a tensor with a message of one rank."""
        checked((), [tensor])
        channel, vector, links = self._channel(tag), flat(tensor), self._queue.links
        before = self._from_anyone.get(tag)
        lane = Lane() if before is None or before.is_empty() else before
        work = MpiWork(self._queue.mover, lane, [tensor])
        work.source = source

        def steps() -> Steps:
            yield channel.exchange(receives=[(source, vector)])
            links.count(-1)
            put_back([vector], [tensor])

        awaited = _awaited(tensor, tag)
        return self._queue.go(work, steps(), lambda: awaited)

    def receive_any(self, tensor: torch.Tensor, tag: int) -> MpiWork:
        """Fill a tensor with the next message of any rank; the handle's ``source`` is whose."""
        checked((), [tensor])
        channel, vector, links = self._channel(tag), flat(tensor), self._queue.links
        work = MpiWork(self._queue.mover, self._from_anyone[tag], [tensor])

        def steps() -> Steps:
            message = _AnyMessage(channel)
            yield message
            work.source = message.peer
            yield channel.exchange(receives=[(message.peer, vector)])
            links.count(-1)
            put_back([vector], [tensor])

        awaited = _awaited(tensor, tag)
        return self._queue.go(work, steps(), lambda: awaited, any_rank=True)

    def _channel(self, tag: int) -> Channel:
        """Return how a message with a tag of the script's goes."""
        transport = self._queue.group.transport
        most = (transport.most_tag - 1) // 2
        if not 0 <= tag <= most:
            raise CommError(f"tag {tag}: expected 0 to {most}, the tags that this MPI library has")
        return Channel(transport, 2 * tag + 1)


class _AnyMessage(Wait):
    """The wait for a message of any rank; ``peer`` is which, then."""

    def __init__(self, channel: Channel) -> None:
        self.peer = ANY
        self._channel = channel

    def ended(self) -> bool:
        came = self._channel.transport.iprobe(ANY, self._channel.tag)
        if came is not None:
            self.peer = came[0]
        return came is not None

    def missing(self) -> Sequence[int]:
        return self._channel.others


def _awaited(tensor: torch.Tensor, tag: int) -> str:
    return f"a message of {described(tensor)}, tag {tag}"
