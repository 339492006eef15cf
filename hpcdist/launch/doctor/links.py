"""Latency and bandwidth between ranks, one pair at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hpcdist.comm.base import Transport

TAG = 1
PINGS = 30
LARGE = 2**21  # bytes
LARGE_ROUNDS = 4
MOST_RANKS = 16  # of which all pairs are measured


@dataclass(frozen=True)
class LinkTiming:
    """The way between two ranks: half a round trip of 8 bytes, and one of `LARGE` bytes."""

    a: int
    b: int
    latency_s: float
    bytes_per_s: float


def chosen(hosts: Sequence[str]) -> list[int]:
    """Return the ranks whose links are measured: all, or of many the first of each host."""
    if len(hosts) <= MOST_RANKS:
        return list(range(len(hosts)))
    return [hosts.index(host) for host in dict.fromkeys(hosts)][:MOST_RANKS]


def measure(transport: Transport, ranks: Sequence[int]) -> list[LinkTiming]:
    """Return the links that this rank has measured: those of which it is the lower. Collective."""
    small, large = np.zeros(8, np.uint8), np.zeros(LARGE, np.uint8)
    links = []
    for a, b in combinations(ranks, 2):
        if transport.rank in (a, b):
            peer = b if transport.rank == a else a
            first = transport.rank == a
            latency = min(_round_trips(transport, peer, first, small, PINGS)) / 2
            one_way_s = min(_round_trips(transport, peer, first, large, LARGE_ROUNDS)) / 2
            if first:
                links.append(LinkTiming(a, b, latency, LARGE / max(one_way_s, 1e-9)))
        transport.barrier()
    return links


def _round_trips(
    transport: Transport, peer: int, first: bool, array: np.ndarray, count: int
) -> list[float]:
    def describe() -> str:
        return f"rank {transport.rank} measuring its link to rank {peer}"

    def send() -> None:
        transport.wait_all([transport.isend(array, peer, TAG)], describe)

    def receive() -> None:
        transport.wait_all([transport.irecv(array, peer, TAG)], describe)

    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        for act in (send, receive) if first else (receive, send):
            act()
        seconds.append(time.perf_counter() - begin)
    return seconds
