"""The Programs that a rank of a job runs in place of the user's, and its links."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from hpcdist.base import settings
from hpcdist.base.errors import HpcdistError
from hpcdist.base.trace.position import here
from hpcdist.executor.analysis import is_control, writes
from hpcdist.executor.backend import Backend
from hpcdist.executor.control import Binding, Control, Feed, Settled, SharedFetch
from hpcdist.executor.initial_values import refuse_unstarted
from hpcdist.executor.scope import Scope, ScopeVariable, global_scope
from hpcdist.graph.distribution import NOT_DISTRIBUTED
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.graph.registry import Meta
from hpcdist.ops.random.counter import draw_as_reader
from hpcdist.ps.given_values import give
from hpcdist.ps.messages import ASSIGN
from hpcdist.ps.table import TableStatistics
from hpcdist.runtime.batches.global_moments import bind_moments, is_synchronized
from hpcdist.runtime.batches.shared_batches import Batches
from hpcdist.runtime.job.batch_steps import BatchSteps
from hpcdist.runtime.job.exchanges import bind_exchange, exchanges, refuse_in_shared
from hpcdist.runtime.job.job import Job
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.job.links import Links
from hpcdist.runtime.job.membership import Membership
from hpcdist.runtime.job.one_thread import StepThread
from hpcdist.runtime.job.program_peers import JobProgramPeers
from hpcdist.runtime.job.set_values import SetValues
from hpcdist.runtime.job.substitution import JobFacts, LinkKind, substitution_of
from hpcdist.runtime.pipeline.pipeline_link import PipelineLink
from hpcdist.runtime.pipeline.stage_steps import StageSteps
from hpcdist.runtime.tables.make_table import bind_make
from hpcdist.transpiler.plan import trainer_plan
from hpcdist.transpiler.unserved import refuse_missed_rows


class ProgramJob(Control):
    """The Control of a process that is one of many.

    A script may transpile by itself, as Fluid scripts do. If it does not, its Programs are
    transpiled when it first runs one: servers then serve and end there, trainers go on, each with
    its rows of every batch that is fed. Without servers all ranks are trainers, who sum gradients.
    """

    def __init__(self, job: Job) -> None:
        """Run Programs for this rank of a job."""
        super().__init__()
        self.job = job
        self.cluster = cluster = job.cluster
        self.role = job.role
        deadline_s, policy = job.deadline_s, job.failure_policy
        self._trainers = group = job.alike
        self._links = Links(
            job.transport, cluster, job.role, group, deadline_s, policy, job.servers, job.common
        )
        settle = self._link.agree_on_deaths if policy.goes_on_always else None
        membership = Membership(group, settle, deadline_s, cluster.trainers)
        self._batches = Batches(
            group, deadline_s, membership, local=job.local_feed, ranks=cluster.trainers
        )
        self._substitutes: ProgramCache[Program] = ProgramCache()
        draw_as_reader("")  # until it turns out that trainers read data of their own
        self._changed = SetValues()
        to_servers = (self._tell_servers, self._give_servers) if job.servers else (None, None)
        self._batch_steps = BatchSteps(self._links, self._batches, self._changed, *to_servers)
        self._batch_steps.by_script = job.adopted
        self._steps: BatchSteps | StageSteps = self._batch_steps
        self._started: WeakKeyDictionary[Scope, set[str]] = WeakKeyDictionary()  # by startups
        self._trained: WeakSet[Scope] = WeakSet()  # the scopes in which Programs train
        self._last_trained: Callable[[], Scope | None] = lambda: None  # of these
        self._training: WeakSet[Any] = WeakSet()  # Executors that train, and are not closed
        self._thread = StepThread(job.transport.rank)
        self._meetings: ProgramCache[bool] = ProgramCache()
        job.programs = self

    # -- threads and Executors ---------------------------------------------------------------
    def admit(self, program: Program) -> None:
        if program.trains or program.main is not None:
            self._thread.enter()

    def _meets_others(self, program: Program, substitute: Program) -> bool:
        """Return whether a Program that does not train exchanges values with other ranks."""
        return (
            isinstance(self._steps, StageSteps)
            or self._batches.adds_up(program)
            or self._meetings.of(substitute, lambda: _has_control(substitute))
        )

    def note_trains(self, executor: object) -> None:
        self._training.add(executor)

    def note_closed(self, executor: object) -> None:
        """Leave the others if of all Executors that train the last one is closed.

        Trainers of a plain script run the same steps, so nobody waits for one that has no more of
        them: it leaves at the end of its script, and another Executor may go on until then.
        """
        if executor not in self._training:
            return
        self._training.discard(executor)
        in_step = self._batches.alike and not self._batches.joins
        if not self._training and (self._batch_steps.by_script or not in_step):
            self.job.close()

    # -- which Program -----------------------------------------------------------------------
    def substitute(
        self, program: Program, feed: Feed, scope: Scope, fetches: Sequence[str]
    ) -> tuple[Program, Feed]:
        """Return the Program that this rank runs in place of ``program``, and what it feeds."""
        if self._is_first_of_plain_script(program):
            refuse_unstarted(program, scope, self._started.get(scope, ()))
        if program.main is not None:
            written = (name for op in program.global_block().ops for name in writes(op))
            self._started.setdefault(scope, set()).update(written)
        substitute = self._substitute_of(program)
        meets = program.trains or program.main is not None  # so that `admit` has been asked
        if not meets and self._meets_others(program, substitute):
            self._thread.enter()
            meets = True
        if meets and self.job.closed and not self.job.serves:
            raise HpcdistError(self._left())
        if self._last_trained() is not scope and (
            substitute.trains or program.main is not None or _is_startup(substitute)
        ):
            self._trained.add(scope)
            self._last_trained = weakref.ref(scope)
        return self._steps.begin_step(program, substitute, feed, scope, fetches)

    def settled(
        self, program: Program, fed: Sequence[str], scope: Scope, fetches: tuple[str, ...]
    ) -> Settled | None:
        """Return the decisions for further steps of a Program that trains; None for any other."""
        if self.job.serves or self.job.closed:
            return None
        substitute = self._substitute_of(program)
        found = self._steps.settled(program, substitute, fed, scope, fetches)
        return None if found is None else replace(found, admit=self._thread.enter)

    def _left(self) -> str:
        return (
            f"rank {self.job.transport.rank} is {self.role} and has left the job, after step "
            f"{here.step}: its last Executor that trains was closed, or fleet.stop_worker() was "
            "called, and the others expect no more steps of it; close Executors after the last step"
        )

    def begin(self, program: Program, scope: Scope) -> None:
        """Before a Program trains for the first time: let all trainers begin alike."""
        self._link.begin(self._substitute_of(program), scope)

    def _is_first_of_plain_script(self, program: Program) -> bool:
        """Return whether a Program trains, and has not been transpiled as it is now."""
        return (
            program.trains
            and not self._batch_steps.by_script
            and program.on_trainer is None
            and program.distribution == NOT_DISTRIBUTED
            and self._substitutes.get(program) is None
        )

    def _substitute_of(self, program: Program) -> Program:
        return self._substitutes.of(program, lambda: self._substituted(program))

    def _substituted(self, program: Program) -> Program:
        """Connect this rank as a Program needs, and return the Program to run in its place."""
        self.decisions += 1
        facts = JobFacts(
            self.cluster,
            self.role,
            self.job.transport.rank,
            sums_dense=bool(self.cluster.servers) and settings.DENSE.read() == "collective",
            by_script=self._batch_steps.by_script,
            has_trained=any(known.trains for known in self._substitutes),
            minimizes=bool(Program.initialized),
        )
        substitution = substitution_of(program, facts)
        if substitution.by_script:
            self._note_by_script()
        if substitution.link is LinkKind.PIPELINE:
            self._batches.refuse_pipeline()
        link = self._links.link_for(substitution.link)
        if substitution.startup is None:
            return link.substitute(substitution.program)
        served = bool(self.cluster.servers) and substitution.link is not LinkKind.SUMS_DENSE
        self._transpile(link, substitution.mains, substitution.startup, served)
        return self._substitute_of(program)

    def _transpile(
        self, link: Link, mains: Sequence[Program], startup: Program, served: bool
    ) -> None:
        """Transpile what trains of a plain script, and divide its steps over the ranks.

        On a server the script ends here.
        """
        trainers = len(self.cluster.trainers)
        if trainers + len(self.cluster.servers) > 1:
            refuse_missed_rows(mains)
            refuse_in_shared(mains)
        by_stages = isinstance(link, PipelineLink)
        shared = mains
        if not by_stages:
            shared = [self._batches.share(one, trainers, averaged_away=served) for one in mains]
        transpiled, first = link.transpiled(shared, startup)
        substitutes = [link.substitute(one) for one in (*transpiled, first)]
        for origin, substitute in zip((*mains, startup), substitutes):
            self._substitutes.put(origin, substitute)
        if isinstance(link, PipelineLink):
            self._links.current, self._steps = link, StageSteps(link, self._changed)
        else:
            self._batch_steps.share(mains, transpiled, substitutes[:-1])

    def _note_by_script(self) -> None:
        """A script that transpiles by itself also cuts its data itself: give trainers own luck."""
        if not self._batch_steps.by_script:
            self._batch_steps.by_script = True
            if not self.job.serves:
                random.seed(f"{self.job.seed}:{self.role.index}")
                draw_as_reader(f"trainer {self.role.index}")

    @property
    def _link(self) -> Link:
        return self._links.current

    def note_adopted(self) -> None:
        """Note that servers keep what no Program says; random numbers stay the script's own."""
        self.decisions += 1
        self._batch_steps.by_script = True

    def leave_servers(self) -> None:
        """Leave servers that go on to serve something else."""
        self.decisions += 1
        self._link.leave_servers()

    # -- batches -----------------------------------------------------------------------------
    def note_set(self, variable: ScopeVariable) -> None:
        self._changed.note(variable)

    def shared_fetch(self, program: Program, names: tuple[str, ...]) -> SharedFetch:
        """Return the names to fetch here in a step, and the join of the job's ``names``."""
        return self._steps.shared_fetch(program, self._substitute_of(program), names)

    def _tell_servers(self, rates: Mapping[str, float], awaited: str) -> None:
        """Send these learning rates to the servers, from trainer 0: all are fed the same.

        Collective: until all are here, one may still fetch what servers had in the step before.
        """
        self.everyones(b"", awaited)
        peers = self.peers()
        if peers is not None and peers.trainer == 0:
            peers.ask({"do": ASSIGN, "values": rates})

    def _give_servers(self, values: Mapping[str, np.ndarray]) -> None:
        """Send what a plain script has set, the same on all trainers.

        Each of them does so, unless servers have it already: before it asks for rows of the step,
        and before its gradients, without which servers do not go on.
        """
        if values and (peers := self.peers()) is not None:
            give(peers.ask, values)

    def join_uneven(self) -> None:
        """From now on, let every step of this job count the rows that each trainer has."""
        self._link.refuse_uneven()
        self.decisions += 1
        self._batches.joins = True

    def node_count(self) -> int:
        """Return on how many hosts the trainers of a job without servers are. Collective."""
        return self._link.node_count()

    def gather(self, number: int) -> list[int]:
        """Return the numbers of all trainers that live, in trainer order. Collective among them."""
        data = self._trainers.allgather_living(
            number.to_bytes(8, "little", signed=True), self.job.deadline_s, "the others' batches"
        )
        return [int.from_bytes(other, "little", signed=True) for other in data if other is not None]

    # -- operators ---------------------------------------------------------------------------
    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Backend
    ) -> list[list[str]]:
        """Return groups of names whose arrays must be contiguous."""
        return self._link.contiguous(ops, metas, backend)

    def memory(self, nbytes: int, backend: Backend) -> Any:
        """Return memory of a backend, in bytes, for such a group."""
        return self._link.memory(nbytes, backend)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Callable[[], object] | None]:
        """Return each network operator's call in a step, for this rank's role."""
        if all(op.type == "make_table" for op in ops):
            owners = self.cluster.servers if self.job.serves else self.cluster.trainers
            return [bind_make(op, binding, self.role.index, len(owners)) for op in ops]
        serving = [op for op in ops if op.type == "listen_and_serv"]
        if bool(serving) != self.job.serves:
            kind = "listen_and_serv" if serving else ops[0].type
            raise HpcdistError(
                f"rank {self.job.transport.rank} is {self.role}: it cannot run operator {kind!r}; "
                "the script must choose its program by PADDLE_TRAINING_ROLE"
            )
        exchange = self._batches.exchange
        calls = {id(op): bind_moments(op, binding, exchange) for op in ops if is_synchronized(op)}
        calls |= {
            id(op): bind_exchange(
                op, binding, self.everyones, self.role.index, len(self.cluster.trainers)
            )
            for op in ops
            if exchanges(op)
        }
        others = [op for op in ops if id(op) not in calls]
        linked = self._link.bind(others, binding) if others else []
        bound = iter(self._batches.bind(others, linked, binding))
        return [calls[id(op)] if id(op) in calls else next(bound) for op in ops]

    def peers(self) -> JobProgramPeers | None:
        """Return the other ranks, as checkpoints see them; None on a server."""
        link = self._link
        if self.job.serves:
            return None
        self._batch_steps.give_set(self._last_trained() or global_scope())  # which may be saved
        client = link.current_client if self.cluster.servers else None
        return JobProgramPeers(
            self.job.gone,
            self.cluster,
            self._trainers,
            client,
            self.job.deadline_s,
            program=self._substitute_of,
            settle=link.settle,
            catch_up=link.catch_up,
            resume=link.resume,
            trained=self._trained,
            complete=link.complete,
            shares_batches=not self._batch_steps.by_script,
        )

    def table_statistics(self) -> list[TableStatistics]:
        """Return the statistics of this server's distributed tables; none on a trainer."""
        return [table.statistics() for table in self._link.served_tables]

    @property
    def staleness(self) -> int:
        """How stale this trainer's last gradients were; 0 on a server."""
        return self._link.staleness

    def everyones(self, data: bytes, awaited: str) -> list[bytes]:
        return self.job.everyones(data, awaited)

    # -- the end -----------------------------------------------------------------------------
    def close(self) -> None:
        """Leave the job's others; harmless where it has been done, and on a server."""
        self.job.close()

    def leave(self) -> None:
        """Share and sum no more, and leave the servers."""
        self.decisions += 1
        self._batches.leave()
        self._link.close()
        draw_as_reader("")

    def expect_one_thread(self) -> None:
        """Raise the HpcdistError of threads that were refused, if any were."""
        self._thread.expect_one()

    def end(self) -> None:
        """Take in what all others said when they ended. Collective, after `leave` on all."""
        if not self.job.serves:
            self._batches.end()
        self._link.end()

    def abandon(self) -> None:
        """Look no more for what the others say."""
        self._link.abandon()


def _has_control(program: Program) -> bool:
    return any(is_control(op) for block in program.blocks for op in block.ops)


def _is_startup(program: Program) -> bool:
    plan = trainer_plan(program)
    return plan is not None and plan.startup
