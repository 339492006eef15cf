"""Operators that change the grouping of rows into sequences: repeat, concatenate, reverse,
reshape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hpcdist.base.errors import FeedError, GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.names import grad_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.registry import GradOp, Meta, define
from hpcdist.graph.rows import Applied, How, MixesRows, OfRows, common_rows
from hpcdist.graph.sequence_rows import by_row_of_sequence, by_sequence, expanded, spread
from hpcdist.graph.values import Value
from hpcdist.ops.common import Wanted, define_with_grad, grad_by, in_sequence
from hpcdist.ops.loss.labels import take
from hpcdist.ops.sequence.pool_softmax_conv import like_first, loop, matrix, rowwise, sequences_of
from hpcdist.ops.tensor.tensor_array import in_loops
from hpcdist.ops.types import ArrayModule, Attrs, Call, Lods, Operands


def _rows_of(lod: Lod, sequences: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the rows of these sequences, one after the other."""
    starts, lengths = lod.last[:-1][sequences], lod.lengths[sequences]
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + within


def gather(xp: ArrayModule, source, rows: np.ndarray, out) -> Call:
    """Return a call that writes the rows of ``source`` at an index into ``out``."""
    if not len(rows):
        return _nothing
    return take(xp, matrix(source), xp.asarray(rows), matrix(out), axis=0)


def _nothing() -> None:
    pass


def scatter(xp: ArrayModule, source, rows: np.ndarray, out) -> Call:
    """Return a call that writes the rows of ``source`` to places of ``out``, each one once."""
    return partial(_write, matrix(out), xp.asarray(rows), matrix(source))


def _write(out, rows, values) -> None:
    out[rows] = values


# -- expand ----------------------------------------------------------------------------------------
_REF = {"ref_level": -1}


def _repeats(y: Lod, ref_level: int) -> np.ndarray:
    level = ref_level + y.level if ref_level < 0 else ref_level
    if not 0 <= level < y.level:
        raise GraphError(f"sequence_expand: ref_level {ref_level} of Y, which has {y.level} levels")
    return np.diff(y.offsets[level]) if y.known else np.empty(0, np.int64)


def _expand_infer(x: Meta, y: Meta, ref_level: int) -> Meta:
    lod = sequences_of(y, "sequence_expand", "Y")
    repeats = _repeats(lod, ref_level)
    if not lod.known:
        return rowwise(x, x.lod and Lod(1), -1)
    items = x.shape[0] if x.lod is None else x.lod.sequences
    if items != len(repeats):
        raise GraphError(
            f"sequence_expand: X has {items} rows or sequences, Y repeats {len(repeats)} of them"
        )
    if x.lod is None:
        return rowwise(x, None, int(repeats.sum()))
    out = Lod.of_lengths([np.repeat(x.lod.lengths, repeats)])
    return rowwise(x, out, out.rows)


def _expanded(rows: int, lods: Lods, ref_level: int) -> np.ndarray:
    x, y = lods
    items = np.repeat(np.arange(rows if x is None else x.sequences), _repeats(y, ref_level))
    return items if x is None else _rows_of(x, items)


def _expand_bind(xp: ArrayModule, x, y, out, ref_level: int, lods: Lods) -> Call:
    return gather(xp, x, _expanded(len(x), lods, ref_level), out)


def _expand_grad_bind(xp: ArrayModule, x, y, dout, dx, ref_level: int, lods: Lods) -> Call:
    return loop(xp, "add_rows", matrix(dout), _expanded(len(x), lods, ref_level), matrix(dx))


def _expand_as_infer(x: Meta, y: Meta) -> Meta:
    lod = sequences_of(y, "sequence_expand_as", "Y")
    if lod.known and lod.sequences != x.shape[0]:
        raise GraphError(
            f"sequence_expand_as: X has {x.shape[0]} rows, Y has {lod.sequences} sequences"
        )
    return rowwise(x, lod, lod.rows)


def owners(lod: Lod) -> np.ndarray:
    """Return the sequence that each row belongs to."""
    return np.repeat(np.arange(lod.sequences), lod.lengths)


_EXPAND_GRAD = "X, Y, Out@GRAD -> X@GRAD"
define_with_grad(
    "sequence_expand",
    "X, Y -> Out",
    _EXPAND_GRAD,
    rows=expanded,
    attrs=_REF,
    infer=_expand_infer,
    bind=_expand_bind,
    shape_only=("Y",),
    lods=("X", "Y"),
    grad_infer=like_first,
    grad_bind=_expand_grad_bind,
    grad_shape_only=("X", "Y"),
)
define_with_grad(
    "sequence_expand_as",
    "X, Y -> Out",
    _EXPAND_GRAD,
    rows=spread,
    infer=_expand_as_infer,
    bind=lambda xp, x, y, out, lods: gather(xp, x, owners(lods[0]), out),
    shape_only=("Y",),
    lods=("Y",),
    grad_infer=like_first,
    grad_bind=lambda xp, x, y, dout, dx, lods: loop(
        xp, "add_rows", matrix(dout), owners(lods[0]), matrix(dx)
    ),
    grad_shape_only=("X", "Y"),
)


# -- concat ----------------------------------------------------------------------------------------
def _concat_infer(xs: Sequence[Meta]) -> Meta:
    lods = [sequences_of(x, "sequence_concat", "X") for x in xs]
    if len({x.shape[1:] for x in xs}) > 1 or len({lod.sequences for lod in lods}) > 1:
        raise GraphError(
            "sequence_concat: expected rows of one shape and equal numbers of sequences, got "
            f"{[x.shape for x in xs]} in {[lod.sequences for lod in lods]} sequences"
        )
    if not lods[0].known:
        return rowwise(xs[0], Lod(1), -1)
    out = Lod.of_lengths([np.sum([lod.lengths for lod in lods], axis=0)])
    return rowwise(xs[0], out, out.rows)


def _places(lods: Sequence[Lod]) -> list[np.ndarray]:
    """Return where each operand's rows go: sequence by sequence, operand after operand."""
    lengths = np.array([lod.lengths for lod in lods])
    starts = np.cumsum(lengths.T.reshape(-1)) - lengths.T.reshape(-1)
    return [
        np.repeat(begin - lod.last[:-1], lod.lengths) + np.arange(lod.rows)
        for begin, lod in zip(starts.reshape(lengths.T.shape).T, lods)
    ]


def _concat_bind(xp: ArrayModule, xs: Operands, out, lods: Lods) -> Call:
    return in_sequence(*(scatter(xp, x, at, out) for x, at in zip(xs, _places(lods[0]))))


def _concat_grad_bind(xp: ArrayModule, xs, dout, dxs: Operands, lods: Lods) -> Call:
    pairs = zip(dxs, _places(lods[0]))
    return in_sequence(*(gather(xp, dout, at, dx) for dx, at in pairs if dx is not None))


define_with_grad(
    "sequence_concat",
    "X* -> Out",
    "X*, Out@GRAD -> X@GRAD*",
    rows=by_sequence,
    infer=_concat_infer,
    bind=_concat_bind,
    lods=("X",),
    grad_infer=lambda xs, dout: ([rowwise(x, x.lod) for x in xs],),
    grad_bind=_concat_grad_bind,
    grad_shape_only=("X",),
)


# -- reverse ---------------------------------------------------------------------------------------
def _turned(op: Operator, wanted: Wanted) -> list[GradOp]:
    (x,), (y,) = op.input("X"), op.output("Y")
    turned = {"X": [grad_name(y)]}, {"Y": [grad_name(x)]}
    return [GradOp("sequence_reverse", *turned, dict(op.attrs))] if wanted(x) else []


def _reverse_bind(xp: ArrayModule, x, out, lods: Lods) -> Call:
    (lod,) = lods
    rows = np.repeat(lod.last[:-1] + lod.last[1:] - 1, lod.lengths) - np.arange(lod.rows)
    return gather(xp, x, rows, out)


define(
    "sequence_reverse",
    "X -> Y",
    rows=by_row_of_sequence,
    infer=lambda x: rowwise(x, sequences_of(x, "sequence_reverse", "X")),
    bind=_reverse_bind,
    grad=_turned,
    lods=("X",),
)


# -- reshape, reset --------------------------------------------------------------------------------
def _reshape_infer(x: Meta, new_dim: int) -> Meta:
    lod = sequences_of(x, "sequence_reshape", "X")
    if len(x.shape) != 2 or new_dim < 1:
        raise GraphError(f"sequence_reshape: X {x.shape} cannot become rows of {new_dim} numbers")
    if not lod.known:
        return Meta((-1, new_dim), x.dtype, lod=Lod(1))
    sizes = lod.last * x.shape[1]
    if (sizes % new_dim).any():
        raise GraphError(
            f"sequence_reshape: sequences of lengths {lod.lengths.tolist()} with {x.shape[1]} "
            f"numbers per row cannot become rows of {new_dim} numbers"
        )
    out = Lod(1, (sizes // new_dim,))
    return Meta((out.rows, new_dim), x.dtype, lod=out)


def _copy(xp: ArrayModule, x, *rest, **_) -> Call:
    """Copy an operand, or a gradient, into the other shape; a view of it costs nothing."""
    target = rest[-1]
    return partial(xp.copyto, target, x.reshape(target.shape))


define_with_grad(
    "sequence_reshape",
    "X -> Out",
    "X, Out@GRAD -> X@GRAD",
    rows=by_sequence,
    attrs={"new_dim": 1},
    infer=_reshape_infer,
    bind=_copy,
    alias={"Out": "X"},
    lods=("X",),
    grad_infer=like_first,
    grad_bind=lambda xp, x, dout, dx, **_: _copy(xp, dout, dx),
    grad_alias={"X@GRAD": "Out@GRAD"},
    grad_shape_only=("X",),
)


def _reset_infer(x: Meta, y: Meta | None, target_lod: Sequence[int], append: bool) -> Meta:
    if target_lod and append and x.lod is not None:
        lod = Lod(x.lod.level + 1)
        if x.lod.known:
            lod = Lod.of_offsets([*x.lod.offsets, list(target_lod)])
    elif target_lod:
        lod = Lod.of_offsets([list(target_lod)])
    else:
        if y is None:
            raise GraphError("lod_reset: expected y or target_lod")
        lod = sequences_of(y, "lod_reset", "Y")
    if lod.known and x.shape[0] not in (-1, lod.rows):
        raise GraphError(f"lod_reset: X has {x.shape[0]} rows, the sequences have {lod.rows}")
    return rowwise(x, lod)


def _reset_rows(op: Applied) -> OfRows:
    """The rows of X get the sequences of Y, where trainers have the same rows of both."""
    if op.attrs["target_lod"]:
        raise MixesRows("target_lod is that of the whole batch")
    return common_rows(op, [*op.inputs["Y"], *op.inputs["X"]], {How.RAGGED})


_RESET_GRAD = "X, Out@GRAD -> X@GRAD"
_TARGET: Attrs = {"target_lod": (), "append": False}
define(
    "lod_reset",
    "X, Y? -> Out",
    rows=_reset_rows,
    attrs=_TARGET,
    infer=_reset_infer,
    bind=lambda xp, x, y, out, **_: _copy(xp, x, out),
    grad=grad_by("lod_reset_grad", _RESET_GRAD),
    alias={"Out": "X"},
    shape_only=("Y",),
    lods=("X", "Y"),
)


def _reset_by_values(x: Value, y: Value) -> Value:
    lod = Lod.of_offsets([y.array.reshape(-1)])
    if lod.rows != len(x.array):
        raise FeedError(f"lod_reset: X has {len(x.array)} rows, the sequences have {lod.rows}")
    return Value(x.array, lod)


define(
    "lod_reset_by_values",
    "X, Y -> Out",
    rows=in_loops,
    infer=lambda x, y: rowwise(x, Lod(1)),
    values=_reset_by_values,
    grad=grad_by("lod_reset_grad", _RESET_GRAD),
)
define(
    "lod_reset_grad",
    _RESET_GRAD,
    attrs=_TARGET,
    infer=like_first,
    bind=lambda xp, x, dout, dx, **_: _copy(xp, dout, dx),
    alias={"X@GRAD": "Out@GRAD"},
    shape_only=("X",),
    lods=("X",),
)


# -- enumerate -------------------------------------------------------------------------------------
def _enumerate_infer(x: Meta, win_size: int, pad_value: int) -> Meta:
    lod = sequences_of(x, "sequence_enumerate", "X")
    return Meta((x.shape[0], win_size), x.dtype, lod=lod)


def _enumerate_bind(xp: ArrayModule, x, out, win_size: int, pad_value: int, lods: Lods) -> Call:
    (lod,) = lods
    rows = np.arange(lod.rows)[:, None] + np.arange(win_size)
    beyond = rows >= np.repeat(lod.last[1:], lod.lengths)[:, None]
    index, pads = xp.asarray(np.where(beyond, 0, rows)), xp.asarray(np.flatnonzero(beyond))

    def run() -> None:
        if len(x):
            out[...] = xp.take(x.reshape(-1), index)
            out.reshape(-1)[pads] = pad_value

    return run


define(
    "sequence_enumerate",
    "X -> Out",
    rows=by_row_of_sequence,
    attrs={"win_size": 1, "pad_value": 0},
    ranges={"win_size": "at least 1"},
    infer=_enumerate_infer,
    bind=_enumerate_bind,
    lods=("X",),
)
