"""Saving and loading variables of a Program: ``fluid.io.save_persistables`` and its kin."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.checks import checked_path
from hpcdist.base.errors import CheckpointError
from hpcdist.base.keywords import name_arguments_in
from hpcdist.base.temporary import temporary_folder
from hpcdist.base.warned import warn
from hpcdist.checkpoint.checkpoint import is_checkpoint
from hpcdist.checkpoint.fluid_files import write_tensors
from hpcdist.checkpoint.kept import Arrays, LocalPiece, unsliced
from hpcdist.checkpoint.layout import MANIFEST, path_of
from hpcdist.checkpoint.metadata import OTHER, Piece
from hpcdist.checkpoint.pickling import write_state
from hpcdist.checkpoint.ranks import saved_by_first
from hpcdist.checkpoint.rows import Choice
from hpcdist.checkpoint.serving import LIST
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.control import ProgramPeers
from hpcdist.executor.merging import merge_state
from hpcdist.executor.scope import global_scope
from hpcdist.fluid.io.save_alone import save_alone, save_by_servers, save_rows
from hpcdist.fluid.io.selection import (
    Predicate,
    array_in,
    checked_format,
    checked_program,
    chosen_variables,
    is_parameter,
    is_persistable,
)
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program
from hpcdist.ps.given_values import give
from hpcdist.runtime.kept.description import fingerprint
from hpcdist.runtime.kept.divisions import sums_of
from hpcdist.runtime.kept.peers import program_peers
from hpcdist.runtime.kept.program import refuse_averages
from hpcdist.runtime.kept.variables import is_table, persistables, roles_of, tables_of
from hpcdist.transpiler.hybrid import served_plan
from hpcdist.transpiler.sharded_updates import owners_of
from hpcdist.transpiler.table_metadata import tables_looked_up

logger = logging.getLogger("hpcdist.checkpoint")
Remote = tuple[int, str, Piece]


def _say_what_is_partial(peers: ProgramPeers, program: Program, names: Iterable[str]) -> None:
    """Warn of sums over the rows of all trainers, of which trainer 0, which saves, has its own."""
    sums = [name for name in sums_of(program) if name in set(names)]
    if sums and peers.trainers > 1 and peers.trainer == 0:
        ops = program.global_block().ops
        counting = sorted({op.type for op in ops if not set(sums).isdisjoint(op.output_arg_names)})
        logger.warning(
            "%s: each of %d trainers counts its rows, and trainer 0 saves its own counts only (%s)"
            ": hpcdist.checkpoint.save saves those of all",
            ", ".join(counting),
            peers.trainers,
            ", ".join(sums),
        )


def save_vars(
    executor: object,
    dirname: str | None,
    main_program: Program | CompiledProgram | None = None,
    vars: Sequence[Any] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
    *,
    format: str | None = None,
    compression: str | None = None,
    of_none: Collection[str] = (),
) -> bytes | None:
    """Save variables: ``vars`` (Variables or names), or those that ``predicate`` chooses.

    In HDF5: ``dirname/manifest.h5``, or ``dirname/filename``, with the data beside it. With
    ``format="fluid"``, the default under ``--as-paddle``, as Fluid does: a file for each variable,
    or all in ``filename``. ``format="pickle"``: arrays by name in ``filename``, as `save` writes,
    those of ``of_none`` without dimensions. Without ``dirname`` and ``filename`` nothing is
    written: what Fluid's one file would hold is returned, for `load_inference_model`. Of a job,
    trainer 0 saves, and takes from servers what only they have; other trainers that call this
    return when the files are there. All ranks of a pipeline must call it, for each keeps a stage
    only.
    """
    program = checked_program("main_program", main_program)
    if dirname is None:
        return _into_memory(executor, program, vars, predicate, filename, format, compression)
    directory = checked_path("dirname", dirname)
    if filename is not None:
        checked_path("filename", filename)
    names = [v.name for v in chosen_variables(program, vars, predicate)]
    if not names:  # in Fluid's words
        warn(
            "no variable in your model, please ensure there are any variables in your model to save"
        )
    tables = sorted(tables_looked_up(program).intersection(names))
    format = checked_format(format, compression, tables)
    peers = program_peers()
    _refuse_shared_out(peers, program, names)
    if tables and peers.servers:
        raise CheckpointError(
            f"the rows of {', '.join(tables)} are on the servers: save_persistables and "
            "checkpoint.save have them write these"
        )

    if divided := sorted(owners_of(program).keys() & set(names)):
        raise CheckpointError(
            f"the trainers of this job divide the state of the optimizer, such as {divided[0]}: "
            "checkpoint.save has each write its part; fluid.io.save_params saves the parameters"
        )

    _say_what_is_partial(peers, program, names)
    peers.complete(names, global_scope())

    def save() -> None:
        remote = _on_servers(peers, program)
        target = directory, filename
        _save(peers, program, names, remote, *target, format, compression, of_none)

    saved_by_first(peers, directory, filename, save)
    return None


def _into_memory(
    executor: object,
    program: Program,
    vars: Sequence[Any] | None,
    predicate: Predicate | None,
    filename: str | None,
    format: str | None,
    compression: str | None,
) -> bytes:
    """Return the bytes of one file in Fluid's format."""
    if filename is not None or format not in (None, "fluid") or compression is not None:
        raise CheckpointError(
            "dirname is None, which asks for Fluid's bytes in memory: give neither filename nor "
            f"compression, and no format but 'fluid'; got filename={filename!r}, "
            f"format={format!r}, compression={compression!r}. Or give the dirname to save in"
        )
    peers = program_peers()
    if peers.trainers > 1 or peers.servers:
        raise CheckpointError(
            "dirname is None, which asks for the bytes in memory: in a job only the first trainer "
            "saves. Give a dirname, and read the file"
        )
    with temporary_folder() as directory:
        save_vars(executor, str(directory), program, vars, predicate, "params", format="fluid")
        return (directory / "params").read_bytes()


def _save(
    peers: ProgramPeers,
    program: Program,
    names: Sequence[str],
    remote: Mapping[str, Sequence[Remote]],
    directory: Path,
    filename: str | None,
    format: str,
    compression: str | None,
    of_none: Collection[str] = (),
) -> None:
    arrays = _values(peers, program, names, remote)
    if format == "fluid":
        _write_fluid(directory, arrays, filename)
        return
    if format == "pickle":
        if filename is None:
            raise CheckpointError("format='pickle' writes one file: give its filename")
        shaped = {n: arrays[n].reshape(()) for n in of_none if n in arrays}
        write_state(directory / filename, {**arrays, **shaped})
        return
    pieces, values = _as_pieces(program, arrays)
    tables = [t for t in tables_of(program, global_scope()) if t.name in names]
    label = fingerprint(program)
    target = directory, filename or MANIFEST
    save_alone(*target, pieces, values, label, tables=tables, compression=compression)


def save_params(
    executor: object,
    dirname: str | None,
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
    **how: Any,
) -> bytes | None:
    """Save the parameters of a Program; see `save_vars`."""
    return save_vars(executor, dirname, main_program, None, is_parameter, filename, **how)


def save_persistables(
    executor: object,
    dirname: str | None,
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
    *,
    format: str | None = None,
    compression: str | None = None,
) -> bytes | None:
    """Save all that outlives a run: parameters, optimizer state, learning rates; see `save_vars`.

    Of a Program that trains with parameter servers, trainer 0 lets every server write its part.

    Examples:
        >>> import os, tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1, bias_attr=False)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> directory = tempfile.mkdtemp()
        >>> fluid.io.save_persistables(exe, directory)
        >>> len(os.listdir(directory)) > 0
        True
    """
    program, peers = checked_program("main_program", main_program), program_peers()
    plan = served_plan(peers.program(program)) if peers.servers else None
    if plan is None or dirname is None:
        options: dict[str, Any] = {"format": format, "compression": compression}
        return save_vars(executor, dirname, program, None, is_persistable, filename, **options)
    directory = checked_path("dirname", dirname)
    format = checked_format(format, compression, [table.parameter for table in plan.tables])
    refuse_averages(peers, peers.program(program), global_scope())
    _say_what_is_partial(peers, program, [v.name for v in persistables(program)])

    def save() -> None:
        if format == "hdf5":
            save_by_servers(peers, directory, filename or MANIFEST, program, compression)
            return
        remote = _on_servers(peers, program)
        merged = merge_state(program)
        names_here = [v.name for v in persistables(peers.program(program)) if v.name not in merged]
        names = [n for n in names_here if global_scope().array_of(n) is not None] + list(remote)
        _save(peers, program, names, remote, directory, filename, format, None)

    saved_by_first(peers, directory, filename, save)
    return None


def save_for_inference(
    dirname: str,
    program: Program,
    names: Sequence[str],
    filename: str | None,
    *,
    format: str | None,
    compression: str | None,
    choices: Mapping[str, Choice] | None = None,
) -> None:
    """Save variables of which some are distributed tables: of these rows only, without state.

    They are looked up where they lie, so they cannot be compressed. ``choices`` says which rows, by
    names of tables. Otherwise as `save_vars`.
    """
    peers, tables = program_peers(), tables_looked_up(program)
    checked_format(format, compression, tables.intersection(names))
    if compression is not None:
        raise CheckpointError(
            "rows of distributed tables are looked up where they lie in the file: leave "
            "compression out"
        )
    _refuse_shared_out(peers, program, names)
    dense = [name for name in names if name not in tables]

    def save() -> None:
        arrays = values_of(peers, program, dense)
        pieces, values = _as_pieces(program, arrays)
        target = Path(dirname), filename or MANIFEST
        looked_up = sorted(tables.intersection(names))
        label = fingerprint(program)
        save_rows(peers, *target, pieces, values, label, looked_up, choices or {})

    saved_by_first(peers, Path(dirname), filename, save)


def _refuse_shared_out(peers: ProgramPeers, program: Program, names: Iterable[str]) -> None:
    """Refuse to save tables of which each trainer has some rows: trainer 0 alone writes here."""
    tables = sorted(tables_looked_up(program).intersection(names))
    if tables and peers.trainers > 1 and not peers.servers:
        raise CheckpointError(
            f"the rows of {', '.join(tables)} are divided among {peers.trainers} trainers: "
            "checkpoint.save, or a Saver, has each write its own; one process, or a job with "
            "servers, restores that, and saves it by fluid.io"
        )


def _as_pieces(
    program: Program, arrays: Mapping[str, np.ndarray]
) -> tuple[list[LocalPiece], Arrays]:
    roles = roles_of(program)
    pieces = [unsliced(name, roles.get(name, OTHER), array) for name, array in arrays.items()]
    return pieces, Arrays(arrays)


def _on_servers(peers: ProgramPeers, program: Program) -> dict[str, list[Remote]]:
    """Return the servers' pieces of each variable: (server, its name there, piece)."""
    remote: dict[str, list[Remote]] = {}
    if peers.servers and peers.program(program).distribution.records is not None:
        for server, listed in enumerate(peers.ask({"do": LIST})):
            for local, fields in listed:
                piece = Piece(**{**fields, "whole": tuple(fields["whole"])})
                remote.setdefault(piece.name, []).append((server, local, piece))
    return remote


def values_of(peers: ProgramPeers, program: Program, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return values of variables by name, sorted. Trainer 0 calls this, between two steps."""
    return _values(peers, program, names, _on_servers(peers, program))


def _values(
    peers: ProgramPeers,
    program: Program,
    names: Sequence[str],
    remote: Mapping[str, Sequence[Remote]],
) -> dict[str, np.ndarray]:
    """Return values by name, sorted; what only servers have is read there."""
    scope = global_scope()
    arrays: dict[str, np.ndarray] = {}
    for name in sorted(set(names)):
        if name in remote and not _received(peers.program(program), name):
            arrays[name] = _read_remote(peers, remote[name])
        elif not is_table(scope, name):
            arrays[name] = array_in(scope, name)
    return arrays


def _received(program: Program, name: str) -> bool:
    """Return whether a trainer has a parameter's value, as it is on the servers."""
    return any(op.type == "recv" and name in _parameters(op) for op in program.global_block().ops)


def _parameters(op: Operator) -> list[str]:
    return op.attrs.get("op_role_var", [])[:1] + op.output("Out")


def _read_remote(peers: ProgramPeers, pieces: Sequence[tuple[int, str, Piece]]) -> np.ndarray:
    first = pieces[0][2]
    array = np.empty(first.whole, first.dtype)
    for server, local, piece in pieces:
        if piece.copy:
            piece_of_server = np.empty(first.whole, first.dtype)
            peers.read(server, {local: piece_of_server})
            array = piece_of_server if piece is first else np.minimum(array, piece_of_server)
        else:
            peers.read(server, {local: array[piece.begin : piece.end]})
    return array


def set_on_servers(peers: ProgramPeers, program: Program, values: Mapping[str, np.ndarray]) -> None:
    """Give servers values by name of what only they have; every trainer calls this with the same.

    CheckpointError, and nothing has changed, if they do not have one, or in another shape.
    """
    remote = _on_servers(peers, program) if values else {}
    parts: dict[int, dict[str, np.ndarray]] = {}
    for name, array in values.items():
        for server, local, piece in remote.get(name, ()):
            if math.prod(piece.whole) != array.size or array.dtype != piece.dtype:
                raise CheckpointError(
                    f"{name!r} is {piece.dtype}{list(piece.whole)} on the servers, the value is "
                    f"{array.dtype}{list(array.shape)}"
                )
            whole = array.reshape(piece.whole)
            part = whole if piece.copy else whole[piece.begin : piece.end]
            parts.setdefault(server, {})[local] = part
        if name not in remote:
            raise CheckpointError(f"variable {name!r} is neither here nor on the servers")
    for server, of_server in parts.items():
        give(peers.ask, of_server, server)


def _write_fluid(directory: Path, arrays: Mapping[str, np.ndarray], filename: str | None) -> None:
    if filename is not None:
        write_tensors(directory / filename, arrays.values())
        return
    for name, array in arrays.items():
        write_tensors(directory / path_of(name), [array])
    manifest = directory / MANIFEST
    if is_checkpoint(manifest):
        manifest.unlink()  # of an earlier save, which this one replaces


name_arguments_in(__name__)
