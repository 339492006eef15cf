"""How values of trainers that share a batch become the value of the whole batch. Pure.

A Program is read once: what is computed row by row stays rows, a mean over rows stays a mean under
what is linear, and so on. What fits none of these cannot be put together from the trainers' parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np

from hpcdist.errors import FeedError, PlanError
from hpcdist.graph.block import Block
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.graph.roles import Role
from hpcdist.runtime.sharing import Share, batched_names, losses, share_of


class How(Enum):
    """What a value is of the rows of a batch."""

    SAME = "independent of the batch"
    ROWS = "rows"
    MEAN = "a mean over the rows"
    SUM = "a sum over the rows"
    MAX = "a maximum over the rows"
    MIN = "a minimum over the rows"
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

    ``batched`` are the data variables whose rows are shared.
    """
    block = program.global_block()
    how = dict.fromkeys(batched, How.ROWS)
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
    if len(moving) > 1:
        return How.LOCAL
    (kind,) = moving
    var = block.find_var(name)
    in_rows = var is not None and var.shape[:1] == (-1,)
    if kind is not How.ROWS:
        return _of_whole(op, kind, How.SAME in kinds, how)
    if op.type == "accuracy":
        return _COUNTS[slot]
    if op.type in _REDUCTIONS and not in_rows:
        return _REDUCTIONS[op.type]
    return How.ROWS if in_rows and not _mixes_rows(op, kinds) else How.LOCAL


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
def pack(values: Sequence[np.ndarray], hows: Sequence[How], share: Share) -> bytes:
    """Return what a trainer tells the others of its values: nothing if its rows do not count."""
    if not share.counted:
        return b""
    return b"".join(v.tobytes() for v, how in zip(values, hows) if how is not How.SAME)


def unpack(
    packed: Sequence[bytes], values: Sequence[np.ndarray], hows: Sequence[How], share: Share
) -> list[np.ndarray]:
    """Return the values of the whole batch from what all trainers packed; ``values`` are its own.

    Everything is put together in trainer order, so all trainers get the same bits.
    """
    trainers = len(packed)
    shares = [share_of(share.total, k, trainers) for k in range(trainers)]
    starts = [0] * trainers
    joined = []
    for value, how in zip(values, hows):
        if how is How.SAME:
            joined.append(value)
            continue
        parts, counts = [], []
        for k, other in enumerate(shares):
            if not other.counted:
                continue
            shape = value.shape
            if how is How.ROWS:
                per_row = len(value) // (share.end - share.begin)
                shape = (per_row * other.counted, *shape[1:])
            part = np.frombuffer(packed[k], value.dtype, math.prod(shape), starts[k])
            starts[k] += part.nbytes
            parts.append(part.reshape(shape))
            counts.append(other.counted)
        joined.append(_joined(parts, counts, how).astype(value.dtype, copy=False))
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
