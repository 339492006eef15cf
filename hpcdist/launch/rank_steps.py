"""The steps of a rank of a job, in order: from the agreement on roles to the common end."""

from __future__ import annotations

import logging
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial

from hpcdist import runtime
from hpcdist.base import settings
from hpcdist.comm.base import Transport
from hpcdist.comm.clock_offset import SET_CLOCKS, ClockOffset, clock_offset, skewed
from hpcdist.comm.cluster import Cluster, RankRole
from hpcdist.comm.watchdog import end_job_by
from hpcdist.fluid.compat import fluid_options
from hpcdist.launch import (
    cores,
    environment,
    gpus,
    launcher_check,
    logs,
    roles,
    stacks,
    start_table,
)
from hpcdist.launch.abort import Guard
from hpcdist.launch.doctor import stale_files
from hpcdist.launch.facts import Fact
from hpcdist.launch.logs import Output
from hpcdist.launch.options import Options
from hpcdist.launch.recording import RankRecorder
from hpcdist.launch.report import Peer
from hpcdist.launch.roles import RankFacts
from hpcdist.launch.script import code_of_script
from hpcdist.launch.startup_checks import local_facts, refuse_problems
from hpcdist.launch.words import counted


@dataclass(frozen=True)
class RankStart:
    """What a rank knows once all have agreed on their roles."""

    chosen: Options
    transport: Transport
    ranks: Sequence[RankFacts]
    cluster: Cluster

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self.transport.rank

    @property
    def role(self) -> RankRole:
        """The role of this rank."""
        return self.cluster.role_of(self.rank)

    @cached_property
    def hosts(self) -> list[str]:
        """The host of each rank."""
        return [facts.host for facts in self.ranks]

    @cached_property
    def peers(self) -> list[Peer]:
        """All ranks, as messages name them."""
        role_of = self.cluster.role_of
        return [Peer(i, role_of(i), facts.host, facts.pid) for i, facts in enumerate(self.ranks)]

    @property
    def is_first_of_host(self) -> bool:
        """Whether no smaller rank is on this host."""
        return self.hosts.index(self.hosts[self.rank]) == self.rank

    @property
    def job(self) -> str:
        """The name of the job where its launcher gives it none."""
        return f"{self.hosts[0]}:{self.ranks[0].pid}"


def agree_on_roles(chosen: Options, transport: Transport) -> RankStart:
    """Exchange the ranks' facts, and refuse a job that they rule out. Collective."""
    ranks = [RankFacts.decode(d) for d in transport.allgather_bytes(local_facts(chosen).encode())]
    start = RankStart(chosen, transport, ranks, roles.decide(ranks))
    refuse_problems(ranks)
    fluid_options.check_counts(chosen.worker_num, chosen.nproc_per_node, start.cluster, start.hosts)
    launcher_check.check_on_failure(
        chosen.on_failure,
        tolerant=transport.tolerant,
        servers=len(start.cluster.servers),
        of_torch=chosen.as_torchrun,
    )
    return start


def set_environment(start: RankStart) -> None:
    """Set the variables that scripts read; rank 0 reports the start. Collective."""
    chosen, cluster, hosts = start.chosen, start.cluster, start.hosts
    variables = environment.variables(cluster, start.rank)
    variables |= gpus.variables(start.transport, cluster, os.environ)
    if chosen.as_torchrun and start.rank in cluster.trainers:
        trainer = cluster.trainers.index(start.rank)
        variables |= environment.of_torchrun(trainer, [hosts[rank] for rank in cluster.trainers])
    os.environ.update(variables)
    settings.RANK.write(start.rank)
    settings.RUN.write(start.ranks[0].run)
    if start.rank == 0:
        warn_of_misspelt()
        if not chosen.quiet:
            _report_start(chosen, cluster, hosts, variables)


def prepare_host(start: RankStart) -> None:
    """Remove files of dead ranks, and share this host's cores among its ranks."""
    host = start.hosts[start.rank]
    if start.is_first_of_host:
        remove_stale_files(host)
    here = [rank for rank, its_host in enumerate(start.hosts) if its_host == host]
    cores.share(len(here), tell=start.chosen.as_torchrun)
    if not start.chosen.as_torchrun:  # PyTorch's workers and threads are the script's concern
        cores.stay(here.index(start.rank), [start.ranks[rank].cores for rank in here])


def watch_for_failures(start: RankStart, output: Output, recorded: RankRecorder) -> Guard:
    """Return the guard that ends the job if a rank fails, from now on. Collective."""
    stacks.listen()
    ends = Guard(start.transport, start.peers, output, recorded)
    end_job_by(ends.fail)
    return ends


def begin_output(start: RankStart, output: Output, recorded: RankRecorder) -> None:
    """Direct what this rank prints, and begin its recording. Collective."""
    chosen = start.chosen
    output.direct(start.rank, start.role, chosen.log_dir, all_output=chosen.all_output)
    recorded.begin(first_of_host=start.is_first_of_host)
    recorded.compared(clocks := clock_offset(start.transport))
    if len(set(start.hosts)) > 1:
        tell_skew(start, clocks)


def start_runtime(start: RankStart, output: Output, ends: Guard) -> None:
    """Make this process a rank of the job. Collective."""
    runtime.start(
        start.transport,
        start.cluster,
        seed=start.chosen.seed,
        on_failure=start.chosen.on_failure,
        name_of=lambda rank: str(start.peers[rank]),
        announce=output.announce,
        name_death=ends.name_death,
        stack_of=ends.stack_of,
        local_feed=start.chosen.feed == "local",
        tell_left=partial(_renumber, start.hosts, start.rank),
    )


def run_to_the_end(start: RankStart, ends: Guard) -> None:
    """Run the script, and wait until those of all trainers have ended. Collective."""
    code = code_of_script(start.chosen)
    if code:
        ends.exit(code)
    ends.note(Fact.AWAITS)
    runtime.end_together()


def report_updates(start: RankStart) -> None:
    """Print what the tables and updates of a server have done, unless --quiet."""
    if start.chosen.quiet:
        return
    if used := runtime.table_statistics():
        print(start_table.of_tables(str(start.role), used), file=sys.stderr, flush=True)
    if counts := runtime.updates_applied():
        updates = ", ".join(f"{count} of trainer {k}" for k, count in enumerate(counts))
        print(f"hpcdist: {start.role} has applied updates: {updates}", file=sys.stderr, flush=True)


def end_together(start: RankStart, ends: Guard, recorded: RankRecorder) -> None:
    """Leave the job with all other ranks, and write its trace. Collective."""
    transport = start.transport
    ends.script_has_ended()
    runtime.finish()
    logs.flush()
    # Nobody leaves while others train: a rank that is gone is a rank that died.
    transport.barrier(deadline_s=None)
    end_trace(recorded, transport)
    if start.rank in start.cluster.servers[:1]:
        ends.name_the_dead(transport.failed())
        ends.check_a_trainer_has_finished(transport.failed())
    ends.note(Fact.LEAVES)


def _renumber(hosts: Sequence[str], me: int, left: Sequence[int]) -> None:
    """Give the script its new number: trainer ``left.index(me)`` of the surviving ranks."""
    cluster = Cluster(tuple(range(len(left))))
    variables = environment.variables(cluster, left.index(me))
    variables |= environment.of_torchrun(left.index(me), [hosts[rank] for rank in left])
    os.environ.update(variables)


def remove_stale_files(host: str) -> None:
    """Remove what ranks that were killed have left in this host's memory and temporary files."""
    if not stale_files.sees_all():
        return
    stale_files.remove(stale_files.find_folders(older_s=stale_files.OLD_S))
    removed = stale_files.remove(stale_files.find(older_s=stale_files.OLD_S))
    if removed:
        freed = sum(file.nbytes for file in removed) / 2**20
        logging.getLogger("hpcdist").info(
            "%s: removed %s of dead ranks from shared memory (%.0f MiB)",
            host,
            counted(len(removed), "file"),
            freed,
        )


def end_trace(recorded: RankRecorder, transport: Transport | None) -> None:
    """Record the end of the script, and write the job's trace if wanted. Collective."""
    recorded.script_has_ended()
    if recorded.trace is None:
        return
    # If ranks may have died, no reply is certain.
    compares = transport is not None and not transport.tolerant
    recorded.end(clock_offset(transport) if transport is not None and compares else None)
    if transport is not None:
        transport.barrier(deadline_s=None)
    if transport is None or transport.rank == 0:
        recorded.merge()
    if transport is not None:
        transport.barrier(deadline_s=None)


def tell_skew(start: RankStart, clocks: ClockOffset) -> None:
    """Print which hosts' wall clocks differ from rank 0's. Collective."""
    mine = struct.pack("<dd", clocks.wall_clock_s(), clocks.error_ns / 1e9)
    of_ranks = [struct.unpack("<dd", each) for each in start.transport.allgather_bytes(mine)]
    for line in skewed(start.hosts, of_ranks) if start.rank == 0 else ():
        print(f"hpcdist: {line}: {SET_CLOCKS}", file=sys.stderr, flush=True)


def warn_of_misspelt() -> None:
    """Print variables of the environment that look like misspelt settings."""
    for warning in settings.misspelt():
        print(f"hpcdist: {warning}", file=sys.stderr, flush=True)


def _report_start(
    chosen: Options, cluster: Cluster, hosts: Sequence[str], variables: dict[str, str]
) -> None:
    """Print one line about the job; with --verbose everything that was chosen, too."""
    lines = []
    if chosen.verbose:
        shown = {**asdict(chosen), "script_args": " ".join(chosen.script_args)}
        if chosen.as_torchrun:  # whose scripts know nothing of Fluid's variables
            variables = {k: v for k, v in variables.items() if not k.startswith("PADDLE_")}
        lines = [start_table.arguments(shown), start_table.environment(variables)]
    lines.append(start_table.roster(cluster, hosts))
    print("\n".join(lines), file=sys.stderr, flush=True)
