"""A batch cut into the micro-batches of all replicas: their feeds, and joined fetches. Pure.

With P micro-batches in all, one with n of N rows counts n / N of the loss, so that the gradients
added over all of them are those of one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.errors import FeedError, PlanError
from hpcdist.executor.analysis import concrete_metas
from hpcdist.executor.fed import fed_metas
from hpcdist.graph.program import Program
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import SAME, How, OfRows
from hpcdist.runtime.batches.analysis import SharedProgram
from hpcdist.runtime.batches.gather import pack, unpack
from hpcdist.runtime.batches.scatter import Division, cut_feed, fed_weights
from hpcdist.runtime.batches.trainer_part import loss_weight
from hpcdist.runtime.batches.whole_batch import ROWS, of_own_rows, rows_here
from hpcdist.transpiler.pipeline_cut import Phase
from hpcdist.transpiler.pipeline_plan import PipelinePlan


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of one replica: its feed, and the division that it belongs to."""

    feed: Mapping[str, Any]
    division: Division | None


class MicroBatches:
    """How batches of one Program are cut into ``count`` micro-batches."""

    def __init__(self, program: Program, count: int) -> None:
        self.count = count
        self.rows = SharedProgram(program, count)
        if self.rows.why_whole:
            raise PlanError(
                f"pipeline: batches cannot be divided into {count} micro-batches: "
                f"{self.rows.why_whole}; with one replica and one micro-batch "
                "(num_microbatches=1) a step is that of one process, without a speedup"
            )
        self.program = of_own_rows(program, self.rows)
        self._draws = ROWS in self.program.global_block().vars

    def cut(self, feed: Mapping[str, np.ndarray]) -> list[MicroBatch]:
        """Return all micro-batches of a batch. FeedError if it cannot be divided by rows."""
        return [self._micro_batch(feed, number) for number in range(self.count)]

    def _micro_batch(self, feed: Mapping[str, np.ndarray], number: int) -> MicroBatch:
        rows = self.rows
        facts = rows.batched, number, self.count, rows.counted, rows.alike_in(feed)
        cut, division = cut_feed(feed, *facts)
        weight = 1.0
        if division is not None:
            if division.why_whole and self.count > 1:
                raise FeedError(
                    f"pipeline: cannot divide a batch into {self.count} micro-batches: "
                    f"{division.why_whole}"
                )
            loss = rows.loss
            weight = loss_weight(loss, division.counts[loss.sequences], number)
            weight = weight if division.share.weight else 0.0
        variables = fed_weights(rows.weight_dtypes, weight / self.count)
        if self._draws:
            variables[ROWS] = rows_here(None if division is None else division.share)
        return MicroBatch({**cut, **variables}, division)

    def metas(self, plan: PipelinePlan, feed: Mapping[str, Any]) -> dict[str, Meta]:
        """Return the shapes of all values of a micro-batch."""
        block = self.program.global_block()
        persistable = {name: var.meta for name, var in block.vars.items() if var.persistable}
        ops = [op for op, (phase, _) in zip(block.ops, plan.ops) if phase is not Phase.UPDATE]
        return concrete_metas(
            block, ops, {**persistable, **fed_metas(self.program, dict(feed), {})}
        )

    def of_rows(self, name: str) -> OfRows:
        """Return how micro-batches' values of ``name`` are joined; FeedError if they cannot be."""
        if self.count == 1:
            return SAME
        if why := self.rows.why_whole_for([name]):
            raise FeedError(
                f"cannot fetch {name!r} from micro-batches: {why}; fetch what it is computed from"
            )
        return self.rows.of_rows(name)


def packed(value: np.ndarray, of: OfRows, micro_batch: MicroBatch) -> bytes:
    """Return a stage's message about its value in one micro-batch."""
    if of.how is How.SAME or micro_batch.division is None:
        return np.ascontiguousarray(value).tobytes()
    return pack([value], [of], micro_batch.division.share)


def joined(
    values: Sequence[bytes], of: OfRows, micro_batches: Sequence[MicroBatch], meta: Meta
) -> np.ndarray:
    """Return a value of the whole batch from what `packed` gave of all ``micro_batches``, in order.

    ``meta`` is that of the first one's.
    """
    division = micro_batches[0].division
    if of.how is How.SAME or division is None:
        return np.frombuffer(values[0], meta.dtype).reshape(meta.shape).copy()
    like = np.empty(meta.shape, meta.dtype)
    (value,) = unpack(values, [like], [of], division)
    return np.asarray(value)


def unpacked(data: bytes, count: int) -> list[list[bytes]]:
    """Return the ``count`` values in a rank's message, each in one piece or more."""
    counts = np.frombuffer(data, np.int64, count).tolist()
    sizes = iter(np.frombuffer(data, np.int64, sum(counts), 8 * count).tolist())
    begin = 8 * (count + sum(counts))
    values: list[list[bytes]] = []
    for length in counts:
        values.append([])
        for _ in range(length):
            size = next(sizes)
            values[-1].append(data[begin : begin + size])
            begin += size
    return values
