"""Which rank writes which rows, and which rows of which piece a reader needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.metadata import Piece


@dataclass(frozen=True)
class Read:
    """Rows ``begin:end`` of a piece, which become the rows from ``at`` on of what is wanted."""

    piece: int
    begin: int
    end: int
    at: int


@dataclass(frozen=True)
class Saved:
    """A variable of a checkpoint: pieces in the order of their rows, and copies, by index."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[int, ...]
    copies: tuple[int, ...] = ()
    divided: str = ""


def variables_of(pieces: Sequence[Piece], file: str) -> dict[str, Saved]:
    """Return the variables that pieces make up; CheckpointError if they do not fit together."""
    by_name: dict[str, list[int]] = {}
    for i, piece in enumerate(pieces):
        by_name.setdefault(piece.name, []).append(i)
    return {name: _joined(name, numbers, pieces, file) for name, numbers in by_name.items()}


def _joined(name: str, numbers: Sequence[int], pieces: Sequence[Piece], file: str) -> Saved:
    first = pieces[numbers[0]]
    facts = (first.role, first.dtype, first.whole, first.copy)
    for i in numbers:
        piece = pieces[i]
        if (piece.role, piece.dtype, piece.whole, piece.copy) != facts:
            raise CheckpointError(
                f"{file}: the parts disagree on {name!r}: {_words(first)} and {_words(piece)}"
            )
    if first.copy:
        return Saved(name, *facts[:3], pieces=(numbers[0],), copies=tuple(numbers))
    rows = sorted(numbers, key=lambda i: (pieces[i].begin, pieces[i].end))
    reached = 0
    for i in rows:
        if pieces[i].begin != reached:
            raise CheckpointError(
                f"{file}: {name!r} has rows 0..{first.whole[0] - 1}, but its parts do not cover "
                f"each of them once (at row {min(reached, pieces[i].begin)})"
            )
        reached = pieces[i].end
    if reached != first.whole[0]:
        raise CheckpointError(
            f"{file}: {name!r} has {first.whole[0]} rows, but its parts hold {reached}"
        )
    return Saved(name, *facts[:3], pieces=tuple(rows), divided=first.divided)


def _words(piece: Piece) -> str:
    return f"{piece.role} {piece.dtype}{list(piece.whole)}"


def reads_of(saved: Saved, pieces: Sequence[Piece], begin: int, end: int) -> list[Read]:
    """Return the pieces that rows ``begin:end`` of a variable consist of, in order."""
    reads = []
    for i in saved.pieces:
        piece = pieces[i]
        first, last = max(begin, piece.begin), min(end, piece.end)
        if first < last:
            reads.append(Read(i, first - piece.begin, last - piece.begin, first - begin))
    return reads


def copy_for(saved: Saved, pieces: Sequence[Piece], begin: int, end: int) -> int | None:
    """Return the copy that belongs to rows ``begin:end``; None if no block had just these."""
    for i in saved.copies:
        if (pieces[i].begin, pieces[i].end) == (begin, end):
            return i
    return None


def shares(
    shapes: Mapping[str, tuple[int, ...]], itemsizes: Mapping[str, int], writers: int
) -> list[list[tuple[str, int, int]]]:
    """Cut what all writers have alike into shares of about equal bytes: (name, begin, end) rows.

    The variables, in the order given, are laid end to end and cut into ``writers`` stretches; a cut
    moves to the nearest row. Every row is in one share.
    """
    total = sum(_nbytes(shapes[n], itemsizes[n]) for n in shapes)
    ranges: list[list[tuple[str, int, int]]] = [[] for _ in range(writers)]
    position = 0
    for name, shape in shapes.items():
        nbytes, rows = _nbytes(shape, itemsizes[name]), shape[0]
        if not nbytes:
            ranges[0].append((name, 0, rows))
            continue
        ends = [
            min(max(round((total * (w + 1) / writers - position) * rows / nbytes), 0), rows)
            for w in range(writers)
        ]
        ends[-1] = rows
        begin = 0
        for writer, end in enumerate(ends):
            if begin < end:
                ranges[writer].append((name, begin, end))
                begin = end
        position += nbytes
    return ranges


def _nbytes(shape: tuple[int, ...], itemsize: int) -> int:
    size = itemsize
    for extent in shape:
        size *= extent
    return size
