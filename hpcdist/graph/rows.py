"""How operators treat the rows of a batch that trainers share: declared in each `define`. Pure.

Each trainer computes a Program on its rows. A treatment derives, from how the operands depend on
the rows of the whole batch, how the results do: rows again, a mean over them, ... It raises
`MixesRows` if the result of one process cannot be combined from the trainers' results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any


class How(Enum):
    """What a value is of the rows of a batch."""

    SAME = "independent of the batch"
    ROWS = "rows"
    RAGGED = "rows of sequences"
    PADDED = "rows, padded to each trainer's own longest sequence"
    MEAN = "a mean over the rows"
    SUM = "a sum over the rows"
    MAX = "a maximum over the rows"
    MIN = "a minimum over the rows"
    COUNTS = "counts that each trainer keeps"
    GRADIENT = "a gradient from each trainer's own rows"
    MIXED = "mixed from several rows"


_TOTALS = {How.MEAN, How.SUM, How.MAX, How.MIN}
_LINEAR = {How.MEAN, How.SUM}


@dataclass(frozen=True)
class OfRows:
    """What a value is of the rows of a batch, and of which rows.

    ``sequences``: the data variable whose rows these are (RAGGED, or a MEAN over them), or the
    value that regrouped them; "" for the samples. ``per_sample``: rows that ROWS have of each
    sample, 0 if not known. ``why`` tells of a MIXED value which operator mixed it, and
    ``of_gradient`` that it follows from a trainer's own gradient. ``spare``: RAGGED rows may have
    one beside them that says that a trainer has found nothing.
    """

    how: How
    sequences: str = ""
    per_sample: int = 1
    why: str = ""
    of_gradient: bool = False
    spare: bool = False


SAME = OfRows(How.SAME)


class MixesRows(Exception):
    """The trainers' results of an operator do not make up the result of one process: why."""


@dataclass(frozen=True)
class Operand:
    """A value that an operator reads or writes; of what it writes, ``of`` is not known yet."""

    name: str
    of: OfRows
    shape: tuple[int, ...]
    lod_level: int = 0
    dtype: str = "float32"


@dataclass(frozen=True)
class Applied:
    """One use of an operator: its attributes with defaults, and its operands by slot.

    Attributes that are given as values (`OpDef.given`) have None in place of each number; these
    values do not depend on the batch, and are not among the operands.

    ``align(a, b)`` notes that two data variables ("": the samples) must be fed with equally many
    rows of every sample; it raises MixesRows if that cannot be checked.
    """

    attrs: Mapping[str, Any]
    inputs: Mapping[str, Sequence[Operand]]
    outputs: Mapping[str, Sequence[Operand]]
    align: Callable[[str, str], None]

    @property
    def operands(self) -> list[Operand]:
        """All that it reads."""
        return [operand for operands in self.inputs.values() for operand in operands]

    @property
    def moving(self) -> list[Operand]:
        """What it reads that depends on the batch."""
        return [operand for operand in self.operands if operand.of.how is not How.SAME]

    @property
    def rank(self) -> int:
        """Number of dimensions of the first operand."""
        return len(self.operands[0].shape)


Result = OfRows | Mapping[str, OfRows]  # of every output, or by slot; a slot that is left out mixes
Treatment = Callable[[Applied], Result]
Apart = Callable[[Applied], bool]  # tells whether dimension 0 is left as it is


# -- rows ------------------------------------------------------------------------------------------
def common_rows(op: Applied, rows: Sequence[Operand], allowed: Set[How]) -> OfRows:
    """Return of which rows operands are, all of the same ones; MixesRows if they are not."""
    first = rows[0].of
    for operand in rows:
        of = operand.of
        if of.how not in allowed:
            raise MixesRows(f"{operand.name!r} is {of.how.value}")
        if of.per_sample != first.per_sample:
            raise MixesRows(f"{operand.name!r} has {of.per_sample} rows per sample")
        if of.sequences != first.sequences:
            op.align(first.sequences, of.sequences)
    if any(operand.of.how is How.PADDED for operand in rows):
        return replace(first, how=How.PADDED)
    ragged = [operand.of for operand in rows if operand.of.how is How.RAGGED]
    return ragged[0] if ragged else first


def mixed(op: Applied) -> OfRows:
    """Each result is computed from all rows together; every trainer then has the whole batch."""
    raise MixesRows("it works on all rows together")


def by_row(*slots: str, apart: Apart | None = None, totals: Treatment | None = None) -> Treatment:
    """Row i of every result is computed from row i of the values in ``slots`` (default: in all).

    ``apart`` tells if dimension 0 stays apart (default: always); ``totals`` is how means, sums,
    maxima and minima over the rows are treated (default: they are mixed).
    """
    return _or_totals(lambda op: each_row(op, *slots, apart=apart), totals)


def by_element(*slots: str, totals: Treatment | None = None) -> Treatment:
    """Each element of the results is computed from the elements at its place, as `by_row`."""
    allowed = {How.ROWS, How.RAGGED, How.PADDED}
    return _or_totals(lambda op: each_row(op, *slots, allowed=allowed), totals)


def _or_totals(of_rows: Treatment, totals: Treatment | None) -> Treatment:
    def treat(op: Applied) -> Result:
        if totals is not None and all(operand.of.how in _TOTALS for operand in op.moving):
            return totals(op)
        return of_rows(op)

    return treat


def each_row(
    op: Applied,
    *slots: str,
    apart: Apart | None = None,
    allowed: Set[How] = frozenset({How.ROWS, How.RAGGED}),
) -> OfRows:
    """Return how results depend on rows if row i is computed from row i of those in ``slots``."""
    rows: list[Operand] = []
    for slot, operands in op.inputs.items():
        in_rows = not slots or slot in slots
        for operand in operands:
            expect_rows(operand, in_rows)
        rows += operands if in_rows else []
    if apart is not None and not apart(op):
        raise MixesRows("it works along dimension 0")
    return common_rows(op, rows, allowed)


def expect_rows(operand: Operand, in_rows: bool) -> None:
    """Raise MixesRows unless an operand is divided with the batch: ``in_rows``; or is not."""
    if in_rows and operand.of.how is How.SAME:
        raise MixesRows(f"{operand.name!r} is not divided with the batch")
    if not in_rows and operand.of.how is not How.SAME:
        raise MixesRows(f"{operand.name!r} depends on the batch")


def off_rows(attr: str, more_dims: int = 0) -> Apart:
    """Return whether dimension 0 is not among those that an attribute names, one or a list."""

    def apart(op: Applied) -> bool:
        axes = op.attrs[attr]
        rank = op.rank + more_dims
        several = axes if isinstance(axes, (list, tuple)) else [axes]
        return all(axis is not None and axis % rank for axis in several)

    return apart


def of_matrices(op: Applied) -> bool:
    """Return whether rows have dimensions of their own, the last of which is worked along."""
    return op.rank > 1


def broadcast(totals: Treatment | None = None) -> Treatment:
    """Two values element by element, the one of lower rank placed within the other at ``axis``."""

    def of_rows(op: Applied) -> OfRows:
        x, y = (op.inputs[slot][0] for slot in ("X", "Y"))
        rank = max(len(x.shape), len(y.shape))
        axis = op.attrs.get("axis", -1)
        for operand in (x, y):
            fewer = rank - len(operand.shape)
            begin = 0 if not fewer else fewer if axis == -1 else axis
            if operand.of.how is not How.SAME and begin:
                raise MixesRows(f"the rows of {operand.name!r} are not placed at rows")
            if operand.of.how is How.SAME and not begin and operand.shape[:1] != (1,):
                raise MixesRows(f"{operand.name!r} is not divided with the batch")
        return common_rows(op, op.moving, {How.ROWS, How.RAGGED, How.PADDED})

    return _or_totals(of_rows, totals)


def reshaped(op: Applied) -> OfRows:
    """The same elements in the same order; ``shape`` 0 keeps an extent, -1 is what is left."""
    (x,), (out,) = op.inputs["X"], op.outputs["Out"]
    if x.of.how in _TOTALS:
        return x.of
    of = common_rows(op, [x], {How.ROWS, How.RAGGED})
    if op.attrs["shape"][:1] == [0]:
        return of
    if None in op.attrs["shape"][:1]:
        raise MixesRows("the number of rows of the result is a value")
    old, new = x.shape[1:], out.shape[1:]
    if out.shape[:1] != (-1,) or -1 in new:
        raise MixesRows("the result's dimension 0 is not that of the rows")
    elements = (of.per_sample or 1) * math.prod(extent for extent in old if extent != -1)
    per_sample, rest = divmod(elements, math.prod(new))
    if rest:
        raise MixesRows("its rows do not divide by sample")
    return _regrouped(of, per_sample if of.per_sample and -1 not in old else 0)


def flattened(op: Applied) -> OfRows:
    """A matrix of all elements: dimensions before ``axis`` become its rows."""
    (x,) = op.operands
    if x.of.how in _TOTALS:
        return x.of
    merged = x.shape[1 : op.attrs["axis"]]
    if not op.attrs["axis"]:
        raise MixesRows("all rows become one")
    of = common_rows(op, [x], {How.ROWS, How.RAGGED})
    return _regrouped(of, 0 if -1 in merged else of.per_sample * math.prod(merged))


def _regrouped(of: OfRows, per_sample: int) -> OfRows:
    if of.how is How.RAGGED and per_sample != of.per_sample:
        raise MixesRows("the result has other rows than the sequences")
    return replace(of, per_sample=per_sample)


def like_batch(op: Applied) -> OfRows:
    """A constant, one extent of which is that of the operand's."""
    (x,) = op.operands
    ins, outs = op.attrs["input_dim_idx"], op.attrs["output_dim_idx"]
    if x.of.how is How.PADDED:
        raise MixesRows(f"{x.name!r} is {x.of.how.value}")
    if x.of.how in _TOTALS or ins % len(x.shape):
        return SAME
    if outs % len(op.attrs["shape"]):
        raise MixesRows("the number of rows becomes an extent of the result")
    return common_rows(op, [x], {How.ROWS, How.RAGGED})


def product_of_matrices(op: Applied) -> OfRows:
    """Products of the matrices in the last two dimensions; a vector has one."""
    if all(operand.of.how in _LINEAR for operand in op.moving):
        return product(op)
    (x,), (y,) = op.inputs["X"], op.inputs["Y"]
    if y.of.how is How.SAME and len(x.shape) == 2 and len(y.shape) < 3:
        if op.attrs["transpose_X"]:
            raise MixesRows("it multiplies along dimension 0")
        return common_rows(op, [x], {How.ROWS, How.RAGGED})
    rank = max(len(x.shape), len(y.shape))
    for operand in (x, y):
        if operand.of.how is How.SAME:
            divided = len(operand.shape) == rank and operand.shape[0] != 1
        else:
            divided = len(operand.shape) != rank or rank < 3
        if divided:
            raise MixesRows(f"{operand.name!r} is not multiplied row by row")
    return common_rows(op, op.moving, {How.ROWS, How.RAGGED})


def flat_product(op: Applied) -> OfRows:
    """A product of X, flattened to a matrix whose rows are its first dimensions, and Y."""
    if all(operand.of.how in _LINEAR for operand in op.moving):
        return product(op)
    (x,), (y,) = op.inputs["X"], op.inputs["Y"]
    expect_rows(y, False)
    return common_rows(op, [x], {How.ROWS, How.RAGGED})


# -- reductions ------------------------------------------------------------------------------------
def reduces(how: How | None, along: Apart | None = None) -> Treatment:
    """A mean, sum, maximum or minimum (``how``; None: none of these) of all elements.

    ``along``: tells whether it is of the elements of each row instead.
    """

    def treat(op: Applied) -> OfRows:
        (x,) = op.operands
        if x.of.how in _TOTALS:
            return _of_total(how, x)
        of = common_rows(op, [x], {How.ROWS, How.RAGGED})
        if along is not None and along(op):
            return of
        if how is None:
            raise MixesRows("it works along dimension 0")
        if of.spare:
            raise MixesRows(f"a trainer that finds nothing has a row of {x.name!r} for that")
        if how is not How.MEAN:
            return OfRows(how)
        _expect_fractions(x)
        op.align(of.sequences, of.sequences)  # what it is a mean over must be known from the feed
        return OfRows(how, of.sequences)

    return treat


def _of_total(how: How | None, x: Operand) -> OfRows:
    """Reduce what is a total already: means and sums keep means and sums, maxima maxima."""
    if how is How.MEAN:
        _expect_fractions(x)
    if x.of.how is how or (x.of.how in _LINEAR and how in _LINEAR):
        return x.of
    raise MixesRows(f"{x.name!r} is {x.of.how.value}")


def _expect_fractions(x: Operand) -> None:
    if not x.dtype.startswith("float"):
        raise MixesRows(f"it drops fractions, for {x.name!r} is {x.dtype}")


def of_each_row(op: Applied) -> bool:
    """Return whether a reduction over ``dim`` leaves dimension 0 as it is."""
    return not op.attrs["reduce_all"] and off_rows("dim")(op)


def moved(op: Applied) -> OfRows:
    """Elements moved, copied or left out: totals over the rows stay what they are."""
    return _alike(op, _TOTALS)


def linear(op: Applied) -> OfRows:
    """Added up, subtracted, scaled: means stay means, and sums sums."""
    return _alike(op, _LINEAR)


def shifted(op: Applied) -> OfRows:
    """Scaled, and shifted by ``bias``, or by ``step``: added to a sum, it would count T times."""
    of = _alike(op, _LINEAR)
    if of.how is How.SUM and (op.attrs.get("bias") or op.attrs.get("step")):
        raise MixesRows("it adds a constant to a sum over the rows")
    return of


def _alike(op: Applied, kinds: set[How]) -> OfRows:
    first = op.moving[0].of
    for operand in op.moving:
        if operand.of.how not in kinds or operand.of.how is not first.how:
            raise MixesRows(f"{operand.name!r} is {operand.of.how.value}")
        if operand.of.sequences != first.sequences:
            op.align(first.sequences, operand.of.sequences)
    if first.how is How.SUM and len(op.moving) < len(op.operands):
        raise MixesRows("it adds what is not summed over trainers to a sum over the rows")
    return first


def product(op: Applied) -> OfRows:
    """A mean or sum times what does not depend on the batch; two of them are mixed."""
    (first, *others) = op.moving
    if others or first.of.how not in _LINEAR:
        raise MixesRows(f"{first.name!r} is {first.of.how.value}")
    return first.of


def quotient(op: Applied) -> OfRows:
    """A mean or sum divided by what does not depend on the batch."""
    of = product(op)
    if op.inputs["Y"][0].of.how is not How.SAME:
        raise MixesRows("it divides by a value of the batch")
    _expect_fractions(op.operands[0])
    return of


def constant(op: Applied) -> OfRows:
    """The values do not matter, only the shape."""
    return SAME


def not_on_rows(op: Applied) -> OfRows:
    """Updates, messages and what servers run: nothing that is done to rows of a batch."""
    raise MixesRows("it is not meant for rows of a batch")
