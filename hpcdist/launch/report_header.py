"""The head of a page about a job: what ran, where, when, for how long, and with what. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hpcdist.base.trace.files import RankOfJob
from hpcdist.base.trace.status import JobStatus
from hpcdist.launch.words import counted, printable

SHOWN_HOSTS = 8
ENDS = {"failure": "with a failure", "signal": "not yet: a signal asked for these files"}


def heading(ranks: Sequence[RankOfJob], job: JobStatus | None, directory: str) -> str:
    """Return the name of the job's script, or else the directory of its files."""
    script = next((of.script for of in ranks if of.script), "") or (job.script if job else "")
    return printable(script) or directory


def facts(ranks: Sequence[RankOfJob], job: JobStatus | None) -> list[tuple[str, str]]:
    """Return (name, value) rows; those that no file of the job tells are left out."""
    if not ranks:
        if job is None:
            return []
        rows = [("script", job.script), ("ranks", str(job.ranks)), ("started", _date(job.unix_s))]
        return [(name, printable(value)) for name, value in rows]
    first = ranks[0]
    known = [of for of in ranks if of.began_ns]
    rows = [
        ("script", first.script),
        ("command of a rank", first.command),
        ("ranks", _ranks(ranks)),
    ]
    if known:
        lasted_ns = max(of.written_ns - of.began_ns for of in known)
        rows += [("started", _date(min(of.unix_ns + of.began_ns for of in known) / 1e9))]
        rows += [("duration", _duration(lasted_ns / 1e9))]
    rows += [
        ("ended", ENDS.get(first.why, "")),
        ("versions", "; ".join(dict.fromkeys(of.versions for of in known))),
        ("machines", _machines(ranks)),
    ]
    return [(name, printable(value)) for name, value in rows if value]


def _ranks(ranks: Sequence[RankOfJob]) -> str:
    servers = sum(of.role == "PSERVER" for of in ranks)
    hosts = list(dict.fromkeys(of.host for of in ranks))
    kinds = counted(len(ranks) - servers, "trainer")
    if servers:
        kinds += f", {counted(servers, 'server')}"
    where = ", ".join(hosts[:SHOWN_HOSTS]) + ", ..." * (len(hosts) > SHOWN_HOSTS)
    return f"{len(ranks)}: {kinds} on {where}"


def _machines(ranks: Sequence[RankOfJob]) -> str:
    """Say how busy the first hosts were: the ranks' own cores, all programs', what was missing."""
    hosts: dict[str, list[RankOfJob]] = {}
    for of in ranks:
        if of.cores:
            hosts.setdefault(of.host, []).append(of)
    said = []
    for host, on_host in [*hosts.items()][:SHOWN_HOSTS]:
        own, busy = sum(of.own for of in on_host), max(of.busy for of in on_host)
        cores, load = counted(on_host[0].cores, "core"), max(of.load for of in on_host)
        share = f"{busy:.1f} busy, {min(own, busy):.1f} of them for this job"
        said.append(f"{host}: {cores}, {share}; load average {load:.1f}")
    return "; ".join(said)


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _duration(seconds: float) -> str:
    """Return a time as one reads it.

    >>> _duration(3.25), _duration(185), _duration(7384)
    ('3.2 s', '3 min 5 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
