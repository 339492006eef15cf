"""How values of trainers that share a batch become the value of the whole batch. Pure.

A Program is read once: what is computed row by row stays rows, a mean over rows stays a mean under
what is linear, and so on. What fits none of these cannot be put together from the trainers' parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from hpcdist.errors import FeedError, PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.lod import Lod
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.registry import lookup
from hpcdist.graph.roles import Role
from hpcdist.lod_tensor import LoDTensor, concatenated
from hpcdist.runtime.sharing import Share, batched_names, losses, share_of

Value = np.ndarray | LoDTensor


class How(Enum):
    """What a value is of the rows of a batch."""

    SAME = "independent of the batch"
    ROWS = "rows"
    RAGGED = "rows of sequences"
    MEAN = "a mean over the rows"
    SUM = "a sum over the rows"
    MAX = "a maximum over the rows"
    MIN = "a minimum over the rows"
    COUNTS = "counts that each trainer keeps"
    LOCAL = "none of these"


_REDUCTIONS = {
    "mean": How.MEAN,
    "reduce_mean": How.MEAN,
    "reduce_sum": How.SUM,
    "reduce_max": How.MAX,
    "reduce_min": How.MIN,
}
_COUNTS = {"Accuracy": How.MEAN, "Correct": How.SUM, "Total": How.SUM}  # slots of `accuracy`
_MOVES = {"assign", "reshape2", "squeeze2", "unsqueeze2", "flatten2", "transpose2", "slice"}
_MOVES |= {"concat", "split", "stack"}
_LINEAR = {How.MEAN, How.SUM}
_ACROSS = {"clip_by_norm", "mul"}  # of rows alone: one norm of them all; rows times rows


def how_values_join(program: Program, batched: frozenset[str]) -> dict[str, How]:
    """Tell for every value that block 0 computes how trainers' parts of it are joined.

    ``batched`` are the data variables whose rows, or sequences of rows, are shared.
    """
    block = program.global_block()
    how = {n: How.RAGGED if block.var(n).lod_level else How.ROWS for n in sorted(batched)}
    for op in block.ops:
        backward = bool(op.role & Role.BACKWARD)
        for slot, names in op.outputs.items():
            for name in names:
                found = How.LOCAL if backward else _of_output(block, op, slot, name, how)
                how[name] = found
    return how


def _of_output(block: Block, op: Operator, slot: str, name: str, how: Mapping[str, How]) -> How:
    kinds = {how.get(n, How.SAME) for n in op.input_arg_names}
    moving = kinds - {How.SAME}
    if not moving:
        return How.SAME
    var = block.find_var(name)
    in_rows = var is not None and var.shape[:1] == (-1,)
    ragged = How.RAGGED in moving or bool(lookup(op.type).measures)
    if ragged and moving <= {How.RAGGED, How.ROWS}:
        return _of_sequences(op, kinds, in_rows, 0 if var is None else var.lod_level)
    if len(moving) > 1:
        return How.LOCAL
    (kind,) = moving
    if kind is not How.ROWS:
        return _of_whole(op, kind, How.SAME in kinds, how)
    if op.type == "accuracy":
        return _COUNTS[slot]
    if op.type in _REDUCTIONS and not in_rows:
        return _REDUCTIONS[op.type]
    return How.ROWS if in_rows and not _mixes_rows(op, kinds) else How.LOCAL


def _of_sequences(op: Operator, kinds: set[How], in_rows: bool, lod_level: int) -> How:
    """Follow rows of sequences: operators on sequences keep each sample's for itself."""
    if not in_rows:
        found = _REDUCTIONS.get(op.type, How.LOCAL)
        return How.LOCAL if found is How.MEAN else found  # of as many rows as a trainer has
    if op.type in ("sequence_expand", "sequence_expand_as"):
        return How.RAGGED
    definition = lookup(op.type)
    if definition.lods or definition.measures:
        return How.RAGGED if lod_level else How.ROWS
    if How.ROWS in kinds or _mixes_rows(op, kinds):
        return How.LOCAL
    return How.RAGGED if lod_level else How.LOCAL


def _mixes_rows(op: Operator, kinds: set[How]) -> bool:
    """Tell whether a row of the result depends on several rows, or stands elsewhere than they."""
    attrs = op.attrs
    if op.type.startswith("elementwise_"):
        return False
    if op.type == "matmul":
        inputs = (*op.input("X"), *op.input("Y"))
        return How.SAME not in kinds and any(len(_shape(op, n)) < 3 for n in inputs)
    if op.type == "gather":
        return How.SAME not in kinds
    return (
        attrs.get("axis") == 0
        or 0 in attrs.get("axes", ())
        or attrs.get("expand_times", (1,))[0] != 1
        or bool(attrs.get("normalize"))
        or (op.type in _ACROSS and How.SAME not in kinds)
    )


def _shape(op: Operator, name: str) -> tuple[int, ...]:
    var = op.block.find_var(name)
    return () if var is None else var.shape


def _of_whole(op: Operator, kind: How, with_same: bool, how: Mapping[str, How]) -> How:
    """Follow a mean, sum, maximum or minimum through one more operator."""
    if op.type in _MOVES and not with_same:
        return kind
    if kind not in _LINEAR:
        return How.LOCAL
    shifts = with_same or bool(op.attrs.get("bias"))  # adds what is not summed over trainers
    if op.type in ("scale", "sum", "elementwise_add", "elementwise_sub"):
        return How.LOCAL if shifts and kind is How.SUM else kind
    if op.type in ("mean", "reduce_mean", "reduce_sum"):
        return kind
    divisor = op.input("Y") if op.type == "elementwise_div" else []
    if op.type in ("elementwise_mul", "elementwise_div") and with_same:
        return How.LOCAL if any(how.get(n, How.SAME) is kind for n in divisor) else kind
    return How.LOCAL


class SharedProgram:
    """A Program whose batches trainers share: what is cut, and what its values are of the rows.

    Raises PlanError if several trainers cannot make the step that one process would make.
    """

    def __init__(self, program: Program, trainers: int) -> None:
        self._program = program
        self.batched = batched_names(program)
        self._how = how_values_join(program, self.batched)
        kinds = {name: self._how.get(name, How.SAME) for name in losses(program)}
        whole = set(kinds.values())
        if trainers > 1 and not (len(whole) == 1 and whole <= {How.MEAN, How.SUM, How.SAME}):
            found = ", ".join(f"{name!r} is {kind.value}" for name, kind in kinds.items())
            raise PlanError(
                "trainers can share the batches of a program only if its losses are means, or "
                f"sums, of what is computed row by row: {found}; change the loss, or call "
                "DistributeTranspiler.transpile in the script and cut the data there"
            )
        self.loss = whole.pop() if len(whole) == 1 else How.MEAN

    def how_joined(self, name: str) -> How:
        """Tell how trainers' values of a variable are joined; FeedError if they cannot be."""
        var = self._program.global_block().vars.get(name)
        how = How.SAME if var is None or var.persistable else self._how.get(name, How.SAME)
        if how is How.ROWS and var is not None and -1 in var.shape[1:]:
            raise FeedError(
                f"cannot fetch {name!r} of shape {list(var.shape)} while trainers share the "
                "batches: each pads its sequences to its own longest one; give sequence_pad, or "
                "sequence_mask, a maxlen"
            )
        if how is How.LOCAL:
            raise FeedError(
                f"cannot fetch {name!r} while trainers share the batches: it is neither computed "
                "row by row, nor a mean, sum, maximum or minimum of such values; fetch what it "
                "is computed from"
            )
        return how


def loss_weight(loss: How, share: Share, trainers: int) -> float:
    """Return what this trainer's gradient counts, so that the mean over trainers is the batch's."""
    if loss is How.SUM:
        return float(trainers) if share.counted else 0.0
    return share.weight if loss is How.MEAN else 1.0


# -- joining -------------------------------------------------------------------------------------
def pack(values: Sequence[Value], hows: Sequence[How], share: Share) -> bytes:
    """Return what a trainer tells the others of its values: if its rows do not count, only what
    it keeps from other batches."""
    told = {How.COUNTS} if not share.counted else set(How) - {How.SAME}
    return b"".join(_packed(v, how) for v, how in zip(values, hows) if how in told)


def _packed(value: Value, how: How) -> bytes:
    """Numbers of rows, and lengths of sequences level by level, stand before ragged rows."""
    array = np.asarray(value)
    if how is not How.RAGGED:
        return array.tobytes()
    levels = value.recursive_sequence_lengths() if isinstance(value, LoDTensor) else []
    facts = [len(array), *itertools.chain(*([len(level), *level] for level in levels))]
    return np.array(facts, np.int64).tobytes() + array.tobytes()


class _Reader:
    """Reads what one trainer packed."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._start = 0

    def read(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return the next array."""
        array = np.frombuffer(self._packed, dtype, math.prod(shape), self._start)
        self._start += array.nbytes
        return array.reshape(shape)

    def read_ragged(self, like: Value) -> LoDTensor:
        """Return the next rows of sequences, with as many levels as this trainer's own."""
        (rows,) = self.read([1], np.int64)
        levels = len(like.lod()) if isinstance(like, LoDTensor) else 0
        lengths = [self.read([int(self.read([1], np.int64)[0])], np.int64) for _ in range(levels)]
        own = np.asarray(like)
        array = self.read([rows, *own.shape[1:]], own.dtype)
        return LoDTensor(array, Lod.of_lengths(lengths) if levels else None)


def unpack(
    packed: Sequence[bytes | None], values: Sequence[Value], hows: Sequence[How], share: Share
) -> list[Value]:
    """Return the values of the whole batch from what all trainers packed; ``values`` are its own.

    Everything is put together in trainer order, so all trainers get the same bits. The rows of a
    trainer that has died before it gave its values (None) are left out.
    """
    trainers = len(packed)
    shares = [share_of(share.total, k, trainers) for k in range(trainers)]
    living = [(_Reader(data), other) for data, other in zip(packed, shares) if data is not None]
    readers = [(reader, other) for reader, other in living if other.counted]
    if not readers:
        return list(values)
    counts = [other.counted for _, other in readers]
    joined: list[Value] = []
    for value, how in zip(values, hows):
        if how is How.SAME:
            joined.append(value)
            continue
        if how is How.RAGGED:
            joined.append(concatenated([reader.read_ragged(value) for reader, _ in readers]))
            continue
        own = np.asarray(value)
        if how is How.COUNTS:
            joined.append(np.sum([r.read(own.shape, own.dtype) for r, _ in living], axis=0))
            continue
        parts = []
        for reader, other in readers:
            shape = own.shape
            if how is How.ROWS:
                per_row = len(own) // (share.end - share.begin)
                shape = (per_row * other.counted, *shape[1:])
            parts.append(reader.read(shape, own.dtype))
        joined.append(_joined(parts, counts, how).astype(own.dtype, copy=False))
    return joined


def _joined(parts: Sequence[np.ndarray], counts: Sequence[int], how: How) -> np.ndarray:
    if how is How.ROWS:
        return np.concatenate(parts)
    if how is How.MAX:
        return np.max(parts, axis=0)
    if how is How.MIN:
        return np.min(parts, axis=0)
    wide = np.stack(parts).astype("float64" if parts[0].dtype.kind == "f" else parts[0].dtype)
    if how is How.SUM:
        return wide.sum(axis=0)
    return np.average(wide, axis=0, weights=counts)
