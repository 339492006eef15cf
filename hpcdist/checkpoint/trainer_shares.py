"""Which variables each trainer writes into a checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcdist.checkpoint.kept import LocalPiece, NamedShards, individually
from hpcdist.checkpoint.layout import path_of
from hpcdist.checkpoint.manifest import check_names
from hpcdist.checkpoint.plan import shares


def local_variables(kept: NamedShards) -> list[LocalPiece]:
    """Return the variables that trainers hold whole, and no server has."""
    check_names([h.piece.name for h in kept.pieces] + list(kept.elsewhere))
    return [h for h in kept.pieces if h.piece.name not in kept.elsewhere]


def shares_of(kept: NamedShards, trainers: int, servers: int) -> list[list[LocalPiece]]:
    """Return each trainer's entries to write: shared ones once, and each trainer's own.

    With servers trainer 0 writes what all have alike, without them each a share. Of what each has
    of its own trainer 0's stands under the plain name, unless that is the servers'. What trainers
    divide (state of an optimizer, stages of a pipeline) is written by those who hold it.
    """
    variables = local_variables(kept)
    owned = {h.local for _, h in kept.owned}
    alike = [h for h in variables if h.local not in kept.individual and h.local not in owned]
    pieces: list[list[LocalPiece]] = [[] for _ in range(trainers)]
    for owner, variable in kept.owned:
        pieces[owner].append(variable)
    if servers or trainers == 1:
        pieces[0] += alike
    else:
        by_name = {h.piece.name: h for h in alike}
        for k, rows in enumerate(_shares(alike, trainers)):
            for name, begin, end in rows:
                piece = replace(by_name[name].piece, begin=begin, end=end, path=path_of(name))
                pieces[k].append(LocalPiece(name, piece))
    plain = {h.local for h in variables}
    for k, share in enumerate(pieces):
        for h in kept.pieces:
            if h.local in kept.individual:
                h = replace(h, piece=replace(h.piece, divided=kept.individual[h.local]))
                share.append(individually(h, k) if k or h.local not in plain else h)
    return pieces


def _shares(variables: Sequence[LocalPiece], writers: int) -> list[list[tuple[str, int, int]]]:
    shapes = {h.piece.name: h.piece.whole for h in variables}
    sizes = {h.piece.name: np.dtype(h.piece.dtype).itemsize for h in variables}
    return shares(shapes, sizes, writers)
