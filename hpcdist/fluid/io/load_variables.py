"""Loading variables of a Program: ``fluid.io.load_persistables`` and its kin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcdist.base.checks import checked_path
from hpcdist.base.keywords import name_arguments_in
from hpcdist.base.trace.position import here
from hpcdist.checkpoint.divided import Combined
from hpcdist.checkpoint.local import check_loadable, check_table, counted, load_shards, load_table
from hpcdist.checkpoint.metadata import PARAMETER
from hpcdist.checkpoint.ranks import done_by_first
from hpcdist.checkpoint.serving import CHECK, LOAD
from hpcdist.checkpoint.sources import open_saved
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.control import ProgramPeers
from hpcdist.executor.merging import begin_to_merge
from hpcdist.executor.scope import global_scope
from hpcdist.fluid.io.selection import (
    Predicate,
    checked_program,
    chosen_variables,
    is_parameter,
    is_persistable,
)
from hpcdist.graph.program import Program
from hpcdist.runtime.kept.divisions import left_to_first
from hpcdist.runtime.kept.peers import program_peers
from hpcdist.runtime.kept.program import kept_elsewhere, wanted
from hpcdist.runtime.kept.server import ServerShards, counter_of
from hpcdist.runtime.kept.variables import tables_of
from hpcdist.transpiler.plan import trainer_plan
from hpcdist.transpiler.pserver import server_plan
from hpcdist.transpiler.sharded_updates import not_here


def load_vars(
    executor: object,
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
    program = checked_program("main_program", main_program)
    scope, directory = global_scope(), checked_path("dirname", dirname)
    chosen = chosen_variables(program, vars, predicate)
    names = [var.name for var in chosen]
    index, servers = 0, 1
    peers: ProgramPeers | None = None  # if servers load, too
    elsewhere = not_here(program)
    served = server_plan(program)
    if served is not None:
        index, servers = served.index, len(served.plan.endpoints)
    else:
        others = program_peers()
        if not others.servers:
            index, servers = others.trainer, others.trainers
        if others.trains_in(scope):
            peers = others
            elsewhere |= kept_elsewhere(peers.program(program))
            chosen = [v for v in chosen if scope.array_of(v.name) is not None]
    tables = [table for table in tables_of(program, scope) if table.name in names]
    with open_saved(directory, filename, names) as source:
        if served is not None:
            pieces = [h for h in ServerShards(program, scope).held() if h.local in names]
            counter = counter_of(served.plan)
        else:
            pieces = wanted(source, chosen, scope, elsewhere)
            sums = left_to_first(program, program_peers().trainer)
            pieces = [
                replace(h, combined=Combined((h.piece.name,), sums[h.local], holds=False))
                if h.local in sums
                else h
                for h in pieces
            ]
            counter = counter_of(trainer_plan(program))
        pieces = [counted(source, h, counter) for h in pieces]
    # A file of all variables has no names: it must be read with those that it was written with.
    all_names = names if served is None else [h.piece.name for h in pieces]
    with open_saved(directory, filename, all_names) as source:
        check_loadable(source, pieces, data=here.step > 0)
        for table in tables:
            check_table(source, table, index, servers)
        if peers is not None:
            _load_on_servers(peers, directory, filename, names)
        load_shards(source, pieces, scope)
        for table in tables:
            load_table(source, table, index, servers)


def _load_on_servers(
    peers: ProgramPeers, directory: Path, filename: str | None, names: Sequence[str]
) -> None:
    """Load on the servers what they hold, and wait until they have it."""
    request = {"path": str(directory.resolve()), "filename": filename, "names": names}

    def ask() -> None:
        peers.ask({"do": CHECK, "data": here.step > 0, **request})
        peers.ask({"do": LOAD, **request})

    done_by_first(peers, "load", directory, filename, ask, in_own=lambda: None)


def load_params(
    executor: object,
    dirname: str,
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
) -> None:
    """Load the parameters of a Program; see `load_vars`."""
    load_vars(executor, dirname, main_program, None, is_parameter, filename)


def load_model_on_server(
    executor: object, dirname: str, main_program: Program | CompiledProgram
) -> None:
    """Load a server's rows of the parameters of an inference model; its optimizers begin anew."""
    scope, main_program = global_scope(), checked_program("main_program", main_program)
    held = [h.local for h in ServerShards(main_program, scope).held() if h.piece.role == PARAMETER]
    tables = [table.name for table in tables_of(main_program, scope)]
    load_vars(executor, dirname, main_program, [*held, *tables])


def load_persistables(
    executor: object,
    dirname: str,
    main_program: Program | CompiledProgram | None = None,
    filename: str | None = None,
) -> None:
    """Load all that outlives a run; see `load_vars`. Steps are merged anew from here on.

    Examples:
        >>> import tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1, bias_attr=False)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> directory = tempfile.mkdtemp()
        >>> fluid.io.save_persistables(exe, directory)
        >>> fluid.io.load_persistables(exe, directory)
    """
    load_vars(executor, dirname, main_program, None, is_persistable, filename)
    begin_to_merge(checked_program("main_program", main_program), global_scope())


name_arguments_in(__name__)
