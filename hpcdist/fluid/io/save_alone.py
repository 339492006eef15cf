"""Saving on trainer 0 alone, for ``fluid.io``: its variables, and those of the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from hpcdist.base.errors import CheckpointError
from hpcdist.checkpoint.attempt import AttemptTarget, attempting, complete, new_target, request
from hpcdist.checkpoint.kept import Arrays, LocalPiece, Values
from hpcdist.checkpoint.local import Content, Label
from hpcdist.checkpoint.manifest import check_names
from hpcdist.checkpoint.rows import Choice, inference_runs
from hpcdist.checkpoint.trainer_shares import local_variables
from hpcdist.executor.control import ProgramPeers
from hpcdist.executor.scope import global_scope
from hpcdist.graph.program import Program
from hpcdist.ps.table import SparseTable
from hpcdist.runtime.kept.description import fingerprint
from hpcdist.runtime.kept.program import KeptProgram


def save_alone(
    directory: Path,
    manifest: str,
    variables: Sequence[LocalPiece],
    values: Values | None,
    program: str,
    *,
    tables: Sequence[SparseTable] = (),
    extra: object = None,
    compression: str | None = None,
) -> None:
    """Save variables of this process, with no other rank taking part."""
    check_names([h.piece.name for h in variables])
    target = AttemptTarget(*new_target(directory, manifest, None))
    contents = []
    with attempting(target):
        if variables or tables:
            contents = [target.path("trainer", 0, 1)]
            label = Label("trainer 0", 0, program)
            Content(variables, values or Arrays(), tables).write(contents[0], label, compression)
        complete(target, contents, 0.0, (), extra, program)


def save_by_servers(
    peers: ProgramPeers,
    directory: Path,
    manifest: str,
    main: Program,
    compression: str | None = None,
) -> None:
    """Save what servers have, and trainer 0 beside it, which alone calls this."""
    kept = KeptProgram(main, None)
    target = AttemptTarget(*new_target(directory, manifest, None))
    label = Label("trainer 0", 0, fingerprint(main))
    path = target.path("trainer", 0, 1)
    awaited = [target.path("server", k, peers.servers) for k in range(peers.servers)]
    with attempting(target):
        peers.ask(request(target, label, compression))
        Content(local_variables(kept.shards()), kept.values).write(path, label, compression)
        complete(target, [*awaited, path], peers.deadline_s, (), None)


def save_rows(
    peers: ProgramPeers,
    directory: Path,
    manifest: str,
    variables: Sequence[LocalPiece],
    values: Values,
    program: str,
    tables: Sequence[str],
    choices: Mapping[str, Choice],
) -> None:
    """Save some variables, and the rows of ``tables`` from where they are, to be looked up there.

    Trainer 0 alone calls this. The rows are the servers', if there are any, else this process's;
    ``choices`` says which of them, by names of tables.
    """
    check_names([*(h.piece.name for h in variables), *tables])
    local_tables = [] if peers.servers else [_table(name) for name in tables]
    target = AttemptTarget(*new_target(directory, manifest, None))
    label = Label("trainer 0", 0, program)
    path = target.path("trainer", 0, 1)
    awaited = [target.path("server", k, peers.servers) for k in range(peers.servers)]
    with attempting(target):
        chosen = {name: asdict(choice) for name, choice in choices.items()}
        peers.ask({**request(target, label, None), "rows_of": list(tables), "choices": chosen})
        runs = partial(inference_runs, choices=choices)
        Content(variables, values, local_tables, runs).write(path, label)
        complete(target, [*awaited, path], peers.deadline_s, (), None)


def _table(name: str) -> SparseTable:
    variable = global_scope().find_var(name)
    if variable is None or not isinstance(variable.value, SparseTable):
        raise CheckpointError(
            f"table {name!r} has no rows in this scope: run the startup program first"
        )
    return variable.value
