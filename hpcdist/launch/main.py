"""Runs a script as one rank of a job, or in a single process."""

from __future__ import annotations

import atexit
import io
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from hpcdist import runtime
from hpcdist.base import settings
from hpcdist.base.errors import HpcdistError, LaunchError, SettingError
from hpcdist.base.signals import forget_children, hold_warning
from hpcdist.comm import lanes, mpi
from hpcdist.comm.base import Transport
from hpcdist.comm.clock_offset import ClockOffset, clock_offset
from hpcdist.comm.cluster import Cluster
from hpcdist.comm.process_manager import launched_rank, launched_size
from hpcdist.comm.watchdog import end_job_by
from hpcdist.comm.world import mpi_world
from hpcdist.fluid.compat import fluid_options
from hpcdist.launch import (
    checkpoints,
    cores,
    data,
    environment,
    gpus,
    job_report,
    launcher_check,
    logs,
    options,
    pre_init_watchdog,
    recording,
    report,
    roles,
    settings_page,
    slurm,
    stacks,
    start_table,
    top,
)
from hpcdist.launch.abort import PATIENCE_S, Guard
from hpcdist.launch.doctor import command as doctor
from hpcdist.launch.doctor import stale_files
from hpcdist.launch.logs import Output
from hpcdist.launch.options import Options
from hpcdist.launch.recording import RankRecorder
from hpcdist.launch.report import Peer
from hpcdist.launch.roles import RankFacts
from hpcdist.launch.script import code_of, code_of_script, run_script
from hpcdist.launch.startup_checks import local_facts, refuse_problems, role_from_options
from hpcdist.launch.words import counted

COMMANDS = {
    "checkpoint": checkpoints.main,
    "data": data.main,
    "doctor": doctor.main,
    "report": job_report.main,
    "settings": lambda words: print(settings_page.markdown(), end=""),
    "slurm": slurm.main,
    "top": top.main,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script that the command line names; exits like it, with 1 if it fails.

    Its first word may be a command instead, which is given the others.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if words and words[0] in COMMANDS:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # names that its encoding lacks are no error
                stream.reconfigure(errors="backslashreplace")
        COMMANDS[words[0]](words[1:])
        return
    hold_warning()
    try:
        chosen = options.parse(words)
    except SystemExit as end:
        if end.code:
            _end_refused(code_of(end))
        raise
    except SettingError as error:
        _refuse(error)
    if chosen.umask is not None:
        os.umask(chosen.umask)
    stop_watching = pre_init_watchdog.watch()
    transport = None
    try:
        if chosen.deadline is not None:
            settings.RPC_DEADLINE.write(chosen.deadline)
        settings.ON_NAN.write(chosen.on_nan)
        if (started := launched_size()) is not None:
            transport = mpi_world()
            launcher_check.check_world(started, transport.size, str(Path(sys.executable).parent))
        if transport is not None and transport.size > 1:
            _run_rank(chosen, transport, stop_watching)
        else:
            stop_watching()
            _run_alone(chosen)
    except LaunchError as error:
        stop_watching()
        _refuse(error)
    except Exception as error:
        if transport is None:
            raise
        # Nobody watches the ranks yet, and a tolerant mpirun says nothing of one that has ended.
        if report.is_of_messages(error):  # then another rank knows more
            time.sleep(PATIENCE_S)
        me = f"rank {transport.rank} on {socket.gethostname()} failed before its script"
        Output().announce(f"{me}\n{report.user_traceback(error)}")
        transport.abort(1)


def _refuse(error: HpcdistError) -> NoReturn:
    """End before the script: every rank comes to the same refusal, and rank 0 says it."""
    if launched_rank() == 0:
        Output().announce(str(error))
    _end_refused(1)


def _end_refused(code: int) -> NoReturn:
    """End this rank when rank 0 has said why no rank starts."""
    logs.flush()
    if launched_size() is None:
        raise SystemExit(code) from None
    launcher_check.let_rank_0_speak()
    os._exit(code)  # MPI's own end would wait for the others


def _run_alone(chosen: Options) -> None:
    roles.refuse_lone_role(settings.role_variables())
    me = local_facts(chosen)
    # Other launchers leave their variables behind; our own options are meant.
    alone = roles.decide([replace(me, env=role_from_options(chosen))])
    launcher_check.check_on_failure(
        chosen.on_failure, tolerant=False, servers=0, of_torch=chosen.as_torchrun
    )
    fluid_options.check_counts(chosen.worker_num, chosen.nproc_per_node, alone, ["this host"])
    if me.problem:
        raise LaunchError(me.problem)
    settings.RUN.write(me.run)  # a script of another job may have started this one
    _warn_of_misspelt()
    for name, value in environment.alone().items():
        os.environ.setdefault(name, value)
    if chosen.as_torchrun:
        os.environ.update(environment.of_torchrun(0, [me.host]))
    output = Output()
    if chosen.log_dir is not None:
        output.direct(0, alone.role_of(0), chosen.log_dir, all_output=chosen.all_output)
    recorded = recording.of_rank(chosen, alone, 0, f"{me.host}:{me.pid}")
    recorded.begin()
    recorded.compared(ClockOffset(0, 0))
    try:
        run_script(chosen)
        _end_trace(recorded, None)
    except SystemExit as end:
        recorded.script_has_ended(well=not end.code)
        _end_trace(recorded, None)
        if end.code:
            recorded.fail()
        raise
    except Exception as error:
        recorded.fail()
        logs.flush()
        text = report.of_exception(error, None, runtime.where())
        recorded.said(text)
        output.announce(text + recorded.hint())
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        recorded.fail()
        raise SystemExit(130) from None


def _run_rank(chosen: Options, transport: Transport, stop_watching: Callable[[], None]) -> None:
    ranks = [RankFacts.decode(d) for d in transport.allgather_bytes(local_facts(chosen).encode())]
    cluster = roles.decide(ranks)
    refuse_problems(ranks)
    hosts = [facts.host for facts in ranks]
    fluid_options.check_counts(chosen.worker_num, chosen.nproc_per_node, cluster, hosts)
    launcher_check.check_on_failure(
        chosen.on_failure,
        tolerant=transport.tolerant,
        servers=len(cluster.servers),
        of_torch=chosen.as_torchrun,
    )
    variables = environment.variables(cluster, transport.rank)
    variables |= gpus.variables(transport, cluster, os.environ)
    if chosen.as_torchrun and transport.rank in cluster.trainers:
        trainer = cluster.trainers.index(transport.rank)
        variables |= environment.of_torchrun(trainer, [hosts[rank] for rank in cluster.trainers])
    os.environ.update(variables)
    settings.RANK.write(transport.rank)
    settings.RUN.write(ranks[0].run)
    if transport.rank == 0:
        _warn_of_misspelt()
        if not chosen.quiet:
            _print_table(chosen, cluster, ranks, variables)
    host = ranks[transport.rank].host
    if hosts.index(host) == transport.rank:
        remove_stale_files(host)
    cores.share(sum(facts.host == host for facts in ranks), tell=chosen.as_torchrun)
    output = Output()
    role = cluster.role_of(transport.rank)
    peers = [Peer(i, cluster.role_of(i), facts.host, facts.pid) for i, facts in enumerate(ranks)]
    stacks.listen()
    recorded = recording.of_rank(chosen, cluster, transport.rank, f"{hosts[0]}:{ranks[0].pid}")
    ends = Guard(transport, peers, output, recorded)
    end_job_by(ends.fail)
    stop_watching()
    atexit.register(_leave, ends, os.getpid())  # so early that it comes after the script's own
    try:
        output.direct(transport.rank, role, chosen.log_dir, all_output=chosen.all_output)
        recorded.begin(first_of_host=hosts.index(host) == transport.rank)
        recorded.compared(clock_offset(transport))
        runtime.start(
            transport,
            cluster,
            seed=chosen.seed,
            on_failure=chosen.on_failure,
            name_of=lambda rank: str(peers[rank]),
            announce=output.announce,
            name_death=ends.name_death,
            stack_of=ends.stack_of,
            local_feed=chosen.feed == "local",
            tell_left=partial(_renumber, hosts, transport.rank),
        )
        code = code_of_script(chosen)
        if code:
            ends.exit(code)
        runtime.end_together()
        if (used := runtime.table_statistics()) and not chosen.quiet:
            print(start_table.of_tables(str(role), used), file=sys.stderr, flush=True)
        if (counts := runtime.updates_applied()) and not chosen.quiet:
            updates = ", ".join(f"{count} of trainer {k}" for k, count in enumerate(counts))
            print(f"hpcdist: {role} has applied updates: {updates}", file=sys.stderr, flush=True)
        ends.script_has_ended()
        runtime.finish()
        logs.flush()
        # Nobody leaves while others train: a rank that is gone is a rank that died.
        transport.barrier(deadline_s=None)
        _end_trace(recorded, transport)
        if transport.rank in cluster.servers[:1]:
            ends.name_the_dead(transport.failed())
            ends.check_a_trainer_has_finished(transport.failed())
    except KeyboardInterrupt:
        ends.interrupt()
    except BaseException as error:
        forget_children()  # again: another may have raised on the way here
        ends.fail(lanes.origin(error))


def _renumber(hosts: Sequence[str], me: int, left: Sequence[int]) -> None:
    """Tell the script what it is now: trainer ``left.index(me)`` of the ranks that are left."""
    cluster = Cluster(tuple(range(len(left))))
    variables = environment.variables(cluster, left.index(me))
    variables |= environment.of_torchrun(left.index(me), [hosts[rank] for rank in left])
    os.environ.update(variables)


def remove_stale_files(host: str) -> None:
    """Remove what ranks that were killed have left in this host's shared memory."""
    if not stale_files.sees_all():
        return
    removed = stale_files.remove(stale_files.find(older_s=stale_files.OLD_S))
    if removed:
        freed = sum(file.nbytes for file in removed) / 2**20
        logging.getLogger("hpcdist").info(
            "%s: removed %s of dead ranks from shared memory (%.0f MiB)",
            host,
            counted(len(removed), "file"),
            freed,
        )


def _end_trace(recorded: RankRecorder, transport: Transport | None) -> None:
    """Tell the end of the script, and write the trace of the job if one is wanted. Collective."""
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


def _leave(ends: Guard, pid: int) -> None:
    if os.getpid() == pid:  # not a child that the script has forked
        ends.leave(mpi.finalize)


def _warn_of_misspelt() -> None:
    for warning in settings.misspelt():
        print(f"hpcdist: {warning}", file=sys.stderr, flush=True)


def _print_table(
    chosen: Options, cluster: Cluster, ranks: Sequence[RankFacts], variables: dict[str, str]
) -> None:
    hosts = len({facts.host for facts in ranks})
    servers = f"servers are ranks {list(cluster.servers)}" if cluster.servers else "no servers"
    roster = (
        f"hpcdist: {counted(len(ranks), 'rank')} on {counted(hosts, 'host')}: trainers are "
        f"ranks {list(cluster.trainers)}, {servers}"
    )
    lines = [
        start_table.arguments({**asdict(chosen), "script_args": " ".join(chosen.script_args)}),
        f"{roster}; environment of rank 0:",
        start_table.environment(variables),
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)
