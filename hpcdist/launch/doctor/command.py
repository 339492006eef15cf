"""``python -m hpcdist doctor``, alone or as all ranks of a job."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from hpcdist.base.errors import LaunchError
from hpcdist.comm import mpi, mpi_library
from hpcdist.comm.base import Transport
from hpcdist.comm.clock_offset import ClockOffset, clock_offset
from hpcdist.comm.process_manager import launched_rank, launched_size
from hpcdist.comm.world import mpi_world
from hpcdist.launch.command_line import Parser
from hpcdist.launch.console import console_of
from hpcdist.launch.doctor import facts, findings, links, stale_files
from hpcdist.launch.doctor.facts import RankState
from hpcdist.launch.doctor.links import LinkTiming
from hpcdist.launch.doctor.trouble import MIB, Finding, Level
from hpcdist.launch.quiet_end import let_rank_0_speak
from hpcdist.launch.words import counted

DESCRIPTION = """\
Check the machines that a job would run on, and say what is wrong and what to do about it.

  python -m hpcdist doctor                  this machine
  mpirun -n 4 python -m hpcdist doctor      4 ranks, and the links between them
  srun -n 4 python -m hpcdist doctor        the same in an allocation of Slurm's
  python -m hpcdist doctor --clean          remove what killed ranks left

The exit code is 0 if all is well, 1 after warnings, 2 after errors."""
COLOURS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "red"}


def main(argv: Sequence[str]) -> None:
    """Run the command on every rank; rank 0 prints. Exits with 1 after warnings, 2 after errors."""
    arguments = parser().parse_args(argv)
    if arguments.clean:
        _clean()
        return
    transport, problem = None, ""
    if launched_size() is not None:
        try:
            transport = mpi_world()
        except LaunchError as error:
            let_rank_0_speak()
            problem = str(error)
    try:
        code = _look(transport, problem, arguments)
    except Exception:
        if transport is not None:  # the others must not wait for this rank
            traceback.print_exc()
            sys.stderr.flush()
            transport.abort(2)
        raise
    if code:
        sys.stdout.flush()
        if transport is not None:
            transport.barrier()
        raise SystemExit(code)


def _look(transport: Transport | None, problem: str, arguments: argparse.Namespace) -> int:
    """Look at this rank and, with a transport, at all others; rank 0 prints. Return the code."""
    rank_facts = _state(transport, problem, Path(arguments.directory))
    if transport is None:
        ranks, measured = [rank_facts], []
    else:
        gathered = transport.allgather_bytes(json.dumps(rank_facts.plain()).encode())
        ranks = [_decoded(data) for data in gathered]
        measured = _measured(transport, ranks)
    judged = findings.judge(ranks, measured)
    if launched_rank() == 0:  # also where each process has a separate MPI world
        _print_json(judged, ranks, measured) if arguments.json else print_findings(
            judged, ranks, measured
        )
    return findings.exit_code(judged)


def parser() -> argparse.ArgumentParser:
    """Declare the command line of ``doctor``."""
    declared = Parser("doctor", description=DESCRIPTION)
    declared.add_argument("--json", action="store_true", help="print everything as one JSON object")
    declared.add_argument(
        "--clean",
        action="store_true",
        help="remove files in /dev/shm whose owners are dead, and nothing else",
    )
    declared.add_argument(
        "--directory",
        default=".",
        metavar="DIR",
        help="where to test the speed and locking of files",
    )
    return declared


def _clean() -> None:
    stale = stale_files.find()
    if stale and not stale_files.sees_all():
        print(
            f"{counted(len(stale), 'file')} in /dev/shm may be of dead ranks, but this process is "
            "in a container and may not see their owners: nothing was removed. Run this outside, "
            "or remove them by hand: " + ", ".join(str(file.path) for file in stale[:8])
        )
        raise SystemExit(1)
    removed = stale_files.remove(stale)
    freed = sum(file.nbytes for file in removed) / 2**20
    print(f"removed {counted(len(removed), 'file')}, {freed:.1f} MiB")


def _state(transport: Transport | None, problem: str, directory: Path) -> RankState:
    clocks = ClockOffset(0, 0) if transport is None else clock_offset(transport)
    if transport is not None:
        transport.barrier()
    seen = facts.busy()
    written = facts.files(directory)  # by all at once, as when they save
    library, missing = mpi_library.library()
    total, free = facts.shared_memory()
    return RankState(
        rank=launched_rank() if transport is None else transport.rank,
        host=facts.host(),
        pid=os.getpid(),
        launched=launched_size(),
        world=1 if transport is None else transport.size,
        versions=facts.versions(),
        mpi=mpi.short_name(library),
        mpi_problem=problem or (missing if transport is None else ""),
        concurrent=None if transport is None else transport.concurrent,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        cores_present=os.cpu_count() or 1,
        **seen,
        blas_threads=facts.blas_threads(),
        variables=facts.variables(),
        shared_total=total,
        shared_free=free,
        files_limit=facts.limit(resource.RLIMIT_NOFILE),
        locked_limit=facts.limit(resource.RLIMIT_MEMLOCK),
        interfaces=facts.interfaces(),
        infiniband=facts.infiniband(),
        **written,
        hdf5=facts.hdf5(),
        gpus=facts.gpus(),
        stale=tuple((str(file.path), file.nbytes) for file in stale_files.find()),
        sees_all=stale_files.sees_all(),
        unix_s=clocks.wall_clock_s(),
        clock_error_s=clocks.error_ns / 1e9,
    )


def _decoded(data: bytes) -> RankState:
    plain = json.loads(data)
    plain["cores"] = tuple(plain["cores"])
    for name in ("busy", "others", "infiniband", "gpus"):
        plain[name] = tuple(plain[name])
    plain["stale"] = tuple((path, nbytes) for path, nbytes in plain["stale"])
    return RankState(**plain)


def _measured(transport: Transport, ranks: Sequence[RankState]) -> list[LinkTiming]:
    """Return all links that were measured, on every rank. Collective."""
    measured = links.measure(transport, links.chosen([rank.host for rank in ranks]))
    gathered = transport.allgather_bytes(json.dumps([asdict(link) for link in measured]).encode())
    return [LinkTiming(**link) for data in gathered for link in json.loads(data)]


def _print_json(
    judged: Sequence[Finding], ranks: Sequence[RankState], measured: Sequence[LinkTiming]
) -> None:
    summary: dict[str, Any] = {
        "exit_code": findings.exit_code(judged),
        "findings": [asdict(finding) | {"level": finding.level.name} for finding in judged],
        "ranks": [rank.plain() for rank in ranks],
        "links": [asdict(link) for link in measured],
    }
    print(json.dumps(summary, indent=1), flush=True)


def print_findings(
    judged: Sequence[Finding], ranks: Sequence[RankState], measured: Sequence[LinkTiming]
) -> None:
    """Print findings in a table, and below it the matrix of the links that were measured."""
    console = console_of(140)
    table = Table(show_header=False, box=None, padding=(0, 1))
    for finding in judged:
        level = Text(finding.level.name.lower(), style=COLOURS[finding.level])
        table.add_row(level, finding.check, Text(finding.text))
        if finding.advice:
            table.add_row("", "", Text(finding.advice, style="dim"))
    console.print(table)
    if measured:
        console.print("above: latency, us; below: bandwidth, MiB/s")
        console.print(_matrix(ranks, measured))


def _matrix(ranks: Sequence[RankState], measured: Sequence[LinkTiming]) -> Table:
    """Return the matrix of links: microseconds above the diagonal, MiB/s below."""
    ends = sorted({end for link in measured for end in (link.a, link.b)})
    by_ends = {(link.a, link.b): link for link in measured}
    table = Table(box=None)
    table.add_column("rank")
    for k in ends:
        table.add_column(str(k), justify="right")
    for a in ends:
        cells = []
        for b in ends:
            link = by_ends.get((min(a, b), max(a, b)))
            if link is None:
                cells.append("")
            elif a < b:
                cells.append(f"{link.latency_s * 1e6:.1f}")
            else:
                cells.append(f"{link.bytes_per_s / MIB:,.0f}")
        table.add_row(f"{a} on {ranks[a].host}", *cells)
    return table
