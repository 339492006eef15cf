"""Whole jobs inside the test process: every MPI rank runs a script, as launched ranks do."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from hpcdist import runtime
from hpcdist.comm.cluster import Cluster, Role
from hpcdist.comm.mpi import MpiTransport
from hpcdist.executor import control
from hpcdist.executor.position import here
from hpcdist.executor.scope import Scope, scope_guard

Script = Callable[[Role], Any]

_abandoned: list[Any] = []  # jobs that failed: messages may still come into their arrays


@dataclass(frozen=True)
class Outcome:
    """How a script ended on one rank: with a value, by sys.exit, or by an error."""

    role: Role
    value: Any = None
    exit_code: Any = "none"
    error: str = ""
    error_types: tuple[str, ...] = ()  # of the class and its bases
    trace: str = ""


def run_job(trainers: int, servers: int, script: Script, deadline_s: float = 30) -> list[Outcome]:
    """Run ``script`` on the first ranks as trainers, then servers; return how it ended on each.

    All ranks of the world call this, and all get all outcomes; skips where there are too few.
    """
    world = MpiTransport.world()
    size = trainers + servers
    if world.size < size:
        pytest.skip(f"needs {size} ranks, got {world.size}")
    cluster = Cluster(tuple(range(trainers)), tuple(range(trainers, size)))
    part = world.split(int(world.rank >= size), world.rank)
    own = b""
    if world.rank < size:
        with pytest.MonkeyPatch.context() as patch, scope_guard(Scope()):
            patch.setenv(runtime.DEADLINE_FLAG, str(int(deadline_s * 1000)))
            own = pickle.dumps(_outcome(part, cluster, script))
    return [pickle.loads(data) for data in world.allgather_bytes(own) if data]


def values(outcomes: list[Outcome]) -> list[Any]:
    """Return what the trainers' scripts returned, after checking that every rank ended well."""
    for outcome in outcomes:
        assert not outcome.error, f"{outcome.role}: {outcome.trace}"
        if outcome.role.kind == "PSERVER":
            assert outcome.exit_code == 0, f"{outcome.role} did not end by SystemExit(0)"
    return [o.value for o in outcomes if o.role.kind != "PSERVER"]


def _outcome(transport: Any, cluster: Cluster, script: Script) -> Outcome:
    role = cluster.role_of(transport.rank)
    here.step, here.doing = 0, ""
    runtime.start(transport, cluster)
    job = control.installed()
    try:
        value = script(role)
        runtime.finish()
        return Outcome(role, value)
    except SystemExit as end:
        runtime.finish()
        return Outcome(role, exit_code=end.code)
    except Exception as error:
        _abandoned.append(job)
        types = tuple(c.__name__ for c in type(error).__mro__)
        return Outcome(role, None, "none", str(error), types, traceback.format_exc())
    finally:
        control.install(None)
        runtime._job = None


@contextmanager
def alone() -> Any:
    """Run as a single process inside the ``with``, whatever this test's world is."""
    assert control.installed() is None
    with scope_guard(Scope()):
        yield
