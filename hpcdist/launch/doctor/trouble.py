"""What a check of the doctor finds, and helpers for the ranks of a host. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hpcdist.launch.doctor.facts import RankState

MIB = 2**20


class Level(IntEnum):
    """How bad it is."""

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True)
class Finding:
    """What one check has found; ``advice`` says what to do about it."""

    check: str
    level: Level
    text: str
    advice: str = ""


class Trouble(NamedTuple):
    """What a check has found, which puts its name to it."""

    level: Level
    text: str
    advice: str


Ranks = Sequence[RankState]
Check = Callable[[Ranks], Iterator[Trouble]]


def by_host(ranks: Ranks) -> dict[str, list[RankState]]:
    """Return the ranks of each host."""
    hosts = defaultdict(list)
    for rank in ranks:
        hosts[rank.host].append(rank)
    return dict(hosts)


def of_each_host(check: Callable[[str, Ranks], Iterator[Trouble]]) -> Check:
    """Make a check of all ranks from one of the ranks of a host."""

    def of_all(ranks: Ranks) -> Iterator[Trouble]:
        for host, on_host in by_host(ranks).items():
            yield from check(host, on_host)

    return of_all


def ranks_by(ranks: Iterable[RankState], key: Callable[[RankState], str]) -> dict[str, list[int]]:
    by_value = defaultdict(list)
    for rank in ranks:
        by_value[key(rank)].append(rank.rank)
    return dict(by_value)


def listed(ranks_of: dict[str, list[int]]) -> str:
    return ", ".join(f"{value} ({numbered(ranks)})" for value, ranks in ranks_of.items())


def numbers_of(ranks: Iterable[RankState]) -> str:
    return numbered([rank.rank for rank in ranks])


def numbered(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}" + ", ..." * (len(numbers) > 8)


def pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
