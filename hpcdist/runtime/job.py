"""This process's part in a job: what it runs in place of the user's Program, and with whom."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, Cluster
from hpcdist.errors import FeedError, HpcdistError
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.control import Binding, Feed, Fetched
from hpcdist.executor.executor import Executor
from hpcdist.executor.position import here
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta
from hpcdist.graph.roles import Role
from hpcdist.runtime.joining import How, SharedProgram, loss_weight, pack, unpack
from hpcdist.runtime.server import Server
from hpcdist.runtime.sharing import WEIGHT, Share, cut_feed, weighted
from hpcdist.runtime.trainer import TrainerLink
from hpcdist.transpiler import DistributeTranspiler
from hpcdist.transpiler.plan import Plan
from hpcdist.transpiler.trainer import reading_program


class Job:
    """The Control of a process that is one of many.

    A script may transpile by itself, as Fluid scripts do. If it does not, its Programs are
    transpiled when it first runs one: servers then serve and end there, trainers go on, each with
    its rows of every batch that is fed.
    """

    def __init__(
        self, transport: Transport, cluster: Cluster, *, seed: int, deadline_s: float
    ) -> None:
        self.transport = transport
        self.cluster = cluster
        self.role = cluster.role_of(transport.rank)
        self._seed = seed
        self._deadline_s = deadline_s
        trains = self.role.kind != PSERVER
        self._trainers = transport.split(0 if trains else 1, self.role.index)
        index = self.role.index
        self._link = TrainerLink(transport, cluster, index, deadline_s) if trains else None
        self._server = None if trains else Server(transport, cluster, index, deadline_s)
        self._resolved: dict[int, tuple[Program, int, Program]] = {}
        self._shared: dict[int, SharedProgram] = {}  # by the id of the main Program
        self._share: Share | None = None
        self._explicit = False
        self._plan: Plan | None = None  # the trainer's, once it runs its part of a Program
        self.closed = False

    # -- which Program -----------------------------------------------------------------------
    def resolve(self, program: Program) -> Program:
        """Return the Program that this rank runs in place of ``program``."""
        known = self._resolved.get(id(program))
        if known is not None and known[1] == program.version:
            return known[2]
        resolved = self._resolve(program)
        self._resolved[id(program)] = (program, program.version, resolved)
        return resolved

    def _resolve(self, program: Program) -> Program:
        if program._on_trainer is not None:
            self._note_explicit()
            # A server may run the startup as it stands; that it cannot train, bind says.
            if self._link is not None or _trains(program):
                program = program._on_trainer
        if program._is_distributed:
            _check_mode(program)
            self._note_explicit()
            self._plan = program._trainer_plan or self._plan
            return program
        main = program if _trains(program) else program.main
        if main is None or self._explicit or not _trains(main) or main.startup is None:
            if self._plan is None or _trains(program):
                return program
            return reading_program(program, self._plan)
        return self._transpile(main, program)

    def _note_explicit(self) -> None:
        """A script that transpiles by itself also cuts its data itself: give trainers own luck."""
        if not self._explicit:
            self._explicit = True
            if self._link is not None:
                random.seed(f"{self._seed}:{self.role.index}")

    def _transpile(self, main: Program, asked: Program) -> Program:
        startup = main.startup
        assert startup is not None
        shared = SharedProgram(main, len(self.cluster.trainers))
        transpiler = DistributeTranspiler()
        transpiler.transpile(
            self.role.index if self._link is not None else 0,
            program=weighted(main),
            pservers=",".join(self.cluster.endpoints),
            trainers=len(self.cluster.trainers),
            startup_program=startup,
        )
        if self._server is not None:
            self._serve(transpiler)
        trainer = transpiler.get_trainer_program()
        self._plan = trainer._trainer_plan
        first = transpiler.get_trainer_startup_program()
        self._resolved[id(main)] = (main, main.version, trainer)
        self._resolved[id(startup)] = (startup, startup.version, first)
        self._shared[id(main)] = shared
        return trainer if asked is main else first

    def _serve(self, transpiler: DistributeTranspiler) -> None:
        """Be the server that the script knows nothing of, then end the script on this rank."""
        endpoint = self.cluster.endpoints[self.role.index]
        program, startup = transpiler.get_pserver_programs(endpoint)
        self._explicit = True
        executor = Executor(CPUPlace())
        executor.run(startup)
        executor.run(program)
        raise SystemExit(0)

    # -- batches -----------------------------------------------------------------------------
    def shared_feed(self, program: Program) -> Callable[[Feed], Feed] | None:
        """Return what cuts a batch down to this trainer's rows, for a Program that is shared."""
        shared = self._shared.get(id(program))
        if shared is None:
            return None
        index, trainers = self.role.index, len(self.cluster.trainers)

        def cut(feed: Feed) -> Feed:
            rows, share = cut_feed(feed, shared.batched, index, trainers)
            weight = 1.0 if share is None else loss_weight(shared.loss, share, trainers)
            rows[WEIGHT] = np.array([weight], np.float32)
            self._share = share
            return rows

        return cut

    def shared_fetch(self, program: Program) -> Callable[[Fetched], list[Any]] | None:
        """Return what joins the trainers' fetched values, for a Program that is shared."""
        shared = self._shared.get(id(program))
        if shared is None or len(self.cluster.trainers) == 1:
            return None

        def join(fetched: Fetched) -> list[Any]:
            hows = [shared.how_joined(name) for name, _ in fetched]
            values = [value for _, value in fetched]
            share = self._share
            if share is None or all(how is How.SAME for how in hows):
                return values
            mine = share.total.to_bytes(8, "little") + pack(values, hows, share)
            names = ", ".join(name for name, _ in fetched)
            what = f"the other trainers' {names} of step {here.step}"
            everyones = self._trainers.allgather_bytes(mine, self._deadline_s, what)
            _check_same_batch(everyones, share.total)
            return unpack([packed[8:] for packed in everyones], values, hows, share)

        return join

    # -- operators ---------------------------------------------------------------------------
    def contiguous(self, ops: Sequence[Operator], metas: Mapping[str, Meta]) -> list[list[str]]:
        """Return groups of names whose arrays must lie one behind the other."""
        if self._link is None or not any(op.type == "send" for op in ops):
            return []
        return self._link.contiguous(ops, metas)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Callable[[], Any] | None]:
        """Return what each network operator does at a step, for this rank's role."""
        serving = [op for op in ops if op.type == "listen_and_serv"]
        if bool(serving) == (self._server is None):
            kind = "listen_and_serv" if serving else ops[0].type
            raise HpcdistError(
                f"rank {self.transport.rank} is {self.role}: it cannot run operator {kind!r}; "
                "the script must choose its program by PADDLE_TRAINING_ROLE"
            )
        if self._server is not None:
            return [self._server.bind(op, binding) for op in ops]
        assert self._link is not None
        return self._link.bind(ops, binding)

    @property
    def staleness(self) -> int:
        """How stale this trainer's last gradients were; 0 on a server."""
        return 0 if self._link is None else self._link.staleness

    def close(self) -> None:
        """Leave the servers; they end when the last trainer has left. Harmless on a server."""
        if self._link is not None and not self.closed:
            self._link.close()
        self.closed = True

    def end_together(self) -> None:
        """Close, and wait until all trainers' scripts have ended.

        Every trainer calls this once; one that still joins values instead is told why it cannot.
        """
        self.close()
        if self._link is not None:
            self._trainers.allgather_bytes(b"", deadline_s=None)


def _trains(program: Program) -> bool:
    return any(op.role & Role.OPTIMIZE for op in program.global_block().ops)


def _check_same_batch(messages: Sequence[bytes], total: int) -> None:
    """Refuse to join values of different batches; a trainer at its end gives no message."""
    for trainer, message in enumerate(messages):
        rows = int.from_bytes(message[:8], "little")
        if rows != total:
            found = f"a batch of {rows} rows" if message else "none, its script has ended"
            raise FeedError(
                f"trainers share every batch, so each must feed the same ones: expected {total} "
                f"rows, got from trainer {trainer} {found}; feed equally many batches on all, or "
                "call DistributeTranspiler.transpile in the script and cut the data there"
            )


def _check_mode(program: Program) -> None:
    plan = program._server_plan or program._trainer_plan
    if plan is not None and plan.table is not None:
        raise HpcdistError(
            "a program with a distributed table cannot run yet: "
            "use embedding(is_sparse=True) without is_distributed"
        )
