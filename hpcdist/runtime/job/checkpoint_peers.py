"""The other ranks of a job, as checkpoints see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdist.base.errors import RankFailure, TrainersDied
from hpcdist.checkpoint.ranks import ANNOUNCED
from hpcdist.comm.base import Request, Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.progress import waits_for_ranks

if TYPE_CHECKING:
    from hpcdist.ps.client import PsClient

ANNOUNCE_TAG = 6  # trainer 0 to another: what it has saved

_announced: list[tuple[np.ndarray, list[Request]]] = []  # that may still be on their way


@dataclass(frozen=True)
class JobPeers:
    """A trainer's peers: the other trainers that live, and the servers, if there are any.

    Trainers are numbered anew, without the dead.
    """

    gone: set[int]  # those that all trainers know to be dead; shared by all of a trainer's peers
    cluster: Cluster
    group: Transport  # all trainers
    client: Callable[[], PsClient] | None
    deadline_s: float

    @property
    def living(self) -> tuple[int, ...]:
        """The trainers that live, as far as this one knows."""
        dead = self.gone | self.group.failed()
        return tuple(k for k in range(self.group.size) if k not in dead)

    @property
    def trainer(self) -> int:
        """This trainer's number among those that live."""
        return self.living.index(self.group.rank)

    @property
    def trainers(self) -> int:
        """Number of trainers that live."""
        return len(self.living)

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.cluster.servers)

    def gather(self, data: bytes, deadlines: int = 1) -> list[bytes]:
        """Return every trainer's ``data``, in trainer order, when all have come. Collective.

        They may be late by so many deadlines.
        """
        with self._naming([k for k in self.living if k != self.group.rank]):
            return self._gathered(data, deadlines * self.deadline_s)

    def _gathered(self, data: bytes, deadline_s: float) -> list[bytes]:
        awaited = "the others' part of a checkpoint"
        if not self.group.tolerant:
            return [*self.group.allgather_bytes(data, deadline_s, awaited)]
        living = self.living
        came = self.group.allgather_living(_line(living) + data, deadline_s, awaited)
        present = [k for k, part in enumerate(came) if part is not None]
        # Who died meanwhile may have reached some; what counts is who reached all that are left.
        marks = self.group.allgather_living(_line(present), deadline_s, awaited)
        agreed = set(present).intersection(*(_numbers(mark) for mark in marks if mark is not None))
        parts = [part.partition(b"\n") for k in sorted(agreed) if (part := came[k]) is not None]
        if any(_numbers(views) != agreed for views, _, _ in parts):
            self.gone.update(set(range(self.group.size)) - agreed)
            raise TrainersDied("trainers died while a checkpoint was made, or read")
        return [rest for _, _, rest in parts]

    def _naming(self, awaited: Sequence[int]) -> AbstractContextManager[None]:
        """Name these trainers in a DeadlineError of the waits inside."""
        return waits_for_ranks(lambda: [self.cluster.trainers[k] for k in awaited])

    def announce(self, data: bytes) -> None:
        """Send up to `ANNOUNCED` bytes to all other trainers, who may come for it or not."""
        message = np.frombuffer(data, np.uint8)
        peers = [k for k in self.living if k != self.group.rank]
        sent = [self.group.isend(message, k, ANNOUNCE_TAG) for k in peers]
        _announced[:] = [(m, r) for m, r in _announced if not self.group.test_all(r)]
        _announced.append((message, sent))

    def hear(self, awaited: str, deadlines: int = 1) -> bytes | None:
        """Return trainer 0's next announcement; None if it has died. ``awaited`` is waited for."""
        message = np.zeros(ANNOUNCED, np.uint8)
        first = self.living[0]
        try:
            request = self.group.irecv(message, first, ANNOUNCE_TAG)
            with self._naming([first]):
                self.group.wait_all([request], lambda: awaited, deadlines * self.deadline_s)
        except RankFailure:
            return None
        return message.tobytes().rstrip(b"\0")

    def ask(self, request: object) -> list[Any]:
        """Ask every server; return their answers in order. They answer between steps."""
        return [] if self.client is None else self.client().ask(request)


def _line(trainers: Sequence[int]) -> bytes:
    return b" ".join(str(k).encode() for k in trainers) + b"\n"


def _numbers(line: bytes) -> set[int]:
    return {int(word) for word in line.split()}
