"""Batches that trainers share: each takes its rows, and their values are put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.comm.base import Transport
from hpcdist.errors import FeedError
from hpcdist.executor.control import Feed, Fetched
from hpcdist.executor.position import here
from hpcdist.executor.scope import Scope
from hpcdist.graph.program import Program, ProgramCache
from hpcdist.graph.rows import How
from hpcdist.runtime.batches.batch_check import RECORD_BYTES, BatchCheck
from hpcdist.runtime.batches.distributed_auc import DistributedAuc
from hpcdist.runtime.batches.gather_batch import SharedProgram, loss_weight, pack, unpack
from hpcdist.runtime.batches.scatter_batch import (
    WEIGHT,
    Division,
    as_arrays,
    check_alike,
    cut_feed,
    row_counts,
    share_among,
)
from hpcdist.runtime.batches.whole_batch import ROWS, of_whole_batch, rows_here
from hpcdist.runtime.job.membership import Membership


class Batches:
    """The Programs whose batches are shared, and this trainer's part of the last one.

    Every trainer is fed the whole batch and takes its rows (`share`). With ``local`` each is fed
    rows of its own instead, which together are the batch. In a job that counts rows by
    `even_batches` (`meet`), a trainer may also have none.
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
        self._check = BatchCheck(
            trainers, deadline_s, ranks, ring=trainers.size > 1 and not self._membership.settles
        )
        self._shared: ProgramCache[tuple[SharedProgram, DistributedAuc]] = ProgramCache()
        self._met: ProgramCache[SharedProgram] = ProgramCache()
        self.joins = False  # whether every step counts the rows that each trainer has
        self._division: Division | None = None  # of the last batch
        self._scope: Scope | None = None  # where the last batch is computed

    def share(self, program: Program, trainers: int) -> Program:
        """Note that every trainer is fed the whole batches of a Program; return what it runs.

        Raises PlanError if the trainers' parts cannot make up the step of one process.
        """
        shared = SharedProgram(program, trainers)
        self._shared.put(program, (shared, DistributedAuc(program)))
        self._membership.watch()
        return of_whole_batch(program, shared, trainers)

    def settle(self) -> None:
        """Raise FeedError if the last step was fed different batches. Before a checkpoint."""
        self._check.settle()

    def leave(self) -> None:
        """Share no more: this trainer leaves the servers."""
        self._check.end()
        self._membership.leave()

    def exchange(self, data: bytes, what: str) -> Sequence[bytes | None]:
        """Return what those who share this batch give; of one that died None. Collective."""
        return self._membership.join(data, f"{what} of step {here.step}")

    def counts_rows(self, program: Program) -> bool:
        """Tell whether each trainer is fed rows of its own, to be counted in every step."""
        return self.joins and self._shared.get(program) is None

    def cut(self, program: Program, feed: Feed, scope: Scope) -> Feed:
        """Return this trainer's rows of a batch with what they count, if batches are shared."""
        found = self._shared.get(program)
        if found is None:
            return feed
        shared, _ = found
        among = self._membership.begin_batch()
        index = among.index(self._trainers.rank)
        arrays = as_arrays(feed)
        rows: dict[str, Any] = arrays
        alike = shared.alike_in(arrays)
        if self._local:
            check_alike(arrays, alike)
            counts = self._counts(arrays, shared)
            if 0 in counts[""]:
                raise FeedError(
                    f"step {here.step + 1}: with --feed local every trainer feeds rows of its own, "
                    f"at least one, but the trainers feed {counts['']} (0 also for one whose "
                    "script has ended); fluid.even_batches(reader, 'cut') gives all equally many "
                    "batches"
                )
            division: Division | None = Division(share_among(counts[""], index), counts)
        else:
            self._check.begin(arrays, row_counts(arrays, shared.batched)[0])
            rows, division = cut_feed(
                arrays, shared.batched, index, len(among), shared.counted, alike
            )
        weight = 1.0
        if division is not None:
            division.check_means()
            weight = loss_weight(shared.loss, division.counts[shared.loss.sequences], index)
        rows[WEIGHT] = np.array([weight], np.float32)
        rows[ROWS] = rows_here(None if division is None else division.share)
        self._division, self._scope = division, scope
        return rows

    def meet(self, program: Program, feed: Feed) -> tuple[Feed, bool]:
        """Tell the others how many rows are fed here; return the feed with what they count.

        Collective, at every step. The second value tells whether there are any rows here.
        """
        shared = self._met.of(program, lambda: SharedProgram(program, self._trainers.size))
        counts = self._counts(feed, shared)
        if not counts[""][self._trainers.rank]:
            return {}, False
        rows = counts[shared.loss.sequences]
        weight = loss_weight(shared.loss, rows, self._trainers.rank)
        return {**feed, WEIGHT: np.array([weight], np.float32)}, True

    def _counts(self, feed: Feed, shared: SharedProgram) -> dict[str, list[int]]:
        """Return how many rows each trainer feeds; 0 for one that has ended. Collective."""
        names = ["", *shared.counted]
        own = row_counts(feed, shared.batched, names)
        told = self._trainers.allgather_bytes(
            np.array(own, np.int64).tobytes(),
            self._deadline_s,
            f"how many rows the other trainers have in step {here.step + 1}",
        )
        counts = [np.frombuffer(data or bytes(8 * len(names)), np.int64) for data in told]
        return {name: [int(of[k]) for of in counts] for k, name in enumerate(names)}

    def join(self, program: Program, names: Sequence[str]) -> Callable[[Fetched], list[Any]] | None:
        """Return what joins the trainers' values of these names, for a Program that is shared.

        Raises FeedError if they cannot be joined.
        """
        found = self._shared.get(program)
        if found is None or self._trainers.size == 1:
            return None
        shared, areas = found
        ofs = [shared.of_rows(name) for name in names]

        def join(fetched: Fetched) -> list[Any]:
            told_of = ", ".join(names)
            division, scope = self._division, self._scope
            if division is None or scope is None or all(of.how is How.SAME for of in ofs):
                if self._membership.settles:
                    self._everyones(b"", told_of)
                elif not self._local:
                    self._check.tell_neighbour()
                return [value for _, value in fetched]
            values = [areas.part(name, value, scope) for name, value in fetched]
            told = self._everyones(pack(values, ofs, division.share), told_of)
            joined = unpack(told, values, ofs, division)
            return [areas.whole(name, value, own) for (name, own), value in zip(fetched, joined)]

        return join

    def _everyones(self, packed: bytes, names: str) -> list[bytes | None]:
        """Return what the trainers of this batch packed; None for those that died."""
        what = f"the other trainers' {names or 'batch'} of step {here.step}"
        told = self._membership.join(self._check.record.tobytes() + packed, what)
        for trainer, data in zip(self._membership.among, told):
            if data is not None:
                self._check.compare(trainer, data[:RECORD_BYTES])
        return [None if data is None else data[RECORD_BYTES:] for data in told]
