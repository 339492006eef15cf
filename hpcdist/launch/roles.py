"""Which rank is a trainer and which a server, from facts about all ranks. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from hpcdist.base.errors import LaunchError
from hpcdist.comm.cluster import DEFAULT_PORT, PSERVER, TRAINER, Cluster
from hpcdist.launch import role_map as maps

T = TypeVar("T")


@dataclass(frozen=True)
class RankFacts:
    """What one rank tells all others before roles are decided."""

    host: str
    pid: int
    pservers: int | None
    role_map: str | None
    env: Mapping[str, str]  # its settings.role_variables()
    begun_ns: int = 0  # since 1970: with host and process it names this run, as no other
    problem: str = ""  # why this rank cannot run the script
    cores: Sequence[int] = field(default_factory=list)  # those that it may use

    @property
    def run(self) -> str:
        """What names this run of a job, if this rank is its first."""
        return f"{self.host}-{self.pid}-{self.begun_ns}"

    def encode(self) -> bytes:
        """Return these facts as bytes for a message."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(data: bytes) -> RankFacts:
        """Return the facts that `encode` wrote."""
        return RankFacts(**json.loads(data))

    @property
    def role(self) -> str:
        """The role that the environment gives this rank, or an empty string."""
        return (self.env.get("PADDLE_TRAINING_ROLE") or self.env.get("TRAINING_ROLE") or "").upper()

    @property
    def port(self) -> str:
        """The port in the names of servers."""
        return self.env.get("PADDLE_PSERVER_PORT") or str(DEFAULT_PORT)

    @property
    def endpoint(self) -> str:
        """The name that the environment gives this rank, or an empty string."""
        if name := self.env.get("PADDLE_CURRENT_ENDPOINT"):
            return name
        if address := self.env.get("PADDLE_CURRENT_IP"):
            return f"{address}:{self.port}"
        if address := self.env.get("POD_IP"):
            return f"{address}:{self.env.get('PADDLE_PORT') or self.port}"
        return ""

    @property
    def server_names(self) -> tuple[str, ...]:
        """The names that the environment gives the servers, in server order, or none."""
        if names := self.env.get("PADDLE_PSERVERS_IP_PORT_LIST"):
            return tuple(names.split(","))
        hosts = self.env.get("PADDLE_PSERVER_IPS")
        return tuple(f"{host}:{self.port}" for host in hosts.split(",")) if hosts else ()

    @property
    def trainer_names(self) -> tuple[str, ...]:
        """The names that the environment gives the trainers, in trainer order, or none."""
        names = self.env.get("PADDLE_TRAINER_ENDPOINTS")
        return tuple(names.split(",")) if names else ()


def decide(ranks: Sequence[RankFacts]) -> Cluster:
    """Return the role of each rank in a job of two or more; every rank decides the same.

    Without servers all ranks are trainers, which train collectively.
    """
    pservers = _agreed("--pservers", ranks, lambda r: r.pservers)
    role_map = _agreed("--role-map", ranks, lambda r: r.role_map)
    by_environment = any(r.role for r in ranks)
    if by_environment:
        if role_map is not None:
            raise LaunchError(
                f"roles are given twice, by PADDLE_TRAINING_ROLE and by the role map {role_map!r}: "
                "unset one of them"
            )
        trainers, servers = _from_environment(ranks)
    elif role_map in (None, "servers-last", "servers-first"):
        first = role_map == "servers-first"
        if role_map is not None and not pservers:
            raise LaunchError(f"role map {role_map!r} needs --pservers P")
        trainers, servers = maps.by_count(len(ranks), pservers or 0, servers_first=first)
    else:
        assert role_map is not None
        trainers, servers = maps.parse(role_map, [r.host for r in ranks])
    if pservers is not None and pservers != len(servers):
        source = "PADDLE_TRAINING_ROLE gives" if by_environment else f"role map {role_map!r} gives"
        raise LaunchError(f"--pservers is {pservers}, but {source} {len(servers)} servers")
    return Cluster(
        trainers,
        servers,
        _names("servers", ranks, servers, lambda r: r.server_names),
        _names("trainers", ranks, trainers, lambda r: r.trainer_names),
    )


def refuse_lone_role(env: Mapping[str, str]) -> None:
    """Refuse one rank that has been told that it is part of a larger job, as Fluid started them."""
    role = env.get("PADDLE_TRAINING_ROLE") or env.get("TRAINING_ROLE")
    servers = env.get("PADDLE_PSERVER_IPS") or env.get("PADDLE_PSERVERS_IP_PORT_LIST")
    if role and servers:
        count = len(servers.split(","))
        trainers = env.get("PADDLE_TRAINERS") or env.get("PADDLE_TRAINERS_NUM") or "1"
        total = count + int(trainers) if trainers.isdigit() else "N"
        raise LaunchError(
            f"PADDLE_TRAINING_ROLE={role} with {count} servers, but this job has one rank: "
            f"processes started one by one do not find each other; start all at once with "
            f"mpirun -n {total} python -m hpcdist --pservers {count} ..., or unset the variable"
        )


def _from_environment(ranks: Sequence[RankFacts]) -> tuple[maps.Ranks, maps.Ranks]:
    """Return (trainers, servers) as PADDLE_TRAINING_ROLE on every rank says, in index order."""
    wrong = {i: r.role for i, r in enumerate(ranks) if r.role not in (TRAINER, PSERVER)}
    if wrong:
        raise LaunchError(
            "PADDLE_TRAINING_ROLE must be TRAINER or PSERVER on every rank or unset on every rank, "
            f"got {', '.join(f'{role or None} on rank {i}' for i, role in wrong.items())}"
        )
    trainers = [i for i, r in enumerate(ranks) if r.role == TRAINER]
    servers = [i for i, r in enumerate(ranks) if r.role == PSERVER]
    ids = [ranks[i].env.get("PADDLE_TRAINER_ID") for i in trainers]
    if any(trainer_id is not None for trainer_id in ids):
        if sorted(map(str, ids)) != sorted(map(str, range(len(trainers)))):
            raise LaunchError(
                f"the {len(trainers)} trainers (ranks {trainers}) need PADDLE_TRAINER_ID 0.."
                f"{len(trainers) - 1}, one each, got {ids}"
            )
        trainers.sort(key=lambda i: int(ranks[i].env["PADDLE_TRAINER_ID"]))
    names = _agreed("names of the servers", ranks, lambda r: r.server_names)
    endpoints = [ranks[i].endpoint for i in servers]
    if names and any(endpoints):
        if sorted(endpoints) != sorted(names):
            raise LaunchError(
                f"servers are named {','.join(names)}, but the server ranks {servers} have "
                f"the names {endpoints} (PADDLE_CURRENT_IP or PADDLE_CURRENT_ENDPOINT)"
            )
        servers.sort(key=lambda i: names.index(ranks[i].endpoint))
    return tuple(trainers), tuple(servers)


def _names(
    kind: str,
    ranks: Sequence[RankFacts],
    members: maps.Ranks,
    given_by: Callable[[RankFacts], tuple[str, ...]],
) -> tuple[str, ...]:
    """Return the endpoints of one role: the environment's list, or each rank's own, or none."""
    names = _agreed(f"names of the {kind}", ranks, given_by)
    if names and len(names) != len(members):
        raise LaunchError(
            f"the environment names {len(names)} {kind} ({','.join(names)}), this job has "
            f"{len(members)}: unset the names or change --pservers or the number of ranks"
        )
    endpoints = tuple(ranks[i].endpoint for i in members if ranks[i].role)
    names = names or (endpoints if len(endpoints) == len(members) and all(endpoints) else ())
    if not all(re.fullmatch(r".+:\d+", name) for name in names):
        raise LaunchError(f"{kind} are named {','.join(names)}, expected host:port for each")
    return names


def _agreed(option: str, ranks: Sequence[RankFacts], value: Callable[[RankFacts], T]) -> T:
    """Return the value that all ranks give; refuse a job whose ranks were started differently."""
    values = [value(r) for r in ranks]
    for rank, other in enumerate(values):
        if other != values[0]:
            raise LaunchError(
                f"ranks were started with different {option}: {values[0] or None} on rank 0, "
                f"{other or None} on rank {rank}"
            )
    return values[0]
