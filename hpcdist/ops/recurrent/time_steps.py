"""Sequences in steps: all first rows side by side, then all second ones, and so on.

A recurrent layer multiplies a whole step by its weights at once. Sequences are sorted, the longest
first, so that those which still have rows are always the first ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.graph.lod import Lod
from hpcdist.graph.registry import Meta
from hpcdist.graph.rows import Applied, How, MixesRows, OfRows
from hpcdist.graph.sequence_rows import expect_ragged
from hpcdist.ops.common import fits
from hpcdist.ops.scratch import scratch
from hpcdist.ops.sequence.pool_softmax_conv import rowwise
from hpcdist.ops.types import Array

IDENTITY, SIGMOID, TANH, RELU = range(4)  # as the attributes of Fluid's gru_unit count them
_NAMES = ("identity", "sigmoid", "tanh", "relu")


def kind_of(name: str, op_type: str) -> int:
    """Return the number of an activation; GraphError if recurrent layers do not have it."""
    if name not in _NAMES:
        raise GraphError(f"{op_type}: an activation must be one of {_NAMES}, got {name!r}")
    return _NAMES.index(name)


def rows_of_steps(*results: str, of: str = "Input") -> Any:
    """Treatment of a recurrent operator: ``results`` have the rows of the slot ``of``.

    Initial states have one row for each sequence; the others are by step, so nothing to be joined.
    """

    def treat(op: Applied) -> dict[str, OfRows]:
        (x,) = op.inputs[of]
        expect_ragged(x)
        for slot, operands in op.inputs.items():
            for operand in operands:
                first = slot in ("H0", "C0")
                if first and (operand.of != OfRows(How.ROWS) or x.lod_level > 1):
                    raise MixesRows(f"{operand.name!r} is {operand.of.how.value}")
                if not first and slot != of and operand.of.how is not How.SAME:
                    raise MixesRows(f"{operand.name!r} depends on the batch")
        return dict.fromkeys(results, x.of)

    return treat


@dataclass(frozen=True)
class Steps:
    """The order in which rows are computed.

    ``order``: sequences, the longest first. Step t has the places starts[t]:starts[t + 1]; place i
    is row rows[i]. Before the places lie the initial states, one for each sequence: what comes
    before place i is befores[i] of both together.
    """

    order: Array
    starts: Array
    rows: Array
    befores: Array

    @staticmethod
    def of(lod: Lod, backwards: bool) -> Steps:
        """Put the rows of sequences in steps, from the last row of each if ``backwards``."""
        lengths = lod.lengths
        order = np.argsort(-lengths, kind="stable")
        longest = int(lengths.max(initial=0))
        step, turn = np.nonzero(lengths[order] > np.arange(longest)[:, None])
        starts = np.searchsorted(step, np.arange(longest + 1))
        if backwards:
            rows = lod.last[1:][order][turn] - 1 - step
        else:
            rows = lod.last[:-1][order][turn] + step
        befores = np.where(step == 0, turn, len(order) + starts[step - 1] + turn)
        return Steps(order, starts, rows, befores)

    @staticmethod
    def single(rows: int) -> Steps:
        """One step, of every row."""
        index = np.arange(rows)
        return Steps(index, np.array([0, rows]), index, index)


def by_place(purpose: str, steps: Steps, first: Array, values: Array, width: int, dtype) -> Array:
    """Return scratch memory for values by place, filled if ``values`` by row are given.

    Initial states, or 0, stand before them.
    """
    count = len(steps.order)
    placed = scratch(f"recurrent {purpose}", (count + len(steps.rows), width), dtype)
    if first is None:
        placed[:count] = 0
    else:
        np.take(first, steps.order, axis=0, out=placed[:count], mode="clip")
    if values is not None:
        np.take(values, steps.rows, axis=0, out=placed[count:], mode="clip")
    return placed


# -- shapes ----------------------------------------------------------------------------------------
def check_shapes(type: str, expected: Sequence[tuple[str, Meta | None, Sequence[int]]]) -> None:
    """Raise GraphError for the first (what, meta, shape) whose meta has another shape."""
    for name, meta, shape in expected:
        if meta is not None and not fits(meta.shape, shape):
            raise GraphError(f"{type}: {name} must be {list(shape)}, got {list(meta.shape)}")


def like_forward(x: Meta, *others) -> tuple[Any, ...]:
    """Shapes of gradients: as the forward operands, the first of which is in sequences."""
    return (rowwise(x, x.lod), *(m and Meta(m.shape, m.dtype) for m in others))
