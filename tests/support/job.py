"""Whole jobs inside the test process: every MPI rank runs a script, as launched ranks do."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from hpcdist import runtime
from hpcdist.base import settings
from hpcdist.base.trace.position import here
from hpcdist.comm.cluster import PSERVER, Cluster, RankRole
from hpcdist.comm.world import mpi_world
from hpcdist.executor import control
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.graph.program import Program
from hpcdist.transpiler import DistributeTranspiler
from tests.support.mpi_ranks import give_back
from tests.support.ranks_used import job_sizes

Script = Callable[[RankRole], Any]

_abandoned: list[Any] = []  # of ranks that failed: messages may still come into their arrays
SIGNAL = signal.SIGUSR1
AGAIN_S = 1.0


class Aborted(BaseException):
    """Another rank of the job failed: what would end this process under the launcher."""


@dataclass(frozen=True)
class Outcome:
    """How a script ended on one rank: with a value, by sys.exit, or by an error."""

    role: RankRole
    value: Any = None
    exit_code: Any = "none"
    error: str = ""
    error_types: tuple[str, ...] = ()  # of the class and its bases
    trace: str = ""


def run_job(
    trainers: int,
    servers: int,
    script: Script,
    deadline_s: float = 60,
    aborts: bool = True,
    **asked: Any,
) -> list[Outcome]:
    """Run ``script`` on the first ranks as trainers, then servers; return how it ended on each.

    All ranks of the world call this, and all get all outcomes; skips where there are too few.
    With ``aborts`` the first rank that fails ends the others, as it does under the launcher;
    ``asked`` goes to `runtime.start`.
    """
    world = mpi_world()
    size = trainers + servers
    job_sizes.append(size)
    if world.size < size:
        pytest.skip(f"needs {size} ranks, got {world.size}")
    cluster = Cluster(tuple(range(trainers)), tuple(range(trainers, size)))
    part = world.split(int(world.rank >= size), world.rank)
    own = b""
    if world.rank < size:
        with pytest.MonkeyPatch.context() as patch, scope_guard(Scope()):
            patch.setenv(settings.RPC_DEADLINE.name, str(int(deadline_s * 1000)))
            pids = [int(data) for data in part.allgather_bytes(str(os.getpid()).encode())]
            own = pickle.dumps(_outcome(part, cluster, script, pids if aborts else [], asked))
    outcomes = [pickle.loads(data) for data in world.allgather_bytes(own) if data]
    if not any(outcome.error for outcome in outcomes):
        give_back(part)
    return outcomes


def begin(
    role: RankRole,
    trainers: int,
    servers: int,
    main: Program,
    startup: Program,
    transpiler: Any = None,
    **asked: Any,
) -> tuple[Executor, Program]:
    """Do what Fluid's scripts begin with: transpile for a role; return what a trainer runs.

    A server serves until the trainers are done; there the script ends. ``transpiler`` is a
    DistributeTranspiler, unless told otherwise, and ``asked`` more of its arguments.
    """
    endpoints = [f"ps{k}:6174" for k in range(servers)]
    transpiler = transpiler or DistributeTranspiler()
    serves = role.kind == PSERVER
    trainer = 0 if serves else role.index
    transpiler.transpile(
        trainer, main, ",".join(endpoints), trainers, startup_program=startup, **asked
    )
    exe = Executor()
    if serves:
        for program in reversed(transpiler.get_pserver_programs(endpoints[role.index])):
            exe.run(program)
        raise SystemExit(0)
    exe.run(startup)
    return exe, transpiler.get_trainer_program()


def values(outcomes: list[Outcome]) -> list[Any]:
    """Return what the trainers' scripts returned, after checking that every rank ended well."""
    for outcome in sorted(outcomes, key=lambda o: "Aborted" in o.error_types):
        assert not outcome.error, f"{outcome.role}: {outcome.trace}"
        if outcome.role.kind == PSERVER:
            assert outcome.exit_code == 0, f"{outcome.role} did not end by SystemExit(0)"
    return [o.value for o in outcomes if o.role.kind != PSERVER]


def _outcome(
    transport: Any, cluster: Cluster, script: Script, pids: list[int], asked: dict[str, Any]
) -> Outcome:
    role = cluster.role_of(transport.rank)
    here.step, here.doing = 0, ""
    try:
        with abortable():
            transport.barrier()
            runtime.start(transport, cluster, **asked)
            value = script(role)
            runtime.finish()
        return Outcome(role, value)
    except SystemExit as end:
        runtime.finish()
        return Outcome(role, exit_code=end.code)
    except (Exception, Aborted) as error:
        _abandoned.append((control.installed(), error))  # an error holds the frames it came through
        for pid in pids if not isinstance(error, Aborted) else []:
            if pid != os.getpid():
                os.kill(pid, SIGNAL)
        types = tuple(c.__name__ for c in type(error).__mro__)
        return Outcome(role, None, "none", str(error), types, traceback.format_exc())
    finally:
        runtime.forget()


@contextmanager
def abortable() -> Iterator[None]:
    """Raise Aborted inside the ``with`` when another rank's signal comes; ignore it outside.

    Python drops an exception that a signal raises within a finalizer or a weak reference's
    callback: so it is raised once more, every now and then, until the ``with`` is left. Not within
    logging: a handler's lock would never be given back, and a later test would wait for it.
    """

    def abort(_number: int, frame: FrameType | None) -> None:
        signal.signal(SIGNAL, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        while frame is not None:
            if frame.f_globals.get("__name__") == "logging":
                return
            frame = frame.f_back
        raise Aborted("another rank failed")

    signal.signal(SIGNAL, abort)
    before = signal.signal(signal.SIGALRM, abort)
    # A launcher that ran in this process holds the signal back.
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})
    try:
        yield
    finally:
        signal.signal(SIGNAL, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def alone() -> Iterator[None]:
    """Run as a single process inside the ``with``, whatever this test's world is."""
    assert control.installed() is None
    with scope_guard(Scope()):
        yield
