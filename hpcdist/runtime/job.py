"""This process's part in a job: what it runs in place of the user's Program, and with whom."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, Cluster
from hpcdist.errors import HpcdistError, PlanError
from hpcdist.executor.backend import CPUPlace
from hpcdist.executor.control import Binding, Feed, Fetched
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta
from hpcdist.graph.roles import Role
from hpcdist.ps.table import TableStatistics
from hpcdist.runtime.batches import Batches
from hpcdist.runtime.collective import PLAIN, CollectiveLink
from hpcdist.runtime.peers import JobPeers
from hpcdist.runtime.server import Server, server_tables
from hpcdist.runtime.sharing import weighted
from hpcdist.runtime.survival import Survival
from hpcdist.runtime.survivors import Survivors
from hpcdist.runtime.tables import bind_make
from hpcdist.runtime.trainer import TrainerLink
from hpcdist.transpiler import DistributeTranspiler
from hpcdist.transpiler.cluster import Group
from hpcdist.transpiler.collective import RING_OPS, rewritten
from hpcdist.transpiler.data_parallel import data_parallel, loss_gradients, without_data
from hpcdist.transpiler.plan import Plan
from hpcdist.transpiler.table_steps import lone_steps, trainer_steps
from hpcdist.transpiler.tables import untrained_tables
from hpcdist.transpiler.trainer import reading_program


class Job:
    """The Control of a process that is one of many.

    A script may transpile by itself, as Fluid scripts do. If it does not, its Programs are
    transpiled when it first runs one: servers then serve and end there, trainers go on, each with
    its rows of every batch that is fed. Without servers all ranks are trainers, who sum gradients.
    """

    def __init__(
        self,
        transport: Transport,
        cluster: Cluster,
        *,
        seed: int,
        deadline_s: float,
        survival: Survival | None = None,
    ) -> None:
        self.transport = transport
        self.cluster = cluster
        self.role = cluster.role_of(transport.rank)
        self._seed = seed
        self._deadline_s = deadline_s
        self.survival = survival or Survival(transport, cluster)
        serves = self.role.kind == PSERVER
        self._trainers = transport.split(1 if serves else 0, self.role.index)
        index = self.role.index
        self._server = None
        if serves:
            alike = self._trainers  # on a server: all servers
            self._server = Server(transport, cluster, index, deadline_s, self.survival, alike)
        self._link: TrainerLink | CollectiveLink | None = None
        if not serves and cluster.servers:
            self._link = TrainerLink(transport, cluster, index, deadline_s)
        elif not serves:
            self._link = CollectiveLink(self._trainers, deadline_s)
        settle = None
        if isinstance(self._link, TrainerLink) and self.survival.goes_on_always:
            settle = self._link.agree_on_deaths
        survivors = Survivors(self._trainers, settle, deadline_s, cluster.trainers)
        self._batches = Batches(self._trainers, deadline_s, survivors)
        self._resolved: dict[int, tuple[Program, int, Program]] = {}
        self._training: dict[int, tuple[Program, int, bool]] = {}
        self._variants: dict[int, tuple[Program, Program]] = {}
        self._explicit = False
        self._plan: Plan | None = None  # the trainer's, once it runs its part of a Program
        self._gone: set[int] = set()  # trainers that had died when all made a checkpoint
        self.closed = False

    # -- which Program -----------------------------------------------------------------------
    def turn(self, program: Program, feed: Feed, scope: Scope) -> tuple[Program, Feed]:
        """Return the Program that this rank runs in place of ``program``, and what it feeds."""
        resolved = self._resolve_once(program)
        self.begin(resolved, scope)
        if isinstance(self._link, CollectiveLink) and self._trains(resolved):
            if self._link.joins and not self._batches.shares(program):
                return self._join(resolved, feed)
            resolved = self._link.of_this_step(resolved)
        return resolved, self._batches.cut(program, feed, scope)

    def begin(self, program: Program, scope: Scope) -> None:
        """Before a resolved Program trains for the first time: let all trainers begin alike."""
        if isinstance(self._link, CollectiveLink) and self._trains(program):
            self._link.begin(program, scope)

    def _trains(self, program: Program) -> bool:
        known = self._training.get(id(program))
        if known is None or known[1] != program.version:
            known = self._training[id(program)] = (program, program.version, _trains(program))
        return known[2]

    def _join(self, program: Program, feed: Feed) -> tuple[Program, Feed]:
        """Return what is run in a step in which trainers have as many rows as they have."""
        if id(program) not in self._variants:
            self._variants[id(program)] = self._variants_of(program)
        with_rows, without = self._variants[id(program)]
        rows, some = self._batches.meet(program, feed)
        return (with_rows if some else without), rows

    def _variants_of(self, program: Program) -> tuple[Program, Program]:
        """Return what trainers run that have rows in a step, and what those without run."""
        assert isinstance(self._link, CollectiveLink)
        if program._group.devices > 1 or not loss_gradients(program):
            raise PlanError(
                "even_batches(how='join') counts rows where a loss's gradient starts from 1, on "
                "one device of each trainer: set CPU_NUM=1, and no Customized gradient scale"
            )
        if program._group.k_steps > 1:
            raise PlanError(
                "even_batches(how='join') counts rows in every step, but parameters are averaged "
                f"once in {program._group.k_steps} steps: set k_steps to 1, or how to 'pad'"
            )
        same = functools.partial(self._link.is_variant, of=program)
        return same(weighted(program)), same(without_data(program))

    def _resolve_once(self, program: Program) -> Program:
        known = self._resolved.get(id(program))
        if known is not None and known[1] == program.version:
            return known[2]
        resolved = self._with_tables(self._resolve(program))
        self._resolved[id(program)] = (program, program.version, resolved)
        return resolved

    def _resolve(self, program: Program) -> Program:
        if program._on_trainer is not None:
            self._note_explicit()
            # A server may run the startup as it stands; that it cannot train, bind says.
            if self._link is not None or _trains(program):
                program = program._on_trainer
        if program._group is not None:
            self._check_group(program._group)
            self._note_explicit()
            local = program._group.mode == "nccl2" and _trains(program)
            return data_parallel(program).program if local else program
        if program._is_distributed:
            self._note_explicit()
            self._plan = program._trainer_plan or self._plan
            self.survival.learn(self._plan)
            return program
        main = program if _trains(program) else program.main
        if main is None or self._explicit or not _trains(main) or main.startup is None:
            if self._plan is None or _trains(program):
                return program
            return reading_program(program, self._plan)
        return self._transpile(main, program)

    def _with_tables(self, program: Program) -> Program:
        """Return what to run in place of a Program that says how tables are distributed."""
        if self._server is None:
            plan = program._trainer_plan or self._plan
            return program if plan is None else trainer_steps(program, plan)
        tables = [held.table for held in server_tables(program)] or untrained_tables(program)
        return lone_steps(program, tables) if tables and not _serves(program) else program

    def _note_explicit(self) -> None:
        """A script that transpiles by itself also cuts its data itself: give trainers own luck."""
        if not self._explicit:
            self._explicit = True
            if self._link is not None:
                random.seed(f"{self._seed}:{self.role.index}")

    def _transpile(self, main: Program, asked: Program) -> Program:
        startup = main.startup
        assert startup is not None
        self._batches.share(main, len(self.cluster.trainers))
        if self.cluster.servers:
            trainer, first = self._with_servers(weighted(main), startup)
        else:
            first, trainer = rewritten(startup, weighted(main), self._group())
        for origin, found in ((main, trainer), (startup, first)):
            self._resolved[id(origin)] = (origin, origin.version, self._with_tables(found))
        return trainer if asked is main else first

    def _with_servers(self, main: Program, startup: Program) -> tuple[Program, Program]:
        """Return a trainer's main and startup program; on a server, serve."""
        transpiler = DistributeTranspiler()
        transpiler.transpile(
            self.role.index if self._server is None else 0,
            program=main,
            pservers=",".join(self.cluster.endpoints),
            trainers=len(self.cluster.trainers),
            startup_program=startup,
        )
        if self._server is not None:
            self._serve(transpiler)
        trainer = transpiler.get_trainer_program()
        self._plan = trainer._trainer_plan
        self.survival.learn(self._plan)
        return trainer, transpiler.get_trainer_startup_program()

    def _group(self) -> Group:
        """Return the group of all trainers of a job without servers."""
        names = self.cluster.trainer_endpoints
        return Group("grad_allreduce", names, self.role.index, names[self.role.index], fusing=PLAIN)

    def _check_group(self, group: Group) -> None:
        """Refuse a Program that was transpiled for other trainers than those of this job."""
        told = (group.trainer_id, len(group.endpoints))
        actual = (self.role.index, len(self.cluster.trainers))
        if not isinstance(self._link, CollectiveLink):
            raise HpcdistError(
                f"rank {self.transport.rank} is {self.role} of a job with parameter servers, but "
                f"the script transpiles in {group.mode} mode: start it without --pservers"
            )
        if told != actual:
            raise HpcdistError(
                f"rank {self.transport.rank} is trainer {actual[0]} of {actual[1]}, but the script "
                f"transpiles for trainer {told[0]} of {told[1]}: use PADDLE_TRAINER_ID and "
                "PADDLE_TRAINER_ENDPOINTS of the environment, or start as many ranks"
            )

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
    def shared_fetch(self, program: Program) -> Callable[[Fetched], list[Any]] | None:
        """Return what joins the trainers' fetched values, for a Program that is shared."""
        return self._batches.join(program)

    def join_uneven(self) -> None:
        """From now on, let every step of this job count the rows that each trainer has."""
        if not isinstance(self._link, CollectiveLink):
            raise HpcdistError(
                "even_batches(how='join') is for jobs without parameter servers: with them, "
                "trainers that have more batches go on alone"
            )
        self._link.joins = True

    def node_count(self) -> int:
        """Return on how many hosts the trainers of a job without servers are. Collective."""
        return self._link.node_count() if isinstance(self._link, CollectiveLink) else 1

    def gather(self, number: int) -> list[int]:
        """Return the numbers of all trainers that live, in trainer order. Collective among them."""
        data = self._trainers.allgather_living(
            number.to_bytes(8, "little", signed=True), self._deadline_s, "the others' batches"
        )
        return [int.from_bytes(other, "little", signed=True) for other in data if other is not None]

    # -- operators ---------------------------------------------------------------------------
    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Any
    ) -> list[list[str]]:
        """Return groups of names whose arrays must lie one behind the other."""
        if self._link is None:
            return []
        return self._link.contiguous(ops, metas, backend)

    def memory(self, nbytes: int, backend: Any) -> Any:
        """Return memory of a backend, in bytes, for such a group."""
        if isinstance(self._link, CollectiveLink):
            return self._link.memory(nbytes, backend)
        return backend.bytes(nbytes)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Callable[[], Any] | None]:
        """Return what each network operator does at a step, for this rank's role."""
        if all(op.type == "make_table" for op in ops):
            return [bind_make(op, binding) for op in ops]
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
        if isinstance(self._link, CollectiveLink):
            _refuse_servers_operators(ops)
        return self._link.bind(ops, binding)

    def peers(self) -> JobPeers | None:
        """Return the other ranks, as checkpoints see them; None on a server."""
        link = self._link
        if link is None:
            return None
        client = link.current_client if isinstance(link, TrainerLink) else None
        among, resolve = self._trainers, self._resolve_once
        return JobPeers(self._gone, self.cluster, among, link, resolve, client, self._deadline_s)

    def table_statistics(self) -> list[TableStatistics]:
        """Return what the distributed tables of this server have done; none on a trainer."""
        return [t.statistics() for t in self._server.tables] if self._server is not None else []

    @property
    def staleness(self) -> int:
        """How stale this trainer's last gradients were; 0 on a server."""
        return self._link.staleness if isinstance(self._link, TrainerLink) else 0

    def everyones(self, data: bytes, what: str) -> list[bytes]:
        """Return what every trainer that lives gives, in trainer order. Collective among them."""
        if self._link is None:
            raise HpcdistError(f"rank {self.transport.rank} is {self.role}: it has no {what}")
        came = self._trainers.allgather_living(data, self._deadline_s, what)
        return [found for found in came if found is not None]

    def close(self) -> None:
        """Leave the servers; they end when the last trainer has left. Harmless on a server."""
        if self._link is not None and not self.closed:
            self._batches.leave()
            self._link.close()
        self.closed = True

    def end_together(self) -> None:
        """Close, and wait until all trainers' scripts have ended.

        Every trainer calls this once; one that still joins values instead is told why it cannot.
        """
        self.close()
        if self._link is not None:
            self._trainers.allgather_living(b"", None, "the others' end")
        if isinstance(self._link, CollectiveLink):
            self._link.end()


def _trains(program: Program) -> bool:
    return any(op.role & Role.OPTIMIZE for op in program.global_block().ops)


def _serves(program: Program) -> bool:
    return any(op.type == "listen_and_serv" for op in program.global_block().ops)


def _refuse_servers_operators(ops: Sequence[Operator]) -> None:
    for op in ops:
        if op.type not in RING_OPS:
            raise HpcdistError(
                f"operator {op.type!r} talks to parameter servers, but this job has none: start "
                "it with --pservers P, or transpile in nccl2 or collective mode"
            )
