"""This process's part in a job: what it runs in place of the user's Program, and with whom."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from hpcdist.checkpoint.serving import ASSIGN
from hpcdist.comm.base import Transport
from hpcdist.comm.cluster import PSERVER, Cluster
from hpcdist.errors import HpcdistError, PlanError
from hpcdist.executor.backend import Backend
from hpcdist.executor.control import Binding, Control, Feed, SharedFetch
from hpcdist.executor.scope import Scope, ScopeVariable
from hpcdist.graph.distribution import NOT_DISTRIBUTED
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.graph.registry import Meta
from hpcdist.ops.random.counter import draw_as_reader
from hpcdist.ps.client import PsClient
from hpcdist.ps.table import TableStatistics
from hpcdist.runtime.batches.global_moments import bind_moments, is_synchronized
from hpcdist.runtime.batches.shared_batches import Batches
from hpcdist.runtime.job.checkpoint_peers import JobPeers
from hpcdist.runtime.job.failure_policy import FailurePolicy
from hpcdist.runtime.job.group_check import check_group
from hpcdist.runtime.job.links import Links, refuse_transpiled
from hpcdist.runtime.job.membership import Membership
from hpcdist.runtime.job.server_side import NOTHING_ON_SERVERS, ServerSide, fed_rates
from hpcdist.runtime.job.set_values import SetValues
from hpcdist.runtime.pserver.connection import Adopted, Connection
from hpcdist.runtime.tables.pull_push import bind_make
from hpcdist.transpiler.cluster import Group
from hpcdist.transpiler.hybrid import HybridGroup
from hpcdist.transpiler.plan import Plan, trainer_plan
from hpcdist.transpiler.table_metadata import tables_looked_up
from hpcdist.transpiler.turns import in_turns


class Job(Control):
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
        failure_policy: FailurePolicy | None = None,
        local_feed: bool = False,
    ) -> None:
        self.transport = transport
        self.cluster = cluster
        self.role = cluster.role_of(transport.rank)
        self._seed = seed
        self._deadline_s = deadline_s
        self.failure_policy = failure_policy or FailurePolicy(transport, cluster)
        self._serves = self.role.kind == PSERVER
        alike = transport.split(int(self._serves), self.role.index)  # all trainers, or all servers
        self._trainers = alike
        policy = self.failure_policy
        self._links = Links(transport, cluster, self.role, alike, deadline_s, policy)
        self._link = self._links.first()
        settle = self._link.agree_on_deaths if policy.goes_on_always else None
        membership = Membership(self._trainers, settle, deadline_s, cluster.trainers)
        if local_feed and membership.settles:
            raise PlanError(
                "--feed local cannot be combined with --on-failure continue: the rows of a "
                "trainer that dies are lost with it; leave one of them out"
            )
        self._batches = Batches(
            self._trainers, deadline_s, membership, local=local_feed, ranks=cluster.trainers
        )
        self._substitutes: ProgramCache[Program] = ProgramCache()
        self._server_side = NOTHING_ON_SERVERS  # of a plain script
        self._explicit = False
        self._has_trained = False
        draw_as_reader("")  # until it turns out that trainers read data of their own
        self._set = SetValues()
        self._gone: set[int] = set()  # trainers that had died when all made a checkpoint
        self._trained: WeakSet[Scope] = WeakSet()  # the scopes in which Programs train
        self.closed = False

    # -- which Program -----------------------------------------------------------------------
    def substitute(
        self, program: Program, feed: Feed, scope: Scope, fetches: Sequence[str]
    ) -> tuple[Program, Feed]:
        """Return the Program that this rank runs in place of ``program``, and what it feeds."""
        substitute = self._substitute_of(program)
        divided = self._link.divided(program, feed, scope, fetches, self._set)
        if divided is not None:
            return divided
        on_servers: list[str] = []
        if self.cluster.servers and not self._serves:
            on_servers = self._server_side.fed(program, substitute, feed)
            also = [name for name in feed if name in self._link.also_on_servers(substitute)]
            if also:
                self._link.settle(substitute)
                self._feed_servers(substitute, {name: feed[name] for name in also})
            self._note_run(program, scope)
            if not program.trains:
                self._note_fed(program, feed, scope)
        self._link.begin(substitute, scope)
        if substitute.trains or program.main is not None or _is_startup(substitute):
            self._trained.add(scope)
        if self._set.some and program.trains and not self._explicit:
            by_hand, everything = self._set.take(scope)
            self._server_side.refuse_changed(variable.name for variable in everything)
            self._link.expect_held(everything)
            self._batches.note_set(by_hand)
        if substitute.trains and self._batches.counts_rows(program):
            with_rows, without = self._link.variants(substitute)
            rows, has_rows = self._batches.meet(substitute, feed)
            return with_rows if has_rows else without, rows
        rows = self._batches.cut(program, feed, scope, fetches)
        if on_servers:
            self._feed_servers(substitute, {name: feed[name] for name in on_servers})
            rows = {name: value for name, value in rows.items() if name not in on_servers}
        return self._link.of_this_step(substitute, scope), rows

    def note_set(self, variable: ScopeVariable) -> None:
        self._set.note(variable)

    def _note_run(self, program: Program, scope: Scope) -> None:
        """Where servers have the parameters: notice what changes them here only."""
        if program.trains:
            self._has_trained = True
        elif program.main is None:
            self._set.note_run(program, scope)
        elif self._has_trained and not self._explicit:
            raise PlanError(
                "the startup program is run again after the first step: servers go on with their "
                "parameters, where one process would start afresh; run it once, start a job for "
                "each training, or train without servers (no --pservers)"
            )
        else:
            self._set.forget_before(program, scope)

    def _note_fed(self, program: Program, names: Iterable[str], scope: Scope) -> None:
        """Notice what is fed and kept: like `tensor.set`, it stays for the steps that follow."""
        variables = program.global_block().vars
        for name in names:
            if name in variables and variables[name].persistable:
                self._set.note(scope.var_or_new(name))

    def _feed_servers(self, substitute: Program, fed: Feed) -> None:
        """Let servers have what a step is fed of theirs, before they have any of its gradients.

        Trainer 0 tells them: all are fed the same, or the step ends with an error.
        """
        alike = self._batches.alike and not self._explicit
        rates = fed_rates(substitute, fed, fed_alike=alike)
        # Until all are here, one may still fetch what servers had in the step before.
        self.everyones(b"", f"the other trainers, to feed {', '.join(fed)}")
        peers = self.peers()
        if peers is not None and peers.trainer == 0:
            peers.ask({"do": ASSIGN, "values": rates})

    def begin(self, program: Program, scope: Scope) -> None:
        """Before a Program trains for the first time: let all trainers begin alike."""
        self._link.begin(self._substitute_of(program), scope)

    def _substitute_of(self, program: Program) -> Program:
        return self._substitutes.of(program, lambda: self._substituted(program))

    def _substituted(self, program: Program) -> Program:
        """Transpile a plain script's Programs; of others return what their distribution says."""
        if program.on_trainer is not None:
            self._note_explicit()
            # A server may run the startup as it stands; that it cannot train, bind says.
            if not self._serves or program.trains:
                program = program.on_trainer
        if isinstance(program.distribution, HybridGroup):
            self._sum_dense()
        if isinstance(program.distribution, Group):
            check_group(program.distribution, self.cluster, self.role, self.transport.rank)
        if program.distribution != NOT_DISTRIBUTED:
            refuse_transpiled(program)
            self._note_explicit()
            return self._link.substitute(program)
        main = program if program.trains else program.main
        if main is not None and not program.trains and self._links.sums_dense:
            main = next(filter(tables_looked_up, program.mains), main)
        if self._explicit or main is None or not main.trains or main.startup is None:
            return self._link.substitute(program)
        self._transpile(main, main.startup)
        return self._substitute_of(program)

    def _transpile(self, main: Program, startup: Program) -> None:
        if main.pipeline is not None and len(self.cluster.trainers) + len(self.cluster.servers) > 1:
            other_programs = any(program.trains for program in self._substitutes)
            self._batches.refuse_pipeline()
            self._link = pipeline = self._links.pipeline(self._link, other_programs, main, startup)
            self._substitutes.put(main, pipeline.main)
            self._substitutes.put(startup, pipeline.startup)
            return
        servers = len(self.cluster.servers)
        mains = [main]
        if self._links.sums_dense:
            self._sum_dense()
        elif servers:
            mains = in_turns(main, startup, servers)
        shared = [self._batches.share(one, len(self.cluster.trainers)) for one in mains]
        trainers, first = self._link.transpiled(shared, startup)
        if servers:
            self._server_side = ServerSide.of(mains, trainers)
        for origin, transpiled in zip((*mains, startup), (*trainers, first)):
            self._substitutes.put(origin, self._link.substitute(transpiled))
        for one in () if self._serves else mains:
            self._batches.begin_rounds(one, self._substitute_of(one))

    def _sum_dense(self) -> None:
        """From now on, be a trainer that sums dense gradients. Collective among the trainers."""
        if not self._serves and not self._link.sums_dense:
            self._link = self._links.hybrid()

    def _note_explicit(self) -> None:
        """A script that transpiles by itself also cuts its data itself: give trainers own luck."""
        if not self._explicit:
            self._explicit = True
            if not self._serves:
                random.seed(f"{self._seed}:{self.role.index}")
                draw_as_reader(f"trainer {self.role.index}")

    @property
    def trainers(self) -> Transport:
        """The transport of all trainers, on a trainer."""
        return self._trainers

    def adopt(self, program: Program, protocol: Callable[[Plan, Connection], Adopted]) -> Adopted:
        """Return the protocol by which a trainer exchanges by itself what its Program says.

        As torch's do; it is told when checkpoints are made, and when the job ends.
        """
        if self._serves or not self.cluster.servers:
            raise HpcdistError(f"rank {self.transport.rank} has no servers to connect to")
        self._explicit = True  # though random numbers stay the script's own
        self._substitutes.put(program, self._link.substitute(program))
        return self._link.adopt(program, protocol)

    def current_client(self) -> PsClient:
        """Return what talks to the servers now, on a trainer that has some."""
        return self._link.current_client()

    # -- batches -----------------------------------------------------------------------------
    def shared_fetch(self, program: Program, names: tuple[str, ...]) -> SharedFetch:
        """Return what to fetch here, and what joins it, for a Program that is shared.

        Learning rates the servers are asked for. Raises FeedError for names of other values that
        trainers do not have, or that cannot be joined.
        """
        divided = self._link.divided_fetch(program, names)
        if divided is not None:
            return divided
        if self.cluster.servers:
            scheduled = self._link.scheduled(self._substitute_of(program))
            local = None if scheduled is None else scheduled.local(names)
            if scheduled is not None and local is not None:
                fetched, join = self.shared_fetch(program, local)
                return fetched, scheduled.completing(names, join)
        self._server_side.refuse_fetched(names)
        return names, self._batches.join(program, names)

    def join_uneven(self) -> None:
        """From now on, let every step of this job count the rows that each trainer has."""
        self._link.refuse_uneven()
        self._batches.joins = True

    def node_count(self) -> int:
        """Return on how many hosts the trainers of a job without servers are. Collective."""
        return self._link.node_count()

    def gather(self, number: int) -> list[int]:
        """Return the numbers of all trainers that live, in trainer order. Collective among them."""
        data = self._trainers.allgather_living(
            number.to_bytes(8, "little", signed=True), self._deadline_s, "the others' batches"
        )
        return [int.from_bytes(other, "little", signed=True) for other in data if other is not None]

    # -- operators ---------------------------------------------------------------------------
    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Backend
    ) -> list[list[str]]:
        """Return groups of names whose arrays must lie one after the other."""
        return self._link.contiguous(ops, metas, backend)

    def memory(self, nbytes: int, backend: Backend) -> Any:
        """Return memory of a backend, in bytes, for such a group."""
        return self._link.memory(nbytes, backend)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Callable[[], object] | None]:
        """Return what each network operator does at a step, for this rank's role."""
        if all(op.type == "make_table" for op in ops):
            return [bind_make(op, binding) for op in ops]
        serving = [op for op in ops if op.type == "listen_and_serv"]
        if bool(serving) != self._serves:
            kind = "listen_and_serv" if serving else ops[0].type
            raise HpcdistError(
                f"rank {self.transport.rank} is {self.role}: it cannot run operator {kind!r}; "
                "the script must choose its program by PADDLE_TRAINING_ROLE"
            )
        exchange = self._batches.exchange
        calls = {id(op): bind_moments(op, binding, exchange) for op in ops if is_synchronized(op)}
        others = [op for op in ops if id(op) not in calls]
        linked = self._link.bind(others, binding) if others else []
        bound = iter(self._batches.bind(others, linked, binding))
        return [calls[id(op)] if id(op) in calls else next(bound) for op in ops]

    def peers(self) -> JobPeers | None:
        """Return the other ranks, as checkpoints see them; None on a server."""
        link = self._link
        if self._serves:
            return None
        client = link.current_client if self.cluster.servers else None
        return JobPeers(
            self._gone,
            self.cluster,
            self._trainers,
            client,
            self._deadline_s,
            program=self._substitute_of,
            settle=link.settle,
            catch_up=link.catch_up,
            resume=link.resume,
            trained=self._trained,
            complete=link.complete,
        )

    def table_statistics(self) -> list[TableStatistics]:
        """Return what the distributed tables of this server have done; none on a trainer."""
        return [table.statistics() for table in self._link.served_tables]

    @property
    def staleness(self) -> int:
        """How stale this trainer's last gradients were; 0 on a server."""
        return self._link.staleness

    def everyones(self, data: bytes, awaited: str) -> list[bytes]:
        """Return what every trainer that lives gives, in trainer order. Collective among them."""
        if self._serves:
            raise HpcdistError(f"rank {self.transport.rank} is {self.role}: it has no {awaited}")
        came = self._trainers.allgather_living(data, self._deadline_s, awaited)
        return [values for values in came if values is not None]

    def close(self) -> None:
        """Leave the servers; they end when the last trainer has left. Harmless on a server."""
        if not self._serves and not self.closed:
            self._batches.leave()
            self._link.close()
            draw_as_reader("")
        self.closed = True

    def end_together(self) -> None:
        """Close, and wait until all trainers' scripts have ended.

        Every trainer calls this once; one that still joins values instead is told why it cannot.
        """
        self.close()
        if not self._serves:
            self._trainers.allgather_living(b"", None, "the others' end")
            self._batches.end()
        self._link.end()


def _is_startup(program: Program) -> bool:
    plan = trainer_plan(program)
    return plan is not None and plan.startup
