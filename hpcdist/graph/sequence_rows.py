"""How operators treat rows that are grouped into sequences, sample by sample. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdist.graph.rows import Applied, How, MixesRows, OfRows, Operand, expect_rows


def by_sequence(op: Applied) -> Mapping[str, OfRows]:
    """Each sequence of the results is computed from the same one of X; it may get other rows."""
    _expect_sequences(op)
    return {slot: grouped(out) for slot, (out, *_) in op.outputs.items()}


def by_row_of_sequence(op: Applied) -> OfRows:
    """As `by_sequence`; each sequence keeps its number of rows."""
    _expect_sequences(op)
    return op.inputs["X"][0].of


def _expect_sequences(op: Applied) -> None:
    for slot, operands in op.inputs.items():
        for operand in operands:
            if slot != "X":
                expect_rows(operand, False)
            else:
                expect_ragged(operand)


def expect_ragged(operand: Operand, nested: bool = True) -> None:
    """Refuse other rows than those of sequences; of sequences in sequences unless ``nested``."""
    if operand.of.how is not How.RAGGED or (operand.lod_level > 1 and not nested):
        raise MixesRows(f"{operand.name!r} is {operand.of.how.value}")


def grouped(out: Operand) -> OfRows:
    """Return the rows of a result that groups rows anew, sample by sample."""
    return OfRows(How.RAGGED, out.name) if out.lod_level else OfRows(How.ROWS)


def expanded(op: Applied) -> OfRows:
    """Rows or sequences of X, repeated as Y has items."""
    _expect_for_sequences(op)
    return OfRows(How.RAGGED, op.outputs["Out"][0].name)


def spread(op: Applied) -> OfRows:
    """A row of X for each row of Y's sequence."""
    return _expect_for_sequences(op).of


def _expect_for_sequences(op: Applied) -> Operand:
    (x,), (y,) = op.inputs["X"], op.inputs["Y"]
    if x.of.how not in (How.ROWS, How.RAGGED) or y.of.how is not How.RAGGED:
        raise MixesRows(f"{x.name!r} is {x.of.how.value}, {y.name!r} {y.of.how.value}")
    return y
