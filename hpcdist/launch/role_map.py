"""The language of --role-map: which ranks are servers. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcdist.base.errors import LaunchError

HELP = """\
  servers-last             trainers are ranks 0..T-1, servers T..T+P-1 (default; needs --pservers P)
  servers-first            servers are ranks 0..P-1 (needs --pservers P)
  t,t,s,s                  one letter per rank: t trainer, s server
  trainer:2-3,pserver:0-1  the ranks of each role
  node:n1=1,n2=2           number of servers on each host, its last ranks;
                           node:*=1 is one on every host"""

Ranks = tuple[int, ...]


def by_count(size: int, pservers: int, *, servers_first: bool) -> tuple[Ranks, Ranks]:
    """Return (trainers, servers) of ``size`` ranks of which ``pservers`` serve."""
    if pservers >= size:
        servers_leave = f"{pservers} servers leave" if pservers > 1 else "1 server leaves"
        among = f"{size} ranks" if size > 1 else "1 rank"
        raise LaunchError(
            f"{servers_leave} no trainer among {among}: start {pservers + 1} or more, with mpirun "
            "-n or srun -n"
        )
    if servers_first:
        return tuple(range(pservers, size)), tuple(range(pservers))
    return tuple(range(size - pservers)), tuple(range(size - pservers, size))


def parse(text: str, hosts: Sequence[str]) -> tuple[Ranks, Ranks]:
    """Return (trainers, servers) as an explicit map says; ``hosts[r]`` is where rank r runs."""
    letters = text.lower().replace(" ", "").split(",")
    if all(letter in ("t", "s") for letter in letters):
        if len(letters) != len(hosts):
            raise _error(text, f"it names {len(letters)} ranks, the job has {len(hosts)}")
        servers = [rank for rank, letter in enumerate(letters) if letter == "s"]
    elif text.startswith("node:"):
        servers = _servers_by_node(text, hosts)
    elif re.match(r"(trainer|pserver):", text):
        return _by_ranks(text, len(hosts))
    else:
        raise _error(text, "expected one of")
    return tuple(r for r in range(len(hosts)) if r not in servers), tuple(servers)


def _by_ranks(text: str, size: int) -> tuple[Ranks, Ranks]:
    """Read ``trainer:2-3,pserver:0,1``: a role holds until the next; the order given is kept."""
    ranks: dict[str, list[int]] = {"trainer": [], "pserver": []}
    role = ""
    for item in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(?:(trainer|pserver):)?(\d+)(?:-(\d+))?", item)
        if match is None:
            raise _error(text, f"cannot read {item!r}; expected one of")
        role = match[1] or role
        ranks[role] += range(int(match[2]), int(match[3] or match[2]) + 1)
    trainers, servers = tuple(ranks["trainer"]), tuple(ranks["pserver"])
    if sorted(trainers + servers) != list(range(size)):
        raise _error(text, f"each of the ranks 0..{size - 1} must have exactly one role")
    return trainers, servers


def _servers_by_node(text: str, hosts: Sequence[str]) -> list[int]:
    names = list(dict.fromkeys(hosts))
    servers: list[int] = []
    for item in text.removeprefix("node:").replace(" ", "").split(","):
        match = re.fullmatch(r"([^=]+)=(\d+)", item)
        if match is None:
            raise _error(text, f"cannot read {item!r}; expected one of")
        if match[1] != "*" and match[1] not in names:
            raise _error(text, f"no rank runs on {match[1]!r}; the hosts are {','.join(names)}")
        for host in names if match[1] == "*" else [match[1]]:
            on_host = [rank for rank, name in enumerate(hosts) if name == host]
            count = int(match[2])
            if count > len(on_host):
                raise _error(text, f"{host} has {len(on_host)} ranks, cannot give {count} servers")
            servers += on_host[len(on_host) - count :]
    if len(set(servers)) != len(servers):
        raise _error(text, "a host is named twice")
    return servers


def _error(text: str, problem: str) -> LaunchError:
    return LaunchError(f"role map {text!r}: {problem}\n{HELP}")
