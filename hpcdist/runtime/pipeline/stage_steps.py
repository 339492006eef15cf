"""Steps divided into stages: feeds, and how fetched values are combined."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import FeedError
from hpcdist.base.trace.position import here
from hpcdist.executor.analysis import reads
from hpcdist.executor.control import Feed, SharedFetch
from hpcdist.executor.fed import as_host, fed_metas
from hpcdist.executor.scope import Scope
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.pipeline import of_micro_batch
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta, lookup
from hpcdist.ops.random.counter import Draws
from hpcdist.runtime.batches.scatter import samples_of
from hpcdist.runtime.job.set_values import SetValues
from hpcdist.runtime.pipeline.micro_batches import MicroBatch, joined, packed, unpacked
from hpcdist.runtime.pipeline.pipeline_link import PipelineLink
from hpcdist.transpiler.pipeline_plan import ALL

logger = logging.getLogger("hpcdist")
CACHE_SIZE = 64  # programs kept: one for each shape of a batch


class StageSteps:
    """The steps of one rank of a pipeline. Every rank is fed whole batches."""

    def __init__(self, link: PipelineLink, changed: SetValues) -> None:
        """``changed``: what the script sets between steps."""
        self._link = link
        self._changed = changed
        self._stage = link.stage
        self._main = self._stage.main
        self._used = {name for op in self._main.global_block().ops for name in reads(op)}
        self._programs: dict[object, tuple[Program, list[dict[str, Meta]]]] = {}  # by last use
        self._step: tuple[list[MicroBatch], list[dict[str, Meta]], Feed] = [], [], {}
        self._tested: WeakSet[Program] = WeakSet()  # looked through for random numbers

    def begin_step(
        self,
        program: Program,
        substitute: Program,
        feed: Feed,
        scope: Scope,
        fetches: Sequence[str],
    ) -> tuple[Program, Feed]:
        """Return this rank's Program of this step, and its part of the feed. Collective."""
        if program is self._main:
            return self._trained(feed, scope, fetches)
        if program.main is not None:
            self._link.meeting.startups += 1
            return substitute, feed
        used = {n for block in program.blocks for op in block.ops for n in reads(op)}
        self._link.complete([*used, *fetches], scope)
        self._tell_of_draws(program)
        return substitute, feed

    def settled(self, *_: object) -> None:
        """Return None: every batch is cut into micro-batches of its own shapes."""

    def _trained(
        self, feed: Feed, scope: Scope, fetches: Sequence[str]
    ) -> tuple[Program, dict[str, Any]]:
        meeting = self._link.meeting
        for name in fetches:
            self._check_fetched(name, feed)
        if self._changed.some:
            changed, _ = self._changed.take(scope)
            meeting.check.note_set(
                {v.name: on_host(v.value) for v in changed if v.value is not None}
            )
        self._link.forget(scope)
        arrays = self._arrays(feed)
        batched = self._stage.batches.rows.batched
        meeting.begin_step(arrays, samples_of(arrays, batched), fetches)
        batches = self._stage.batches.cut(arrays)
        staged, metas = self._program(arrays, batches)
        self._link.begin_stage(staged, scope)
        self._step = batches, metas, arrays
        read = staged.global_block().vars
        fed = {
            micro: value
            for m, batch in enumerate(batches[self._stage.mine])
            for name, value in batch.feed.items()
            if (micro := of_micro_batch(name, m)) in read
        }
        fed.update({n: v for n, v in arrays.items() if n not in batched})
        return staged, fed

    def _program(
        self, arrays: Feed, batches: Sequence[MicroBatch]
    ) -> tuple[Program, list[dict[str, Meta]]]:
        """Return this rank's step for micro-batches of these shapes, and their values' shapes."""
        shapes = [tuple((n, v.shape, v.dtype) for n, v in b.feed.items()) for b in batches]
        key = tuple(shapes)
        made = self._programs.pop(key, None)
        if made is None:
            fed_metas(self._main, arrays, {})  # what is wrong is said of the whole batch
            stage = self._stage
            of_shape = {
                shape: stage.batches.metas(stage.plan, batch.feed)
                for shape, batch in dict(zip(shapes, batches)).items()
            }
            metas = [of_shape[shape] for shape in shapes]
            staged = stage.program(metas[stage.mine])
            if len(self._programs) == CACHE_SIZE:
                del self._programs[next(iter(self._programs))]  # the one used longest ago
            made = staged, metas
        self._programs[key] = made
        return made

    def _tell_of_draws(self, program: Program) -> None:
        """Warn once of a test that draws random numbers: micro-batches have moved its positions."""
        if program in self._tested or self._link.trainers.rank != 0:
            return
        self._tested.add(program)
        ops = [op for block in program.blocks for op in block.ops if not op.attrs.get("is_test")]
        drawing = sorted({op.type for op in ops if lookup(op.type).state is Draws})
        if drawing:
            logger.warning(
                "a Program that runs beside the pipeline draws random numbers (%s): they differ "
                "from those of one process, and may differ in a job that resumes from a later "
                "checkpoint",
                ", ".join(drawing),
            )

    def _arrays(self, feed: Feed) -> dict[str, np.ndarray]:
        """Return the feed as arrays; without sequences that no operator reads."""
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
                    f"feed {name!r}: a pipeline can be fed only data variables and persistable "
                    f"ones, but the program computes {name!r}"
                )
        return {name: as_host(name, value, self._main) for name, value in feed.items()}

    # -- what is fetched ---------------------------------------------------------------------
    def _check_fetched(self, name: str, feed: Feed) -> None:
        exists = name in self._main.global_block().vars
        if exists and name not in feed and not self._stage.once(name):
            self._stage.batches.of_rows(name)

    def shared_fetch(
        self, program: Program, substitute: Program, names: tuple[str, ...]
    ) -> SharedFetch:
        """Return the names to fetch here in a step, and the function that joins ``names``."""
        if not names or program is not self._main:
            return names, None
        local: list[str] = []
        for name in dict.fromkeys(names):
            if name not in self._step[2] and self._stage.computes(name):
                local += self._stage.local_names(name)
        return tuple(local), lambda fetched: self._join(names, dict(fetched))

    def _join(self, names: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
        """Return the values of the whole batch. Collective."""
        stage, (batches, metas, fed) = self._stage, self._step
        elsewhere = [n for n in dict.fromkeys(names) if n not in fed and stage.stage_of(n) != ALL]
        # What a rank tells of each value: once, or for each of its micro-batches.
        packed_values = [self._told(n, values, batches[stage.mine]) for n in elsewhere]
        sizes = np.array([len(data) for some in packed_values for data in some], np.int64).tobytes()
        counts = np.array([len(some) for some in packed_values], np.int64).tobytes()
        body = b"".join(data for some in packed_values for data in some)
        awaited = f"the values of {', '.join(elsewhere)} in step {here.step}"
        trainers, deadline_s = self._link.trainers, self._link.deadline_s
        came = []
        if elsewhere:
            data_of_ranks = trainers.allgather_bytes(counts + sizes + body, deadline_s, awaited)
            came = [unpacked(data, len(elsewhere)) for data in data_of_ranks]
        gathered: dict[str, Any] = {}
        for place, name in enumerate(elsewhere):
            of_stage = came[stage.stage_of(name) :: stage.plan.stages]
            data = [one for of_rank in of_stage for one in of_rank[place]]
            if stage.once(name):
                var = self._main.global_block().var(name)
                gathered[name] = np.frombuffer(data[0], var.dtype).reshape(var.shape).copy()
            else:
                gathered[name] = joined(data, stage.batches.of_rows(name), batches, metas[0][name])
        return [
            gathered[n] if n in gathered else np.array(fed[n]) if n in fed else values[n]
            for n in names
        ]

    def _told(
        self, name: str, values: Mapping[str, Any], batches: Sequence[MicroBatch]
    ) -> list[bytes]:
        stage = self._stage
        if stage.stage_of(name) != stage.stage:
            return []
        if stage.once(name):
            return [] if stage.replica else [np.ascontiguousarray(values[name]).tobytes()]
        of = stage.batches.of_rows(name)
        local = [values[n] for n in stage.local_names(name)]
        return [packed(np.asarray(v), of, batch) for v, batch in zip(local, batches)]
