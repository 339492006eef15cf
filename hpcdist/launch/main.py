"""Runs a script as one rank of a job, or in a single process."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from hpcdist import runtime
from hpcdist.base import settings
from hpcdist.base.errors import HpcdistError, LaunchError, SettingError
from hpcdist.base.signals import forget_children, hold_warning
from hpcdist.comm import lanes, mpi
from hpcdist.comm.base import Transport
from hpcdist.comm.clock_offset import ClockOffset
from hpcdist.comm.process_manager import launched_rank, launched_size
from hpcdist.comm.world import mpi_world
from hpcdist.fluid.compat import fluid_options
from hpcdist.launch import (
    commands,
    environment,
    launcher_check,
    logs,
    options,
    pre_init_watchdog,
    rank_steps,
    recording,
    report,
    roles,
)
from hpcdist.launch.abort import PATIENCE_S, Guard
from hpcdist.launch.limits import check_limits
from hpcdist.launch.logs import Output
from hpcdist.launch.options import Options
from hpcdist.launch.quiet_end import end_refused
from hpcdist.launch.script import code_of, run_script
from hpcdist.launch.startup_checks import local_facts, role_from_options

TORCH_DEADLINE_MS = 30 * 60 * 1000  # of torch's own waits


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script that the command line names; exits like it, with 1 if it fails.

    Its first word may be a command instead, which is given the others.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        if launched_rank() == 0:
            print(commands.overview(), file=sys.stdout if words else sys.stderr)
        raise SystemExit(0 if words else 2)
    if words[0] == commands.RUN:
        words = words[1:]
    elif words[0] in commands.COMMANDS:
        try:
            commands.do(words)
        except LaunchError as error:
            _refuse(error)
        return
    hold_warning()
    if settings.RUN.is_set():  # a script of another job has started this one
        settings.forget_role()
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
        check_limits()
        if chosen.deadline is not None:
            settings.RPC_DEADLINE.write(chosen.deadline)
        elif chosen.as_torchrun and not settings.RPC_DEADLINE.is_set():
            settings.RPC_DEADLINE.write(TORCH_DEADLINE_MS)
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
    end_refused(PATIENCE_S)
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
    rank_steps.warn_of_misspelt()
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
        rank_steps.end_trace(recorded, None)
    except SystemExit as end:
        recorded.script_has_ended(well=not end.code)
        rank_steps.end_trace(recorded, None)
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
    start = rank_steps.agree_on_roles(chosen, transport)
    rank_steps.set_environment(start)
    rank_steps.prepare_host(start)
    output = Output()
    recorded = recording.of_rank(chosen, start.cluster, start.rank, start.job)
    ends = rank_steps.watch_for_failures(start, output, recorded)
    stop_watching()
    atexit.register(_leave, ends, os.getpid())  # so early that it comes after the script's own
    try:
        rank_steps.begin_output(start, output, recorded)
        rank_steps.start_runtime(start, output, ends)
        rank_steps.run_to_the_end(start, ends)
        rank_steps.report_updates(start)
        rank_steps.end_together(start, ends, recorded)
    except KeyboardInterrupt:
        ends.interrupt()
    except BaseException as error:
        forget_children()  # again: another may have raised on the way here
        ends.fail(lanes.origin(error))


def _leave(ends: Guard, pid: int) -> None:
    if os.getpid() == pid:  # not a child that the script has forked
        ends.leave(mpi.finalize)
