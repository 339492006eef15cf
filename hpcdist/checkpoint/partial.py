"""Taking up what fits of a checkpoint: by name, as much of each value as both have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpcdist.checkpoint.checkpoint import Checkpoint
from hpcdist.checkpoint.kept import LocalPiece
from hpcdist.checkpoint.local import table_parts
from hpcdist.checkpoint.rows import fits_in_part
from hpcdist.checkpoint.sources import Source
from hpcdist.ps.table import SparseTable


@dataclass(frozen=True)
class FittingShards:
    """What a rank takes up of a checkpoint, and what it does not, with the reason, by name."""

    pieces: tuple[LocalPiece, ...]
    tables: tuple[SparseTable, ...]
    taken: dict[str, str]
    left: dict[str, str]


def fitting(
    source: Source, pieces: Iterable[LocalPiece], tables: Iterable[SparseTable]
) -> FittingShards:
    """Return the shards that fit: values of the same name, dtype and number of dimensions."""
    chosen, taken, left = [], {}, {}
    for h in pieces:
        name = h.piece.name if h.combined is None else h.combined.names[0]
        if not source.has(name):
            left[name] = "not in the checkpoint"
            continue
        saved, whole = source.saved(name), h.piece.whole
        here = f"{h.piece.dtype}{list(whole)}"
        if saved.shape == whole and saved.dtype == h.piece.dtype:
            taken[name] = "whole"
        elif (
            len(saved.shape) == len(whole)
            and saved.dtype == h.piece.dtype
            and not h.piece.copy
            and h.combined is None
        ):
            both = [min(pair) for pair in zip(saved.shape, whole)]
            taken[name] = f"{both} of {here}, saved as {list(saved.shape)}"
            h = replace(h, overlaps=True)
        else:
            there = f"{saved.dtype}{list(saved.shape)}"
            left[name] = f"{there} in the checkpoint, {here} in the program"
            continue
        chosen.append(h)
    fit = []
    for table in tables:
        parts = table_parts(source, table.name) if isinstance(source, Checkpoint) else []
        if not parts:
            left[table.name] = "not in the checkpoint"
            continue
        taken[table.name] = fits_in_part(table, parts[0][1])
        fit.append(table)
    return FittingShards(tuple(chosen), tuple(fit), taken, left)
