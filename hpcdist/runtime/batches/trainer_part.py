"""A trainer's part of batches of one size, and facts about the Program that shares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcdist.base.errors import PlanError
from hpcdist.executor.control import Feed, Join
from hpcdist.graph.rows import How, OfRows
from hpcdist.runtime.batches.analysis import SharedProgram
from hpcdist.runtime.batches.distributed_auc import DistributedAuc
from hpcdist.runtime.batches.joined_fetch import JoinedFetch
from hpcdist.runtime.batches.scatter import COUNTED, Division, fed_weights


@dataclass(frozen=True)
class TrainerPart:
    """This trainer's part of batches of one size; ``told`` is fed beside its rows."""

    division: Division | None
    told: Mapping[str, np.ndarray]
    among: tuple[int, ...] = ()  # the trainers that share it
    why_whole: str = ""  # why it was not to be divided

    @property
    def total(self) -> int:
        """Rows of the batch."""
        assert self.division is not None
        return self.division.share.total

    def rows(self, feed: Feed, batched: frozenset[str]) -> dict[str, Any] | None:
        """Return this trainer's part of a batch of arrays; None if that has not so many rows."""
        assert self.division is not None
        share = self.division.share
        total, of_trainer = share.total, slice(share.begin, share.end)
        rows, batched_rows = dict(self.told), False
        for name, value in feed.items():
            if type(value) is not np.ndarray:
                return None
            if name in batched:
                if not value.ndim or len(value) != total:
                    return None
                batched_rows, value = True, value[of_trainer]
            rows[name] = value
        return rows if batched_rows else None


@dataclass
class SharedFacts:
    """A Program whose batches are shared, and what is known of it."""

    rows: SharedProgram
    areas: DistributedAuc
    number: int
    draws_rows: bool = False  # whether it has operators that draw for rows of the batch
    told_whole: bool = False  # whether the user knows that whole batches are computed
    parts: dict[object, TrainerPart] = field(default_factory=dict)  # by rows, trainers, why whole
    joined: dict[Sequence[str], JoinedFetch] = field(default_factory=dict)  # by names
    joins: dict[Sequence[str], Join] = field(default_factory=dict)
    last: TrainerPart | None = None  # of the last batch of arrays


def weights(rows: SharedProgram, weight: float, counted: bool) -> dict[str, np.ndarray]:
    """Return the fed weights by which this trainer's rows count."""
    variables = fed_weights(rows.weight_dtypes, weight)
    if rows.counts_areas:
        variables[COUNTED] = np.array([counted], np.float32)
    return variables


def expect_divided(rows: SharedProgram) -> None:
    """Refuse a Program that must have whole batches, where trainers feed rows of their own."""
    if rows.why_whole:
        raise PlanError(
            "trainers that feed only their rows can share a program only if its losses are means, "
            f"or sums, of what is computed row by row: {rows.why_whole}; feed whole batches to all "
            "trainers instead"
        )


def loss_weight(loss: OfRows, rows: Sequence[int], trainer: int) -> float:
    """Return the weight of this trainer's gradient: the mean over trainers is the batch's.

    ``rows``: how many of those that the loss is a mean over, or of the samples, trainers have.
    """
    if loss.how is How.SUM:
        return float(len(rows)) if rows[trainer] else 0.0
    return rows[trainer] * len(rows) / max(sum(rows), 1) if loss.how is How.MEAN else 1.0
