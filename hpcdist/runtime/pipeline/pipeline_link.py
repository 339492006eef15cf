"""A rank's side of a pipeline: its stage, the stages beside it, the other replicas of its stage."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from hpcdist.comm.base import Transport
from hpcdist.device import on_host
from hpcdist.errors import CommError, FeedError, HpcdistError, PlanError
from hpcdist.executor.analysis import reads
from hpcdist.executor.backend import Backend
from hpcdist.executor.control import Binding, Feed, SharedFetch
from hpcdist.executor.fed import as_host, fed_metas
from hpcdist.executor.position import here
from hpcdist.executor.scope import Scope
from hpcdist.graph.operator import Operator
from hpcdist.graph.pipeline import of_micro_batch
from hpcdist.graph.printing import exact_text
from hpcdist.graph.program import Program, program_of
from hpcdist.graph.registry import Call, Meta, lookup
from hpcdist.graph.rows import SAME
from hpcdist.lod_tensor import LoDTensor
from hpcdist.ops.communication.pipeline import PIPELINE_OPS
from hpcdist.ops.random.counter import Draws
from hpcdist.runtime.batches.scatter_batch import batched_names, samples_of
from hpcdist.runtime.collective.collective_link import CollectiveLink
from hpcdist.runtime.job.link import Link
from hpcdist.runtime.job.set_values import SetValues
from hpcdist.runtime.pipeline.meeting import Meeting
from hpcdist.runtime.pipeline.parts import Part, Parts, joined, packed, unpacked
from hpcdist.runtime.pipeline.transfers import Transfers
from hpcdist.transpiler.cluster import PLAIN
from hpcdist.transpiler.pipeline_plan import ALL, make_pipeline_plan
from hpcdist.transpiler.pipeline_program import Stage, stage_program, stage_startup

logger = logging.getLogger("hpcdist")
CACHE_SIZE = 64  # programs kept: one for each shape of a batch
ANOTHER = (
    "a job that trains a Program in a pipeline trains no other one: leave PipelineOptimizer out, "
    "or train the other Program in a job of its own"
)


class PipelineLink(Link):
    """The connection of one rank of a pipeline to all others, made for one Program that trains.

    With S stages rank r is stage r % S of replica r // S. Every rank is fed whole batches.
    """

    def __init__(
        self,
        everyone: CollectiveLink,
        trainers: Transport,
        names: tuple[str, ...],
        deadline_s: float,
        main: Program,
        startup: Program,
    ) -> None:
        """``everyone`` connects all ranks, whose endpoints are ``names``. Collective."""
        assert main.pipeline is not None
        self._everyone = everyone
        self._trainers = trainers
        self._deadline_s = deadline_s
        self._main = main
        self._used = {name for op in main.global_block().ops for name in reads(op)}
        size, rank = trainers.size, trainers.rank
        self._meeting = Meeting(trainers, deadline_s)
        self._meeting.agree(exact_text(main) + str(main.pipeline), "the other ranks' programs")
        stages = make_pipeline_plan(main, main.pipeline, several_parts=False).stages
        replicas = size // stages
        if size % stages:
            raise PlanError(
                f"rank {rank}: the program is cut into {stages} stages, which {size} ranks cannot "
                f"share: start {stages} ranks, or {2 * stages}, {3 * stages}, ... for replicas"
            )
        self._micro_batches = _micro_batches(main, stages)
        self._parts = Parts(main, replicas * self._micro_batches)
        cut = main.pipeline
        self.plan = make_pipeline_plan(self._parts.program, cut, self._parts.count > 1)
        self._replica, self._stage = divmod(rank, stages)
        of_stage = names[self._stage :: stages]
        self.group = Stage(
            "grad_allreduce",
            of_stage,
            self._replica,
            of_stage[self._replica],
            fusing=PLAIN,
            owners=self.plan.keeper,
            fingerprint=hashlib.sha256(exact_text(main).encode()).hexdigest(),
            stage=self._stage,
            stages=stages,
        )
        alike = trainers.split(self._stage, self._replica)
        self._replicas = CollectiveLink(alike, of_stage, deadline_s)
        ranks = tuple(range(self._replica * stages, (self._replica + 1) * stages))
        self._transfers = Transfers(trainers.split(self._replica, self._stage), ranks, deadline_s)
        declared = {name: var.meta for name, var in self._parts.program.global_block().vars.items()}
        self.main = stage_program(self._parts.program, self.plan, self.group, [declared])
        self.startup = stage_startup(startup, self.plan, self.group)
        self._programs: dict[object, tuple[Program, list[dict[str, Meta]]]] = {}  # by shapes fed
        self._step: tuple[list[Part], list[dict[str, Meta]], Feed] = [], [], {}
        self._tested: WeakSet[Program] = WeakSet()  # looked through for random numbers
        self._layouts: WeakKeyDictionary[Scope, int] = WeakKeyDictionary()  # of the last step
        self._completed: set[tuple[int, str]] = set()  # by scope: held here until the next step

    # -- which Program -----------------------------------------------------------------------
    def substitute(self, program: Program) -> Program:
        if program.trains or program.main is not None:
            raise PlanError(f"rank {self._trainers.rank}: {ANOTHER}")
        return program

    def transpiled(
        self, mains: Sequence[Program], startup: Program
    ) -> tuple[list[Program], Program]:
        raise PlanError(f"rank {self._trainers.rank}: {ANOTHER}")

    def refuse_uneven(self) -> None:
        raise HpcdistError(
            "even_batches(how='join'): every rank of a pipeline is fed whole batches, and none can "
            "be missing: use 'pad' or 'cut'"
        )

    def divided(
        self, program: Program, feed: Feed, scope: Scope, fetches: Sequence[str], by_hand: SetValues
    ) -> tuple[Program, Feed]:
        """Return what this rank runs now, and its part of what is fed. Collective."""
        if program is not self._main:
            if program.main is not None:
                self._meeting.startups += 1
                return self.startup, feed
            used = {n for block in program.blocks for op in block.ops for n in reads(op)}
            self.complete([*used, *fetches], scope)
            self._tell_of_draws(program)
            return program, feed
        for name in fetches:
            self._check_fetched(name, feed)
        if by_hand.some:
            changed, _ = by_hand.take(scope)
            self._meeting.check.note_set(
                {v.name: on_host(v.value) for v in changed if v.value is not None}
            )
        self._forget(scope)
        arrays = self._arrays(feed)
        rows = samples_of(arrays, self._parts.rows.batched)
        self._meeting.begin_step(arrays, rows, fetches)
        parts = self._parts.cut(arrays)
        local = parts[self._replica * self._micro_batches :][: self._micro_batches]
        key = tuple(
            (name, value.shape, value.dtype) for part in parts for name, value in part.feed.items()
        )
        if key not in self._programs:
            fed_metas(self._main, arrays, {})  # what is wrong is said of the whole batch
            metas_by_shapes: dict[object, dict[str, Meta]] = {}
            metas = []
            for part in parts:
                shapes = tuple((n, v.shape, v.dtype) for n, v in part.feed.items())
                if shapes not in metas_by_shapes:
                    metas_by_shapes[shapes] = self._parts.metas(self.plan, part.feed)
                metas.append(metas_by_shapes[shapes])
            metas_here = metas[self._replica * self._micro_batches :][: self._micro_batches]
            staged = stage_program(self._parts.program, self.plan, self.group, metas_here)
            if len(self._programs) == CACHE_SIZE:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = staged, metas
        staged, metas = self._programs[key]
        self._replicas.begin(staged, scope)
        self._step = parts, metas, arrays
        read = staged.global_block().vars
        fed = {
            micro: value
            for m, part in enumerate(local)
            for name, value in part.feed.items()
            if (micro := of_micro_batch(name, m)) in read
        }
        fed.update({n: v for n, v in arrays.items() if n not in self._parts.rows.batched})
        return staged, fed

    def _tell_of_draws(self, program: Program) -> None:
        """Warn once of a test that draws random numbers: micro-batches have moved its positions."""
        if program in self._tested or self._trainers.rank != 0:
            return
        self._tested.add(program)
        ops = [op for block in program.blocks for op in block.ops if not op.attrs.get("is_test")]
        drawing = sorted({op.type for op in ops if lookup(op.type).state is Draws})
        if drawing:
            logger.warning(
                "a Program that runs whole beside a pipeline draws random numbers (%s): others "
                "than in one process, and so may a job that goes on from a checkpoint behind it",
                ", ".join(drawing),
            )

    def _arrays(self, feed: Feed) -> dict[str, np.ndarray]:
        """Return what is fed as arrays; without sequences that no operator reads."""
        block = self._main.global_block()
        ragged = {
            name
            for name, value in feed.items()
            if isinstance(value, LoDTensor) and value.sequences is not None
        }
        if unusable := sorted(ragged & self._used):
            raise FeedError(
                f"feed {unusable[0]!r} has sequences, which a pipeline cannot divide: pad them"
            )
        feed = {name: value for name, value in feed.items() if name not in ragged}
        for name in feed:
            var = block.vars[name]
            if not var.is_data and not var.persistable:
                raise FeedError(
                    f"feed {name!r}: in a pipeline only data variables and what is kept are fed, "
                    f"and the program computes {name!r}"
                )
        return {name: as_host(name, value, self._main) for name, value in feed.items()}

    # -- what is fetched ---------------------------------------------------------------------
    def _check_fetched(self, name: str, feed: Feed) -> None:
        exists = name in self._main.global_block().vars
        if exists and name not in feed and not self._once(name):
            self._parts.of_rows(name)

    def _once(self, name: str) -> bool:
        var = self._main.global_block().vars.get(name)
        persists = var is not None and var.persistable
        return persists or name in self.plan.gradients or name in self.plan.updated

    def _stage_of(self, name: str) -> int:
        plan = self.plan
        maps = (plan.updated, plan.keeper, plan.computed)
        return next((stages[name] for stages in maps if name in stages), ALL)

    def divided_fetch(self, program: Program, names: tuple[str, ...]) -> SharedFetch:
        """Return what to fetch here in a step, and what makes of it the values of ``names``."""
        if not names or program is not self._main:
            return names, None
        local: list[str] = []
        for name in dict.fromkeys(names):
            if name not in self._step[2] and self._stage_of(name) in (self._stage, ALL):
                local += self._local_names(name)
        return tuple(local), lambda fetched: self._join(names, dict(fetched))

    def _local_names(self, name: str) -> list[str]:
        if self._once(name) or self._stage_of(name) == ALL:
            return [name]
        of = self._parts.of_rows(name)
        count = 1 if of.how is SAME.how else self._micro_batches
        return [of_micro_batch(name, m) for m in range(count)]

    def _join(self, names: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
        """Return the values of the whole batch. Collective."""
        parts, metas, fed = self._step
        local = parts[self._replica * self._micro_batches :][: self._micro_batches]
        elsewhere = [n for n in dict.fromkeys(names) if n not in fed and self._stage_of(n) != ALL]
        # What a rank tells of each value: once, or for each of its micro-batches.
        packed_values = [self._told(n, values, local) for n in elsewhere]
        sizes = np.array([len(data) for some in packed_values for data in some], np.int64).tobytes()
        counts = np.array([len(some) for some in packed_values], np.int64).tobytes()
        body = b"".join(data for some in packed_values for data in some)
        awaited = f"the values of {', '.join(elsewhere)} in step {here.step}"
        came = (
            [
                unpacked(data, len(elsewhere))
                for data in self._trainers.allgather_bytes(
                    counts + sizes + body, self._deadline_s, awaited
                )
            ]
            if elsewhere
            else []
        )
        gathered: dict[str, Any] = {}
        for place, name in enumerate(elsewhere):
            stage = self._stage_of(name)
            data = [one for rank in came[stage :: self.plan.stages] for one in rank[place]]
            if self._once(name):
                var = self._main.global_block().var(name)
                gathered[name] = np.frombuffer(data[0], var.dtype).reshape(var.shape).copy()
            else:
                gathered[name] = joined(data, self._parts.of_rows(name), parts, metas[0][name])
        return [
            gathered[n] if n in gathered else np.array(fed[n]) if n in fed else values[n]
            for n in names
        ]

    def _told(self, name: str, values: Mapping[str, Any], parts: Sequence[Part]) -> list[bytes]:
        if self._stage_of(name) != self._stage:
            return []
        if self._once(name):
            return [] if self._replica else [np.ascontiguousarray(values[name]).tobytes()]
        of = self._parts.of_rows(name)
        local = [values[n] for n in self._local_names(name)]
        return [packed(np.asarray(v), of, part) for v, part in zip(local, parts)]

    # -- what other stages keep --------------------------------------------------------------
    def complete(self, names: Sequence[str], scope: Scope) -> None:
        """Hold all of these variables here, also those that other stages keep. Collective.

        Until the next step that trains.
        """
        key = id(scope)
        asked_for = sorted(n for n in self.plan.keeper.keys() & set(names))
        if all((key, name) in self._completed for name in asked_for):
            return
        block = self._main.global_block()
        kept_here = [
            n for n in asked_for if self.plan.keeper[n] == self._stage and not self._replica
        ]
        arrays = {n: on_host(_value(scope, n)) for n in kept_here}
        body = b"".join(np.ascontiguousarray(arrays[n]).tobytes() for n in kept_here)
        awaited = f"the other stages' {', '.join(asked_for[:3])}"
        doing = f"asks for {awaited}"
        gathered = self._meeting.exchange(
            "\n".join(["keep", *asked_for]), body + b".", awaited, doing
        )
        if b"" in gathered:
            raise CommError(
                f"rank {self._trainers.rank} {doing}, but the script of rank {gathered.index(b'')} "
                "has ended: all ranks of a pipeline must run the same programs, and save together"
            )
        starts = dict.fromkeys(range(self.plan.stages), 0)
        for name in asked_for:
            stage, var = self.plan.keeper[name], block.var(name)
            size = int(np.prod(var.shape, dtype=np.int64))
            array = np.frombuffer(gathered[stage], var.dtype, size, starts[stage])
            starts[stage] += array.nbytes
            if stage != self._stage:
                scope.var_or_new(name).take(array.reshape(var.shape))
        self._completed.update((key, name) for name in asked_for)

    def _forget(self, scope: Scope) -> None:
        """Drop what other stages keep: the step that begins moves it."""
        self._completed.clear()
        if self._layouts.get(scope) == scope.layout:
            return
        for name, stage in self.plan.keeper.items():
            variable = scope.find_var(name)
            if stage != self._stage and variable is not None and variable.value is not None:
                variable.hold(None)
        self._layouts[scope] = scope.layout

    # -- compiling ---------------------------------------------------------------------------
    def _link_of(self, ops: Sequence[Operator]) -> CollectiveLink:
        staged = isinstance(program_of(ops[0]).distribution, Stage)
        return self._replicas if staged else self._everyone

    def contiguous(
        self, ops: Sequence[Operator], metas: Mapping[str, Meta], backend: Backend
    ) -> list[list[str]]:
        others = [op for op in ops if op.type not in PIPELINE_OPS]
        return self._link_of(others).contiguous(others, metas, backend) if others else []

    def memory(self, nbytes: int, backend: Backend) -> Any:
        return self._replicas.memory(nbytes, backend)

    def bind(self, ops: Sequence[Operator], binding: Binding) -> list[Call | None]:
        moving = {
            id(op): self._transfers.bind(op, binding) for op in ops if op.type in PIPELINE_OPS
        }
        others = [op for op in ops if id(op) not in moving]
        linked = iter(self._link_of(others).bind(others, binding) if others else [])
        return [moving[id(op)] if id(op) in moving else next(linked) for op in ops]

    # -- the end -----------------------------------------------------------------------------
    def close(self) -> None:
        self._replicas.close()
        self._everyone.close()

    def end(self) -> None:
        self._transfers.end()
        self._replicas.end()
        self._everyone.end()


def _micro_batches(main: Program, stages: int) -> int:
    assert main.pipeline is not None
    if not batched_names(main):
        return 1  # there are no rows to divide
    requested = main.pipeline.micro_batches
    return 2 * stages if requested is None else requested


def _value(scope: Scope, name: str) -> Any:
    variable = scope.find_var(name)
    if variable is None or variable.value is None:
        raise PlanError(f"variable {name!r} is not initialized: run the startup program first")
    return variable.value
