"""The other ranks of a job, as checkpoints see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import Cluster
from hpcdist.errors import CheckpointError, TrainersDied
from hpcdist.graph.program import Program
from hpcdist.ps.client import PsClient


class Link(Protocol):
    """A trainer's connection to the others, as checkpoints see it."""

    def settle(self, program: Program) -> dict[str, int]:
        """Let all that was sent arrive; return what is counted for a Program."""

    def catch_up(self, program: Program) -> None:
        """When all trainers have settled: take over what they have sent."""

    def resume(self, program: Program, counted: Mapping[str, int]) -> None:
        """When all ranks have loaded: go on from there."""


@dataclass(frozen=True)
class JobPeers:
    """A trainer's peers: the other trainers that live, and the servers, if there are any.

    Trainers are numbered anew, without the dead.
    """

    gone: set[int]  # those that all trainers know to be dead; shared by all of a trainer's peers
    cluster: Cluster
    among: Transport  # all trainers
    link: Link
    resolve: Callable[[Program], Program]
    client: Callable[[], PsClient] | None
    deadline_s: float

    @property
    def living(self) -> tuple[int, ...]:
        """The trainers that live, as far as this one knows."""
        dead = self.gone | self.among.failed()
        return tuple(k for k in range(self.among.size) if k not in dead)

    @property
    def trainer(self) -> int:
        """This trainer's number among those that live."""
        return self.living.index(self.among.rank)

    @property
    def trainers(self) -> int:
        """Number of trainers that live."""
        return len(self.living)

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self.cluster.servers)

    @property
    def group(self) -> Transport:
        """The transport of all trainers."""
        return self.among

    def program(self, program: Program) -> Program:
        """Return the Program that this rank runs in place of ``program``."""
        return self.resolve(program)

    def gather(self, data: bytes) -> list[bytes]:
        """Return every trainer's ``data``, in trainer order, when all have come. Collective."""
        what = "the others' part of a checkpoint"
        if not self.among.tolerant:
            return [*self.among.allgather_bytes(data, None, what)]
        living = self.living
        came = self.among.allgather_living(_line(living) + data, None, what)
        present = [k for k, part in enumerate(came) if part is not None]
        # Who died meanwhile may have reached some; what counts is who reached all that are left.
        marks = self.among.allgather_living(_line(present), None, what)
        agreed = set(present).intersection(*(_numbers(mark) for mark in marks if mark is not None))
        parts = [part.partition(b"\n") for k in sorted(agreed) if (part := came[k]) is not None]
        if any(_numbers(views) != agreed for views, _, _ in parts):
            self.gone.update(set(range(self.among.size)) - agreed)
            raise TrainersDied("trainers died while a checkpoint was made, or read")
        return [rest for _, _, rest in parts]

    def ask(self, what: Any) -> list[Any]:
        """Ask every server; return their answers in order. They answer between steps."""
        return [] if self.client is None else self.client().ask(what)

    def read(self, server: int, arrays: Mapping[str, Any]) -> None:
        """Overwrite each array with the server's present value of the variable of that name."""
        if self.client is None:
            raise CheckpointError(f"there is no server {server}: this job has no servers")
        self.client().read(self.cluster.endpoints[server], arrays)

    def settle(self, program: Program) -> dict[str, int]:
        """Let all that this trainer has sent arrive; return what is counted for a Program."""
        return self.link.settle(program)

    def catch_up(self, program: Program) -> None:
        """When all trainers have settled: take over what they have sent."""
        self.link.catch_up(program)

    def resume(self, program: Program, counted: Mapping[str, int]) -> None:
        """When all ranks have loaded: go on from what they hold, and from what was counted."""
        self.link.resume(program, counted)


def _line(trainers: Sequence[int]) -> bytes:
    return b" ".join(str(k).encode() for k in trainers) + b"\n"


def _numbers(line: bytes) -> set[int]:
    return {int(word) for word in line.split()}
