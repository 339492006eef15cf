"""How the messages of a group's collectives go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hpcdist.comm.base import Transport
from hpcdist.comm.hierarchy import Nodes
from hpcdist.comm.lanes import Messages
from hpcdist.torch.memory import as_bytes

Vectors = Sequence[torch.Tensor]
# Of messages with results; all others have the channel's. For operations that overlap: one rank may
# send the results of one before the terms of another, another rank after them.
RESULTS_TAG = 2
MOST_BYTES = 2**18  # of a message of such operations: what Open MPI sends without asking first


@dataclass(frozen=True)
class Channel:
    """How the messages of a group's collectives go; all have one tag, for they run in order.

    ``nodes``: the hosts, where there are several.
    """

    transport: Transport
    tag: int
    nodes: Nodes | None = None

    @property
    def rank(self) -> int:
        """This rank's number in the group."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """The number of ranks in the group."""
        return self.transport.size

    @property
    def others(self) -> list[int]:
        """The other ranks, nearest first, so that not all begin with the same one."""
        return [(self.rank + k) % self.size for k in range(1, self.size)]

    def exchange(
        self,
        sends: Sequence[tuple[int, torch.Tensor]] = (),
        receives: Sequence[tuple[int, torch.Tensor]] = (),
    ) -> Messages:
        """Return the wait for messages: pairs of a rank and a vector."""
        return Messages(
            self.transport,
            self.tag,
            [(peer, as_bytes(vector)) for peer, vector in sends],
            [(peer, as_bytes(vector)) for peer, vector in receives],
        )

    def swap(self, given: Vectors, into: Vectors) -> Messages:
        """Return the wait in which every other rank gets ``given[r]``, and sends ``into[r]``."""
        return self.exchange(
            [(peer, given[peer]) for peer in self.others],
            [(peer, into[peer]) for peer in self.others],
        )
