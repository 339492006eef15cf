"""The roles of a job's ranks: which world rank is which trainer or server, and its endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hpcdist.base.errors import LaunchError

TRAINER = "TRAINER"
PSERVER = "PSERVER"
COLLECTIVE = "COLLECTIVE"
DEFAULT_PORT = 6174


class Ranks(Enum):
    """Which ranks of a job do something together; values are fleet's names for them."""

    TRAINERS = "worker"
    SERVERS = "server"
    ALL = "all"


@dataclass(frozen=True)
class RankRole:
    """What one rank does: its kind, and its index among the ranks of that kind."""

    kind: str
    index: int

    def __str__(self) -> str:
        return f"{'server' if self.kind == PSERVER else 'trainer'} {self.index}"


@dataclass(frozen=True)
class Cluster:
    """The ranks of a job by role.

    ``trainers[i]`` is the world rank of trainer i, ``servers[k]`` that of server k, whose name is
    ``endpoints[k]``. Endpoints are names only: nothing binds a port.
    """

    trainers: tuple[int, ...]
    servers: tuple[int, ...] = ()
    endpoints: tuple[str, ...] = ()
    trainer_endpoints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.endpoints:
            names = tuple(f"ps{k}:{DEFAULT_PORT}" for k in range(len(self.servers)))
            object.__setattr__(self, "endpoints", names)
        if not self.trainer_endpoints:
            names = tuple(f"trainer{i}:{DEFAULT_PORT}" for i in range(len(self.trainers)))
            object.__setattr__(self, "trainer_endpoints", names)
        ranks = self.trainers + self.servers
        if sorted(ranks) != list(range(len(ranks))):
            raise LaunchError(
                f"every rank 0..{len(ranks) - 1} needs exactly one role, "
                f"got trainers {self.trainers} and servers {self.servers}"
            )
        if not self.trainers:
            raise LaunchError(f"a job needs at least one trainer, got {len(ranks)} servers only")
        for kind, named, names in (
            ("servers", self.servers, self.endpoints),
            ("trainers", self.trainers, self.trainer_endpoints),
        ):
            if len(names) != len(named) or len(set(names)) != len(names):
                raise LaunchError(
                    f"{len(named)} {kind} need as many different endpoints, got {','.join(names)}"
                )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.trainers) + len(self.servers)

    def role_of(self, rank: int) -> RankRole:
        """Return the role of a world rank; without servers every rank is COLLECTIVE."""
        if rank in self.servers:
            return RankRole(PSERVER, self.servers.index(rank))
        if rank in self.trainers:
            return RankRole(TRAINER if self.servers else COLLECTIVE, self.trainers.index(rank))
        raise LaunchError(f"rank {rank} is not one of this job's {self.size} ranks")

    def rank_of_endpoint(self, endpoint: str) -> int:
        """Return the world rank of the server called ``endpoint``."""
        if endpoint not in self.endpoints:
            raise LaunchError(
                f"no server of this job is called {endpoint!r}: its {len(self.endpoints)} servers "
                f"are {','.join(self.endpoints) or 'none'}"
            )
        return self.servers[self.endpoints.index(endpoint)]
