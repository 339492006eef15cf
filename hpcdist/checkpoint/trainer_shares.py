"""Which variables each trainer writes into a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.divided import OWN, divisions
from hpcdist.checkpoint.layout import path_of
from hpcdist.checkpoint.local_shards import LocalPiece, individual, individually, whole_variables
from hpcdist.checkpoint.manifest import check_names
from hpcdist.checkpoint.metadata import OPTIMIZER, PARAMETER, Piece
from hpcdist.checkpoint.plan import shares
from hpcdist.executor.control import Peers
from hpcdist.executor.scope import Scope, holds_averages
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.transpiler.group import group_of
from hpcdist.transpiler.sharded_updates import owners_of


def local_variables(peers: Peers, program: Program, scope: Scope) -> list[LocalPiece]:
    """Return the variables that trainers hold whole, and no server has."""
    pieces = whole_variables(program, scope)
    overview = program.distribution.records if peers.servers else None
    elsewhere = set()
    if overview is not None:
        elsewhere = {record.origin.name for record in overview.distributed_vars}
    check_names([h.piece.name for h in pieces] + list(elsewhere))
    return [h for h in pieces if h.piece.name not in elsewhere]


def shares_of(peers: Peers, program: Program, scope: Scope) -> list[list[LocalPiece]]:
    """Return each trainer's entries to write: shared ones once, and each trainer's own.

    With servers trainer 0 writes what all have alike, without them each a share. Of what each has
    of its own trainer 0's stands under the plain name, unless that is the servers'. What trainers
    divide (state of an optimizer, stages of a pipeline) is written by those who hold it.
    """
    refuse_averages(peers, program, scope)
    every = whole_variables(program, scope)
    variables = local_variables(peers, program, scope)
    individually_kept = individual(program)
    owners = owners_of(program)
    alike = [h for h in variables if h.local not in individually_kept and h.local not in owners]
    pieces: list[list[LocalPiece]] = [[] for _ in range(peers.trainers)]
    for name, owner in owners.items():
        pieces[owner].append(_declared(program.global_block().var(name)))
    if peers.servers or peers.trainers == 1:
        pieces[0] += alike
    else:
        by_name = {h.piece.name: h for h in alike}
        for k, rows in enumerate(_shares(alike, peers.trainers)):
            for name, begin, end in rows:
                piece = replace(by_name[name].piece, begin=begin, end=end, path=path_of(name))
                pieces[k].append(LocalPiece(name, piece))
    plain = {h.local for h in variables}
    kinds = divisions(program, shared=peers.shares_batches) if peers.trainers > 1 else {}
    for k, share in enumerate(pieces):
        for h in every:
            if h.local in individually_kept:
                kind = kinds.get(h.local, OWN)
                h = replace(h, piece=replace(h.piece, divided=kind))
                share.append(individually(h, k) if k or h.local not in plain else h)
    return pieces


def refuse_averages(peers: Peers, program: Program, scope: Scope) -> None:
    """Refuse to save what servers hold while trainers have averages in place of it."""
    if peers.servers and group_of(program) is None and holds_averages(scope):
        raise CheckpointError(
            "inside apply() parameters have their averages, but servers would save the original "
            "values: save_params and save_inference_model save the averages; save anything else "
            "outside the `with`"
        )


def _declared(var: Variable) -> LocalPiece:
    """Return a variable that one trainer holds, which may be another one, as all know it."""
    role = PARAMETER if isinstance(var, Parameter) else OPTIMIZER
    piece = Piece(var.name, role, var.dtype, var.shape, 0, var.shape[0], path_of(var.name))
    return LocalPiece(var.name, piece)


def _shares(variables: Sequence[LocalPiece], writers: int) -> list[list[tuple[str, int, int]]]:
    shapes = {h.piece.name: h.piece.whole for h in variables}
    sizes = {h.piece.name: np.dtype(h.piece.dtype).itemsize for h in variables}
    return shares(shapes, sizes, writers)
