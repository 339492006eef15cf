"""Which links are much slower than others, and which rank or host is the cause. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hpcdist.launch.doctor.links import LinkTiming

MIB = 2**20
SLOW_LATENCY, SLOW_BANDWIDTH = 5.0, 0.25  # against the better links of the same kind
LEAST_LATENCY_S = 100e-6  # below it a latency is no trouble


def slow_links(hosts: Sequence[str], links: Sequence[LinkTiming]) -> list[str]:
    """Return the findings about slow links; ``hosts`` are those of the ranks.

    Links within hosts are compared with each other, and links between hosts likewise: with their
    better quarter, since the links of one bad host may be half of all.
    """
    kinds: dict[bool, list[LinkTiming]] = {True: [], False: []}
    for link in links:
        kinds[hosts[link.a] == hosts[link.b]].append(link)
    lines = []
    for alike in kinds.values():
        if len(alike) < 3:  # nothing to compare with
            continue
        latency, *_ = statistics.quantiles((link.latency_s for link in alike), n=4)
        *_, speed = statistics.quantiles((link.bytes_per_s for link in alike), n=4)
        late = max(SLOW_LATENCY * latency, LEAST_LATENCY_S)
        slow = [
            link
            for link in alike
            if link.latency_s > late or link.bytes_per_s < SLOW_BANDWIDTH * speed
        ]
        usual = f"others {latency * 1e6:.3g} us, {speed / MIB:.4g} MiB/s"
        lines += [f"{text}; {usual}" for text in _named(hosts, alike, slow)]
    return lines


def _named(
    hosts: Sequence[str], alike: Sequence[LinkTiming], slow: Sequence[LinkTiming]
) -> list[str]:
    """Name slow links: together if they are all those of a host, else one by one."""
    lines = []
    slow_left = list(slow)
    for host in dict.fromkeys(hosts):
        of_host = [link for link in alike if (hosts[link.a] == host) != (hosts[link.b] == host)]
        if 1 < len(of_host) < len(alike) and all(link in slow for link in of_host):
            latency = statistics.median(link.latency_s for link in of_host)
            speed = statistics.median(link.bytes_per_s for link in of_host)
            lines.append(f"all {len(of_host)} links of {host} are slow: {_speed(latency, speed)}")
            slow_left = [link for link in slow_left if link not in of_host]
    for link in slow_left:
        ends = " and ".join(f"rank {k} on {hosts[k]}" for k in (link.a, link.b))
        lines.append(f"slow link between {ends}: {_speed(link.latency_s, link.bytes_per_s)}")
    return lines


def _speed(latency_s: float, bytes_per_s: float) -> str:
    return f"{latency_s * 1e6:.3g} us, {bytes_per_s / MIB:.4g} MiB/s"
