"""One Program on many trainers: each takes its rows of every batch, and results are joined. Pure.

The step of the job is the step that one process would make on the whole batch: with n_k of n
rows, trainer k's mean loss counts n_k T / n, so the servers' mean over T is the mean over n.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.division import equal_part
from hpcdist.base.errors import FeedError
from hpcdist.graph.block import Block
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.names import grad_name
from hpcdist.graph.op_role import ROLE_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program

# Fed to a shared Program for its losses of each type: this trainer's rows * trainers / all rows.
# A float64 loss whose weight were float32 would be that of one process to 1e-8 only.
WEIGHTS = {"float32": "@ROWS_WEIGHT@", "float64": "@ROWS_WEIGHT_64@"}
COUNTED = "@ROWS_COUNTED@"  # fed to one with `auc`: 0 if this trainer's rows are not to be counted


@dataclass(frozen=True)
class Share:
    """The rows ``begin:end`` of a batch of ``total`` that one trainer feeds."""

    begin: int
    end: int
    total: int
    weight: float  # rows * trainers / total; 0 for a trainer that feeds a row only to take part

    @property
    def counted(self) -> int:
        """Rows that count in a joined result."""
        return self.end - self.begin if self.weight else 0


def share_of(total: int, trainer: int, trainers: int) -> Share:
    """Cut a batch: rows k*n//T to (k+1)*n//T; where that is none, row 0 with weight 0."""
    begin, end = equal_part(total, trainer, trainers)
    if begin == end:
        return Share(0, 1, total, 0.0)
    return Share(begin, end, total, (end - begin) * trainers / total)


@dataclass(frozen=True)
class Division:
    """How one batch is divided over trainers."""

    share: Share  # of this trainer
    counts: Mapping[str, Sequence[int]]  # rows of each trainer: samples (""), of data variables
    why_whole: str = ""  # why every trainer has the whole batch, though only the first one's counts

    def mean_over_none(self) -> str:
        """Say which trainer would take a mean over no rows at all; empty if none does."""
        for name, counts in self.counts.items():
            without = [k for k, rows in enumerate(counts) if not rows and self.counts[""][k]]
            if without and any(counts):
                return (
                    f"the program takes a mean over the rows of {name!r}, but the samples of "
                    f"trainer {without[0]} have none"
                )
        return ""


@functools.lru_cache
def _shares(total: int, trainers: int) -> list[Share]:
    return [share_of(total, trainer, trainers) for trainer in range(trainers)]


@functools.lru_cache
def _samples(total: int, trainers: int) -> list[int]:
    return [share.counted for share in _shares(total, trainers)]


def cut_feed(
    feed: Mapping[str, Any],
    batched: frozenset[str],
    trainer: int,
    trainers: int,
    counted: Sequence[str] = (),
    alike: Sequence[tuple[str, str]] = (),
    why_whole: str = "",
) -> tuple[dict[str, Any], Division | None]:
    """Return this trainer's rows of every ``batched`` value (the rest whole), and the division.

    Of a LoDTensor, an outermost sequence counts as a row. The division is None if nothing that is
    fed has rows; it counts samples, and the rows of the variables ``counted``. For ``alike`` see
    `unlike`. A batch that cannot be divided, or is not to be (``why_whole``), every trainer keeps,
    and the first one's rows count. FeedError for an empty batch.
    """
    arrays = as_arrays(feed)
    sizes = _sizes(arrays, batched)
    if not sizes:
        return arrays, None
    total = next(iter(sizes.values()))
    if total == 0:
        raise FeedError("cannot share an empty batch over trainers")
    if len(set(sizes.values())) > 1:
        why_whole = why_whole or f"expected equal numbers of rows, got {sizes}"
    why_whole = why_whole or unlike(arrays, alike)
    if not why_whole:
        counts = {"": _samples(total, trainers)}
        shares = _shares(total, trainers)
        for name in counted:
            ends = _row_ends(arrays[name]) if name in arrays else np.arange(total + 1)
            counts[name] = [int(ends[s.end] - ends[s.begin]) if s.counted else 0 for s in shares]
        share = shares[trainer]
        division = Division(share, counts)
        why_whole = division.mean_over_none()
        if not why_whole:
            cut = {n: _part(a, share) if n in batched else a for n, a in arrays.items()}
            return cut, division
    rows = [total if k == 0 else 0 for k in range(trainers)]
    share = Share(0, total, total, float(trainers) if trainer == 0 else 0.0)
    return arrays, Division(share, dict.fromkeys(["", *counted], rows), why_whole)


def rows_of_arrays(feed: Mapping[str, Any], batched: frozenset[str]) -> int:
    """Return how many rows all arrays have that are ``batched``; 0 where `cut_feed` must look.

    Then rows of the same number are divided alike, and `as_arrays` has nothing to do.
    """
    rows = 0
    for name, value in feed.items():
        if type(value) is not np.ndarray:
            return 0
        if name in batched:
            if not value.ndim or (rows and len(value) != rows):
                return 0
            rows = len(value)
    return rows


def _row_ends(value: Any) -> np.ndarray:
    """Return how many rows the first i samples have, for i from 0 to all of them."""
    if not isinstance(value, LoDTensor) or value.sequences is None:
        return np.arange(len(value) + 1)
    ends, *inner = value.sequences.offsets
    for offsets in inner:
        ends = offsets[ends]
    return ends


def unlike(feed: Mapping[str, Any], alike: Sequence[tuple[str, str]]) -> str:
    """Say which of these pairs have not equally many rows of each sample ("": one)."""
    for one, other in alike:
        ends = _row_ends(feed[other])
        expected = _row_ends(feed[one]) if one else np.arange(len(ends))
        if not np.array_equal(expected, ends):
            lengths = f"as many as {one!r}: {np.diff(expected).tolist()}" if one else "one each"
            return (
                f"{other!r} has {np.diff(ends).tolist()} rows of its samples, expected {lengths}, "
                "because the program combines them row by row"
            )
    return ""


def as_arrays(feed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the feed as arrays and LoDTensors."""
    return {n: v if isinstance(v, LoDTensor) else np.asarray(v) for n, v in feed.items()}


def _part(value: Any, share: Share) -> Any:
    if isinstance(value, LoDTensor):
        return value.part(share.begin, share.end)
    return value[share.begin : share.end]


def row_counts(
    feed: Mapping[str, Any], batched: frozenset[str], names: Sequence[str] = ("",)
) -> list[int]:
    """Return how many rows of data variables ("": samples) are fed; 0 if nothing has rows."""
    arrays = as_arrays(feed)
    sizes = _sizes(arrays, batched)
    if len(set(sizes.values())) > 1:
        raise FeedError(
            f"cannot share a batch over trainers: expected equal numbers of rows, got {sizes}"
        )
    samples = next(iter(sizes.values()), 0)
    return [len(arrays[name]) if name in arrays else samples for name in names]


def share_among(counts: Sequence[int], trainer: int) -> Share:
    """Return the share of a trainer whose rows stand after those of the trainers before it."""
    begin, total = sum(counts[:trainer]), sum(counts)
    weight = counts[trainer] * len(counts) / total
    return Share(begin, begin + counts[trainer], total, weight)


def samples_of(arrays: Mapping[str, Any], batched: frozenset[str]) -> int:
    """Return how many samples are fed; 0 if nothing has rows."""
    return next(iter(_sizes(arrays, batched).values()), 0)


def _sizes(arrays: Mapping[str, Any], batched: frozenset[str]) -> dict[str, int]:
    """Return the numbers of rows of what has rows."""
    for name, array in arrays.items():
        if name in batched and not isinstance(array, LoDTensor) and not array.ndim:
            raise FeedError(f"feed {name!r}: expected one row per sample, got {array!r}")
    return {
        name: value.samples if isinstance(value, LoDTensor) else len(value)
        for name, value in arrays.items()
        if name in batched
    }


def weight_dtypes(program: Program) -> tuple[str, ...]:
    """Return the types of the weights that a shared Program is fed: those of its losses."""
    ops = program.global_block().ops
    found = {_weight_dtype(op) for op in ops if is_loss_gradient(op)}
    return tuple(sorted(found)) or ("float32",)


def _weight_dtype(op: Operator) -> str:
    """Return the type of the weight of a loss whose gradient ``op`` starts: at least float32."""
    return "float64" if op.attrs["dtype"] == "float64" else "float32"


def fed_weights(dtypes: Sequence[str], weight: float) -> dict[str, np.ndarray]:
    """Return the fed weights of a trainer for a Program with losses of these types."""
    return {WEIGHTS[dtype]: np.array([weight], dtype) for dtype in dtypes}


def weighted(program: Program) -> Program:
    """Return a copy whose loss gradient is multiplied by the fed weight of this trainer's rows."""
    new = program.clone()
    block = new.global_block()
    flags: dict[str, Any] = {"shape": (1,), "is_data": True, "stop_gradient": True}
    for dtype in weight_dtypes(program):
        block.create_var(WEIGHTS[dtype], dtype=dtype, **flags)
    ops: list[Operator] = []
    for op in block.ops:
        if is_loss_gradient(op):
            ops += _weighted_start(op, block)
            continue
        ops.append(op)
        if op.type == "auc":
            block.create_var(COUNTED, dtype="float32", **flags)
            op.inputs["Weight"] = [COUNTED]
    block.ops[:] = ops
    return new


def _weighted_start(op: Operator, block: Block) -> list[Operator]:
    """Return operators that start the gradient of a loss, (1,) or (), at the fed weight."""
    (out,), role = op.output("Out"), {ROLE_ATTR: op.attrs[ROLE_ATTR]}
    facts = {"scale": op.attrs["value"], "bias": 0.0, "bias_after_scale": True, **role}
    slots = {"X": [WEIGHTS[_weight_dtype(op)]]}, {"Out": [out]}
    starts = [Operator(block, "scale", *slots, facts)]
    if not op.attrs["shape"]:
        one = block.create_var(f"{out}@OF_ONE", shape=(1,), dtype=block.var(out).dtype)
        starts[0].outputs["Out"] = [one.name]
        # Without LOSS: what starts there is scaled, once.
        given = {"X": [one.name]}, {"Out": [out]}, {"shape": [], ROLE_ATTR: int(OpRole.BACKWARD)}
        starts.append(Operator(block, "reshape2", *given))
    return starts


def is_loss_gradient(op: Operator) -> bool:
    """Return whether an operator starts the backward pass: it fills the loss's gradient with 1."""
    return op.type == "fill_constant" and op.role == OpRole.BACKWARD | OpRole.LOSS


def losses(program: Program) -> list[str]:
    """Return the names of the losses that a Program minimizes."""
    ops = program.global_block().ops
    starts = [op.output("Out")[0] for op in ops if is_loss_gradient(op)]
    return [name.removesuffix(grad_name("")) for name in starts]


def batched_names(program: Program) -> frozenset[str]:
    """Return the names of data variables whose first dimension is the batch."""
    return frozenset(
        v.name for v in program.global_block().vars.values() if v.is_data and v.shape[:1] == (-1,)
    )
