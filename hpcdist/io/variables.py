"""Saving and loading variables of a Program: ``fluid.io.save_persistables`` and its kin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.checkpoint.attempt import fingerprint
from hpcdist.checkpoint.checkpoint import is_checkpoint
from hpcdist.checkpoint.fluid_files import write_tensors
from hpcdist.checkpoint.layout import MANIFEST, path_of
from hpcdist.checkpoint.local import check_table, check_take_up, take_up, take_up_table
from hpcdist.checkpoint.local_shards import (
    LocalPiece,
    array_of,
    held_of_server,
    persistables,
    roles_of,
    state_of_tables,
    tables_of,
    whole,
)
from hpcdist.checkpoint.metadata import OTHER, Piece
from hpcdist.checkpoint.ranks import done_by_first, peers_here, saved_by_first
from hpcdist.checkpoint.restore import is_table, wanted
from hpcdist.checkpoint.save_alone import save_alone, save_by_servers, save_rows
from hpcdist.checkpoint.serving import CHECK, LIST, LOAD
from hpcdist.checkpoint.sources import open_saved
from hpcdist.checkpoint.trainer_shares import refuse_averages
from hpcdist.device import on_host
from hpcdist.errors import CheckpointError, GraphTypeError
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.control import Peers
from hpcdist.executor.merging import begin_to_merge, merge_state
from hpcdist.executor.position import here
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.program import Program, default_main_program
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.transpiler.hybrid import served_plan
from hpcdist.transpiler.pserver import server_plan
from hpcdist.transpiler.sharded_updates import not_here, owners_of
from hpcdist.transpiler.table_metadata import tables_looked_up

FORMATS = ("hdf5", "fluid")
_default = FORMATS[0]
Predicate = Callable[[Variable], bool]
Remote = tuple[int, str, Piece]


def is_parameter(var: Any) -> bool:
    """Tell whether a variable is a parameter."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Tell whether a variable outlives a run and has a value to be saved."""
    return var.persistable and var.type in (VarType.LOD_TENSOR, VarType.SELECTED_ROWS)


def get_program_parameter(program: Program) -> list[Variable]:
    """Return the parameters of a Program."""
    return [var for var in program.list_vars() if is_parameter(var)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """Return the variables of a Program that `save_persistables` saves.

    What several steps have merged, to update together, is a part of a step, and none of a model.
    """
    merged = merge_state(program)
    kept = filter(is_persistable, program.list_vars())
    return [var for var in kept if var.name not in merged]


def get_parameter_value(para: Variable, executor: Any) -> np.ndarray:
    """Return the value of a parameter."""
    if not is_parameter(para):
        raise GraphTypeError(f"get_parameter_value: expected a parameter, got {para!r}")
    return np.array(_array(global_scope(), para.name))


def get_parameter_value_by_name(
    name: str, executor: Any, program: Program | None = None
) -> np.ndarray:
    """Return the value of a parameter of a Program, by its name."""
    var = _program("program", program).global_block().var(name)
    return get_parameter_value(var, executor)


# -- saving ----------------------------------------------------------------------------------------
def save_vars(
    executor: Any,
    dirname: str,
    main_program: Program | CompiledProgram | None = None,
    vars: Sequence[Any] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
    *,
    format: str | None = None,
    compression: str | None = None,
) -> None:
    """Save variables: ``vars`` (Variables or names), or those that ``predicate`` chooses.

    In HDF5: ``dirname/manifest.h5``, or ``dirname/filename``, with the data beside it. With
    ``format="fluid"``, the default under ``--as-paddle``, as Fluid does: a file for each variable,
    or all in ``filename``. Of a job, trainer 0 saves, and takes from servers what only they have;
    other trainers that call this return when the files are there.
    """
    program = _program("main_program", main_program)
    names = [v.name for v in _chosen(program, vars, predicate)]
    format = _format(format, compression, program, names)
    peers = peers_here()
    _refuse_shared_out(peers, program, names)
    tables = sorted(tables_looked_up(program).intersection(names)) if peers.servers else []
    if tables:
        raise CheckpointError(
            f"the rows of {', '.join(tables)} are on the servers: save_persistables and "
            "checkpoint.save have them write these"
        )

    if divided := sorted(owners_of(program).keys() & set(names)):
        raise CheckpointError(
            f"the trainers of this job divide the state of the optimizer, such as {divided[0]}: "
            "checkpoint.save has each write its part; fluid.io.save_params saves the parameters"
        )

    def save() -> None:
        remote = _on_servers(peers, program)
        _save(peers, program, names, remote, Path(dirname), filename, format, compression)

    saved_by_first(peers, Path(dirname), filename, save)


def _save(
    peers: Peers,
    program: Program,
    names: Sequence[str],
    remote: Mapping[str, Sequence[Remote]],
    directory: Path,
    filename: str | None,
    format: str,
    compression: str | None,
) -> None:
    arrays = _values(peers, program, names, remote)
    if format == "fluid":
        _write_fluid(directory, arrays, filename)
        return
    held, scope = _as_held(program, arrays)
    tables = [t for t in tables_of(program, global_scope()) if t.name in names]
    label = fingerprint(program)
    target = directory, filename or MANIFEST
    save_alone(*target, held, scope, label, tables=tables, compression=compression)


def save_params(
    executor: Any,
    dirname: str,
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
    **how: Any,
) -> None:
    """Save the parameters of a Program; see `save_vars`."""
    save_vars(executor, dirname, main_program, None, is_parameter, filename, **how)


def save_persistables(
    executor: Any,
    dirname: str,
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
    *,
    format: str | None = None,
    compression: str | None = None,
) -> None:
    """Save all that outlives a run: parameters, optimizer state, learning rates; see `save_vars`.

    Of a Program that trains with parameter servers, trainer 0 lets every server write its part.
    """
    program, peers = _program("main_program", main_program), peers_here()
    if not peers.servers or served_plan(peers.program(program)) is None:
        how: dict[str, Any] = {"format": format, "compression": compression}
        save_vars(executor, dirname, program, None, is_persistable, filename, **how)
        return
    format = _format(format, compression, program, tables_looked_up(program))
    refuse_averages(peers, peers.program(program), global_scope())

    def save() -> None:
        if format == "hdf5":
            save_by_servers(peers, Path(dirname), filename or MANIFEST, program, compression)
            return
        remote = _on_servers(peers, program)
        merged = merge_state(program)
        own = [v.name for v in persistables(peers.program(program)) if v.name not in merged]
        names = [n for n in own if array_of(global_scope(), n) is not None] + list(remote)
        _save(peers, program, names, remote, Path(dirname), filename, format, None)

    saved_by_first(peers, Path(dirname), filename, save)


def save_for_inference(
    dirname: str,
    program: Program,
    names: Sequence[str],
    filename: str | None,
    *,
    format: str | None,
    compression: str | None,
) -> None:
    """Save variables of which some are distributed tables: of these rows only, without state.

    They are looked up where they lie, so they cannot be compressed. Otherwise as `save_vars`.
    """
    _format(format, compression, program, names)
    if compression is not None:
        raise CheckpointError(
            "rows of distributed tables are looked up where they lie in the file: leave "
            "compression out"
        )
    peers, tables = peers_here(), tables_looked_up(program)
    _refuse_shared_out(peers, program, names)
    dense = [name for name in names if name not in tables]

    def save() -> None:
        arrays = _values(peers, program, dense, _on_servers(peers, program))
        held, scope = _as_held(program, arrays)
        target = Path(dirname), filename or MANIFEST
        found = sorted(tables.intersection(names))
        save_rows(peers, *target, held, scope, fingerprint(program), found)

    saved_by_first(peers, Path(dirname), filename, save)


def _refuse_shared_out(peers: Peers, program: Program, names: Iterable[str]) -> None:
    """Refuse to save tables of which each trainer has some rows: trainer 0 alone writes here."""
    tables = sorted(tables_looked_up(program).intersection(names))
    if tables and peers.trainers > 1 and not peers.servers:
        raise CheckpointError(
            f"the rows of {', '.join(tables)} are shared out over {peers.trainers} trainers: "
            "checkpoint.save, or a Saver, has each write its own; one process, or a job with "
            "servers, restores that, and saves it by fluid.io"
        )


def _as_held(program: Program, arrays: Mapping[str, np.ndarray]) -> tuple[list[LocalPiece], Scope]:
    scope, roles = Scope(), roles_of(program)
    for name, array in arrays.items():
        scope.var(name).value = array
    return [whole(name, roles.get(name, OTHER), array) for name, array in arrays.items()], scope


def _on_servers(peers: Peers, program: Program) -> dict[str, list[Remote]]:
    """Return what servers hold of each variable: (server, its name there, piece)."""
    remote: dict[str, list[Remote]] = {}
    if peers.servers and peers.program(program).distribution.records is not None:
        for server, listed in enumerate(peers.ask({"do": LIST})):
            for local, said in listed:
                piece = Piece(**{**said, "whole": tuple(said["whole"])})
                remote.setdefault(piece.name, []).append((server, local, piece))
    return remote


def _values(
    peers: Peers, program: Program, names: Sequence[str], remote: Mapping[str, Sequence[Remote]]
) -> dict[str, np.ndarray]:
    """Return values by name, sorted; what only servers have is read there."""
    scope = global_scope()
    found: dict[str, np.ndarray] = {}
    for name in sorted(set(names)):
        if name in remote and not _received(peers.program(program), name):
            found[name] = _read_remote(peers, remote[name])
        elif not is_table(scope, name):
            found[name] = _array(scope, name)
    return found


def _received(program: Program, name: str) -> bool:
    """Tell whether a trainer has a parameter's value, as it is on the servers."""
    return any(op.type == "recv" and name in _parameters(op) for op in program.global_block().ops)


def _parameters(op: Any) -> list[str]:
    return op.attrs.get("op_role_var", [])[:1] + op.output("Out")


def _read_remote(peers: Peers, pieces: Sequence[tuple[int, str, Piece]]) -> np.ndarray:
    first = pieces[0][2]
    array = np.empty(first.whole, first.dtype)
    for server, local, piece in pieces:
        if piece.copy:
            other = np.empty(first.whole, first.dtype)
            peers.read(server, {local: other})
            array = other if piece is first else np.minimum(array, other)
        else:
            peers.read(server, {local: array[piece.begin : piece.end]})
    return array


def _write_fluid(directory: Path, arrays: Mapping[str, np.ndarray], filename: str | None) -> None:
    if filename is not None:
        write_tensors(directory / filename, arrays.values())
        return
    for name, array in arrays.items():
        write_tensors(directory / path_of(name), [array])
    manifest = directory / MANIFEST
    if is_checkpoint(manifest):
        manifest.unlink()  # of an earlier save, which this one replaces


# -- loading ---------------------------------------------------------------------------------------
def load_vars(
    executor: Any,
    dirname: str,
    main_program: Program | CompiledProgram | None = None,
    vars: Sequence[Any] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> None:
    """Load what `save_vars` has saved, in HDF5 or in Fluid's format: the files say which.

    CheckpointError, and nothing has changed, if a variable is missing or of another shape or
    dtype. On a pserver program it loads the rows that this server holds. In a job with servers,
    trainer 0 lets these load what they hold, and every trainer loads what it has itself; in a scope
    in which nothing trains, every trainer loads all of it.
    """
    program = _program("main_program", main_program)
    scope, directory = global_scope(), Path(dirname)
    chosen = _chosen(program, vars, predicate)
    names = [var.name for var in chosen]
    index, servers = 0, 1
    peers: Peers | None = None  # if servers load, too
    served = server_plan(program)
    if served is not None:
        index, servers = served.index, len(served.plan.endpoints)
    else:
        others = peers_here()
        if not others.servers:
            index, servers = others.trainer, others.trainers
        if others.trains_in(scope):
            peers = others
            peers.program(program)
            chosen = [v for v in chosen if array_of(scope, v.name) is not None]
    tables = [table for table in tables_of(program, scope) if table.name in names]
    with open_saved(directory, filename, names) as source:
        if served is not None:
            held = [h for h in held_of_server(program, scope) if h.local in names]
        else:
            held = wanted(source, chosen, scope, frozenset(not_here(program)))
    # A file of all variables has no names: it must be read with those that it was written with.
    all_names = names if served is None else [h.piece.name for h in held]
    with open_saved(directory, filename, all_names) as source:
        check_take_up(source, held, data=here.step > 0)
        for table in tables:
            check_table(source, table, index, servers)
        if peers is not None:
            _load_on_servers(peers, directory, filename, names)
        take_up(source, held, scope)
        for table in tables:
            take_up_table(source, table, index, servers)


def _load_on_servers(
    peers: Peers, directory: Path, filename: str | None, names: Sequence[str]
) -> None:
    """Let servers load what they hold; return when they have, so that rows of theirs are those."""
    where = {"path": str(directory.resolve()), "filename": filename, "names": names}

    def ask() -> None:
        peers.ask({"do": CHECK, "data": here.step > 0, **where})
        peers.ask({"do": LOAD, **where})

    done_by_first(peers, "load", directory, filename, ask, in_own=lambda: None)


def load_params(
    executor: Any,
    dirname: str,
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
) -> None:
    """Load the parameters of a Program; see `load_vars`."""
    load_vars(executor, dirname, main_program, None, is_parameter, filename)


def load_persistables(
    executor: Any,
    dirname: str,
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
) -> None:
    """Load all that outlives a run; see `load_vars`. Steps are merged anew from here on."""
    load_vars(executor, dirname, main_program, None, is_persistable, filename)
    begin_to_merge(_program("main_program", main_program), global_scope())


# -- what is asked for -----------------------------------------------------------------------------
def _program(what: str, given: Any) -> Program:
    program = default_main_program() if given is None else getattr(given, "program", given)
    if not isinstance(program, Program):
        raise GraphTypeError(f"{what}: expected a Program, got {type(given).__name__}")
    return program


def _chosen(
    program: Program, vars: Sequence[Any] | None, predicate: Predicate | None
) -> list[Variable]:
    """Return the variables that are asked for, each once, without what tables hold with rows."""
    held = state_of_tables(program)
    if vars is None:
        found = get_program_persistable_vars(program)
        if predicate not in (None, is_persistable):
            found = [var for var in program.list_vars() if predicate(var)]
    else:
        block = program.global_block()
        found = [block.var(v) if isinstance(v, str) else v for v in vars]
    return list({var.name: var for var in found if var.name not in held}.values())


def save_as(format: str) -> None:
    """From now on, save in this format whatever can be, if a call does not say another one."""
    global _default
    _default = format


def _format(
    asked: str | None, compression: str | None, program: Program, names: Iterable[str]
) -> str:
    """Return the format to save in; CheckpointError if what is asked for cannot be."""
    if asked is not None and asked not in FORMATS:
        raise CheckpointError(f"format: expected one of {', '.join(FORMATS)}, got {asked!r}")
    tables = sorted(tables_looked_up(program).intersection(names))
    if asked is None:
        return "hdf5" if tables or compression is not None else _default
    if asked == "fluid" and compression is not None:
        raise CheckpointError("Fluid's files cannot be compressed: leave compression out")
    if asked == "fluid" and tables:
        raise CheckpointError(
            f"Fluid's files cannot hold the rows of {', '.join(tables)}, a table of any ids: save "
            "in HDF5, or only the other variables, by save_vars"
        )
    return asked


def _array(scope: Scope, name: str) -> np.ndarray:
    array = array_of(scope, name)
    if array is None:
        raise CheckpointError(
            f"variable {name!r} has no value in this scope: run the startup program first"
        )
    return on_host(array)
