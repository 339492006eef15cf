"""Batches that trainers share: each takes its rows, and fetched values are joined."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import FeedError, PlanError
from hpcdist.base.trace.position import here
from hpcdist.comm.base import Transport
from hpcdist.executor.control import Binding, Feed, Join
from hpcdist.executor.fed import as_host
from hpcdist.executor.scope import Scope, ScopeVariable
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.graph.registry import Call
from hpcdist.runtime.batches.analysis import SharedProgram
from hpcdist.runtime.batches.check import BatchCheck
from hpcdist.runtime.batches.distributed_auc import CountsOfAll, DistributedAuc
from hpcdist.runtime.batches.joined_fetch import JoinedFetch
from hpcdist.runtime.batches.rounds import BatchRounds
from hpcdist.runtime.batches.scatter import (
    Division,
    cut_feed,
    row_counts,
    rows_of_arrays,
    samples_of,
    share_among,
    unlike,
)
from hpcdist.runtime.batches.trainer_part import (
    SharedFacts,
    TrainerPart,
    expect_divided,
    loss_weight,
    weights,
)
from hpcdist.runtime.batches.whole_batch import ROWS, of_whole_batch, rows_here, seen_in_part
from hpcdist.runtime.job.membership import Membership
from hpcdist.runtime.staging import in_order
from hpcdist.transpiler.made_of_gradients import as_updates

logger = logging.getLogger("hpcdist")
SENDING = ("send", "push_sparse", "c_allreduce_sum")


class Batches:
    """The Programs whose batches are shared, and this trainer's part of the last one.

    Every trainer is fed the whole batch and takes its rows (`share`). With ``local`` each is fed
    rows of its own instead, which together are the batch. In a job that counts rows by
    `even_batches` (`meet`), a trainer may also have none.

    In every step trainers exchange a key of what they are fed, and what is fetched (`BatchRounds`).
    """

    def __init__(
        self,
        trainers: Transport,
        deadline_s: float,
        membership: Membership | None = None,
        *,
        local: bool = False,
        ranks: Sequence[int] = (),
    ) -> None:
        """``ranks`` are those of all trainers in the job, for messages."""
        self._trainers = trainers
        self._membership = membership or Membership(trainers, None, deadline_s)
        self._deadline_s = deadline_s
        self._local = local
        self._check = BatchCheck(trainers.rank, ranks)
        everyone = tuple(ranks) or tuple(range(trainers.size))
        args = trainers, deadline_s, self._membership, self._check, everyone
        self._rounds = BatchRounds(*args)
        self._shared: ProgramCache[SharedFacts] = ProgramCache()
        self._run_as: ProgramCache[SharedFacts] = ProgramCache()  # by what runs in their place
        self._numbers = itertools.count()
        self._met: ProgramCache[SharedProgram] = ProgramCache()
        self._area_counts: frozenset[str] = frozenset()  # of `auc`: each trainer's own
        self._counting: ProgramCache[CountsOfAll] = ProgramCache()
        self._told_own_rows = False
        self.joins = False  # whether every step counts the rows that each trainer has

    def share(self, program: Program, trainers: int, *, averaged_away: bool) -> Program:
        """Note that every trainer is fed the whole batches of a Program; return what it runs.

        ``averaged_away``: see `SharedProgram`. Raises PlanError if the trainers' parts cannot make
        up the step of one process.
        """
        summed = program if averaged_away else as_updates(program)
        rows = SharedProgram(summed, trainers, averaged_away=averaged_away)
        if self._local:
            expect_divided(rows)
        shared = SharedFacts(rows, DistributedAuc(program), next(self._numbers))
        if trainers > 1:
            self._area_counts |= shared.areas.states
            self._tell_parts(seen_in_part(program, rows))
        self._shared.put(program, shared)
        self._membership.watch()
        new = of_whole_batch(program, rows, trainers)
        shared.draws_rows = ROWS in new.global_block().vars
        return new

    def refuse_pipeline(self) -> None:
        """Raise PlanError where ranks of a pipeline could not all be fed the same batches."""
        if self._local or self.joins or self._membership.settles:
            raise PlanError(
                "every rank of a pipeline is fed whole batches, and none can be missing: leave out "
                "--feed local, even_batches(how='join') and --on-failure continue"
            )

    def begin_rounds(self, program: Program, substitute: Program) -> None:
        """Before trainers first run ``substitute`` in place of a shared Program. Collective."""
        shared = self._shared.get(program)
        assert shared is not None
        self._run_as.put(substitute, shared)
        self._rounds.connect()

    def leave(self) -> None:
        """Share no more: this trainer leaves the servers."""
        self._rounds.leave()
        self._membership.leave()

    def end(self) -> None:
        """When all trainers have left: end what is under way. Collective."""
        self._rounds.end()

    def exchange(self, data: bytes, awaited: str) -> Sequence[bytes | None]:
        """Exchange values with those who share this batch; None for one that died. Collective."""
        return self._membership.join(data, f"{awaited} of step {here.step}")

    # -- before a step -----------------------------------------------------------------------
    @property
    def alike(self) -> bool:
        """Whether all trainers of a plain script are fed the same."""
        return not self._local

    def counts_rows(self, program: Program) -> bool:
        """Return whether each trainer is fed rows of its own, to be counted in every step."""
        return self.joins and self._shared.get(program) is None

    def cut(self, program: Program, feed: Feed, scope: Scope, fetches: Sequence[str]) -> Feed:
        """Return this trainer's rows of a batch with what they count, if batches are shared.

        They are the whole batch where ``fetches`` cannot be combined from parts.
        """
        shared = self._shared.get(program)
        if shared is None:
            if feed and self._local:
                self._tell_own_rows()
            if self._area_counts:
                self._counting_of(program).gather(scope)
            return feed
        why_whole = self._why_whole(shared, fetches)
        if why_whole and self._local:
            raise FeedError(f"trainers feed rows of their own, but {why_whole}: fetch it elsewhere")
        membership = self._membership
        among = membership.begin_batch() if membership.settles else membership.among
        batched = shared.rows.batched
        # Most batches have as many rows as the one before.
        part = shared.last
        fits = part is not None and part.among is among and part.why_whole == why_whole
        rows = part.rows(feed, batched) if part is not None and fits else None
        if rows is None and not self._local and (total := rows_of_arrays(feed, batched)):
            part = shared.parts.get((total, among, why_whole))
            part = part or self._part(shared, feed, total, among, why_whole)
            shared.last, rows = part, part.rows(feed, batched)
        if rows is None:
            arrays = {
                n: v if isinstance(v, LoDTensor) else as_host(n, v, program)
                for n, v in feed.items()
            }
            rows, part = self._looked_at(shared, arrays, among, why_whole)
            rows.update(part.told)
        else:
            assert part is not None
            self._check.begin(feed, part.total)
        self._rounds.note_batch(part.division, scope)
        return rows

    def cutter(
        self, program: Program, scope: Scope, fetches: Sequence[str]
    ) -> Callable[[Feed], Feed] | None:
        """Return `cut` of what is fed, for many steps; None if it would do nothing.

        Of batches like the one before no more is done than to cut them.
        """
        shared = self._shared.get(program)
        if shared is None and not self._area_counts:
            return None
        if shared is None or self._membership.settles:
            return lambda feed: self.cut(program, feed, scope, fetches)
        check, rounds, batched = self._check, self._rounds, shared.rows.batched
        why_whole = self._why_whole(shared, fetches)

        def cut(feed: Feed) -> Feed:
            part, rows = shared.last, None
            if part is not None and part.why_whole == why_whole:
                rows = part.rows(feed, batched)
            if part is None or rows is None:
                return self.cut(program, feed, scope, fetches)
            check.begin(feed, part.total)
            rounds.note_batch(part.division, scope)
            return rows

        return cut

    def adds_up(self, program: Program) -> bool:
        """Return whether a Program that every trainer runs whole continues counts of them all."""
        return bool(self._area_counts) and self._counting_of(program).handing_back() is not None

    def _why_whole(self, shared: SharedFacts, fetches: Sequence[str]) -> str:
        """Say why these values cannot be combined from parts of a batch; empty if they can."""
        return self._joined_of(shared, fetches).why_whole if self._trainers.size > 1 else ""

    def note_set(self, variables: Sequence[ScopeVariable]) -> None:
        """Note what the script has set by hand: the next step compares it, too."""
        self._check.note_set({v.name: on_host(v.value) for v in variables if v.value is not None})

    def _part(
        self, shared: SharedFacts, feed: Feed, total: int, among: tuple[int, ...], why_whole: str
    ) -> TrainerPart:
        """Return this trainer's part of every batch of arrays with so many rows."""
        rows, index = shared.rows, among.index(self._trainers.rank)
        facts = rows.batched, index, len(among), rows.counted
        _, division = cut_feed(feed, *facts, why_whole=why_whole)
        part = replace(
            self._trainer_part(shared, division, index), among=among, why_whole=why_whole
        )
        shared.parts[total, among, why_whole] = part
        return part

    def _looked_at(
        self, shared: SharedFacts, arrays: dict[str, Any], among: tuple[int, ...], why_whole: str
    ) -> tuple[dict[str, Any], TrainerPart]:
        """Return this trainer's rows of a batch that may have sequences."""
        rows, index = shared.rows, among.index(self._trainers.rank)
        alike = rows.alike_in(arrays)
        if not self._local:
            self._check.begin(arrays, samples_of(arrays, rows.batched))
            facts = rows.batched, index, len(among), rows.counted, alike
            cut, division = cut_feed(arrays, *facts, why_whole=why_whole)
            return cut, self._trainer_part(shared, division, index)
        self._check.begin({}, 0)  # rows are each one's own, but not what the script has set
        if different := unlike(arrays, alike):
            raise FeedError(f"cannot share a batch over trainers: {different}")
        counts = self._counts(arrays, rows)
        if 0 in counts[""]:
            raise FeedError(
                f"step {here.step + 1}: with --feed local every trainer feeds rows of its own, "
                f"at least one, but the trainers feed {counts['']} (0 also for one whose "
                "script has ended); fluid.even_batches(reader, 'cut') makes the numbers of batches "
                "equal"
            )
        return arrays, self._trainer_part(
            shared, Division(share_among(counts[""], index), counts), index
        )

    def _trainer_part(
        self, shared: SharedFacts, division: Division | None, index: int
    ) -> TrainerPart:
        """Return a part with what its rows count."""
        weight, counted = 1.0, True
        if division is not None and division.why_whole:
            weight = division.share.weight  # so batch_norm counts these rows once, too
            counted = bool(weight)
            self._tell_whole(shared, division.why_whole)
        elif division is not None:
            if none := division.mean_over_none():
                raise FeedError(f"cannot share a batch over trainers: {none}")
            counted = bool(division.share.weight)
            loss = shared.rows.loss
            weight = loss_weight(loss, division.counts[loss.sequences], index)
        variables = weights(shared.rows, weight, counted)
        if shared.draws_rows:
            variables[ROWS] = rows_here(None if division is None else division.share)
        return TrainerPart(division, variables)

    def _tell_parts(self, seen: Sequence[str]) -> None:
        if seen and self._trainers.rank == 0:
            logger.warning(
                "each trainer shows the values of its own rows of a batch, and gradients by which "
                "its rows count: %s. Fetched values are those of the whole batch",
                "; ".join(seen),
            )

    def _tell_own_rows(self) -> None:
        if not self._told_own_rows and self._trainers.rank == 0 and self._trainers.size > 1:
            logger.warning(
                "with --feed local a program that does not train is computed by each trainer of "
                "the rows that it feeds itself: what is fetched is of these alone. Feed it all "
                "rows, or sum over trainers by fleet.metrics or fleet.util.all_reduce"
            )
        self._told_own_rows = True

    def _tell_whole(self, shared: SharedFacts, reason: str) -> None:
        if not shared.told_whole and self._trainers.rank == 0 and self._trainers.size > 1:
            logger.warning(
                "trainers cannot divide a batch of this program: %s. Every trainer computes the "
                "whole batch: the results are those of one process, without a speedup",
                reason,
            )
        shared.told_whole = True

    def meet(self, program: Program, feed: Feed) -> tuple[Feed, bool]:
        """Exchange the numbers of fed rows with the others; return the feed with its counts.

        Collective, at every step. The second value tells whether there are any rows here.
        """
        shared = self._met.of(program, lambda: SharedProgram(program, self._trainers.size))
        expect_divided(shared)
        counts = self._counts(feed, shared)
        if not counts[""][self._trainers.rank]:
            return {}, False
        rows = counts[shared.loss.sequences]
        weight = loss_weight(shared.loss, rows, self._trainers.rank)
        return {**feed, **weights(shared, weight, True)}, True

    def _counts(self, feed: Feed, shared: SharedProgram) -> dict[str, list[int]]:
        """Return how many rows each trainer feeds; 0 for one that has ended. Collective."""
        names = ["", *shared.counted]
        local = row_counts(feed, shared.batched, names)
        gathered = self._trainers.allgather_bytes(
            np.array(local, np.int64).tobytes(),
            self._deadline_s,
            f"how many rows the other trainers have in step {here.step + 1}",
        )
        counts = [np.frombuffer(data or bytes(8 * len(names)), np.int64) for data in gathered]
        return {name: [int(of[k]) for of in counts] for k, name in enumerate(names)}

    # -- in a step ---------------------------------------------------------------------------
    def bind(
        self, ops: Sequence[Operator], calls: Sequence[Call | None], binding: Binding
    ) -> list[Call | None]:
        """Return the calls of network operators; the last that sends first starts the round.

        When all have what it sends, they also have the keys and notes.
        """
        shared = self._run_as.get(binding.program)
        sending = [i for i, op in enumerate(ops) if op.type in SENDING]
        bound = list(calls)
        if shared is not None and sending and self._rounds.connected:
            last = sending[-1]
            joined = self._joined_of(shared, binding.fetches)
            bound[last] = in_order(self._rounds.starting(joined, ops[last], binding), bound[last])
        return bound

    # -- after a step ------------------------------------------------------------------------
    def join(self, program: Program, names: Sequence[str]) -> Join | None:
        """Return the function that joins the trainers' values of these names.

        Raises FeedError if they cannot be joined.
        """
        shared = self._shared.get(program)
        if shared is None and self._area_counts:
            return self._counting_of(program).handing_back()
        if shared is None or self._trainers.size == 1:
            return None
        joins = shared.joins.get(names)
        if joins is None:
            joins = functools.partial(self._rounds.join, self._joined_of(shared, names))
            shared.joins[names] = joins
        return joins

    def _counting_of(self, program: Program) -> CountsOfAll:
        """Return how a Program that every trainer runs whole continues from counts of them all."""
        return self._counting.of(
            program, lambda: CountsOfAll(program, self._area_counts, self._membership)
        )

    def _joined_of(self, shared: SharedFacts, names: Sequence[str]) -> JoinedFetch:
        joined = shared.joined.get(names)
        if joined is None:
            joined = JoinedFetch(
                names, shared.number, shared.rows, shared.areas, self._trainers.rank
            )
            shared.joined[names] = joined
        return joined
