"""Inference models: the part of a Program that computes some targets, with its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcdist.base.checks import checked_path
from hpcdist.base.errors import CheckpointError, GraphError, GraphTypeError
from hpcdist.base.keywords import name_arguments_in
from hpcdist.base.temporary import temporary_folder
from hpcdist.base.warned import warn
from hpcdist.checkpoint.checkpoint import Checkpoint, is_checkpoint
from hpcdist.checkpoint.files import read_whole
from hpcdist.checkpoint.layout import MANIFEST
from hpcdist.checkpoint.ranks import saved_by_first
from hpcdist.checkpoint.rows import Choice
from hpcdist.checkpoint.saved_rows import SavedRows
from hpcdist.checkpoint.write import write_bytes
from hpcdist.executor.scope import global_scope
from hpcdist.fluid.io.load_variables import load_vars
from hpcdist.fluid.io.program_data import from_data, to_data
from hpcdist.fluid.io.program_desc import Rewrite, read_program, write_program
from hpcdist.fluid.io.save_alone import save_alone
from hpcdist.fluid.io.selection import is_persistable
from hpcdist.fluid.io.variables import save_for_inference, save_vars
from hpcdist.fluid.layers import scale
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import Program, default_main_program, program_guard
from hpcdist.graph.pruning import cut_to
from hpcdist.graph.variable import Variable
from hpcdist.ops.embedding.lookup import NO_PADDING
from hpcdist.runtime.kept.description import fingerprint
from hpcdist.runtime.kept.peers import program_peers
from hpcdist.transpiler.table_metadata import LOOKUPS, is_distributed_lookup, tables_looked_up

MODEL = "__model__"
MAX_MODEL = 256 << 20  # bytes of Fluid's file
TARGET = "save_infer_model/scale_{}"  # what Fluid calls the operators that end its models
ASKING = ("distributed_lookup_table", "prefetch")  # operators that ask servers for rows


def save_inference_model(
    dirname: str,
    feeded_var_names: Sequence[str] | str,
    target_vars: Sequence[Variable] | Variable,
    executor: object,
    main_program: Program | None = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
    *,
    format: str | None = None,
    compression: str | None = None,
    rewrite: Rewrite = list,
    choices: Mapping[str, Choice] | None = None,
) -> list[str]:
    """Save what computes ``target_vars`` from what is fed; return the targets' names.

    The Program is stored as plain data in ``dirname/__model__``, an HDF5 file as well; if
    ``format="fluid"`` is said, as Fluid does, who can load it then; parameters as `save_vars`
    stores them, under ``params_filename``; ``rewrite``: see `program_desc.write_program`. Of a job,
    trainer 0 saves; other trainers that call this return when the files are there.
    ``export_for_deployment`` changes nothing: what is saved can always be run. ``choices``: which
    rows of distributed tables are saved, by their names; of others all.

    Examples:
        >>> import tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> directory = tempfile.mkdtemp()
        >>> names = fluid.io.save_inference_model(directory, ["x"], [out], exe)
    """
    feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names)
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars)
    program = default_main_program() if main_program is None else main_program
    program = getattr(program, "program", program)
    if not isinstance(program, Program):
        raise GraphTypeError(f"main_program: expected a Program, got {type(program).__name__}")
    if not targets or not all(isinstance(target, Variable) for target in targets):
        raise GraphTypeError(f"target_vars: expected Variables, got {target_vars!r}")
    for name in feeds:
        program.global_block().var(name)
    if any(op.type == "auc" for op in program.global_block().ops):  # in Fluid's words
        warn(
            "please ensure that you have set the auc states to zeros before saving inference model"
        )
    model, names = pruned(program, feeds, targets)
    model_path = checked_path("dirname", dirname) / (model_filename or MODEL)
    params_name = params_filename or MANIFEST
    if model_path.name == params_name:
        raise CheckpointError(f"model_filename and params_filename are both {params_name!r}")
    written = write_program(model, feeds, names, rewrite) if format == "fluid" else b""
    persistent = [var.name for var in model.list_vars() if is_persistable(var)]
    if not program_only:
        options: dict[str, Any] = {"format": format, "compression": compression}
        if tables_looked_up(program).isdisjoint(persistent):
            save_vars(executor, dirname, program, persistent, None, params_filename, **options)
        else:
            options["choices"] = choices
            save_for_inference(dirname, program, persistent, params_filename, **options)

    def save() -> None:
        if format == "fluid":
            write_bytes(model_path, written)
            return
        extra = {"program": to_data(model), "feed": feeds, "fetch": names}
        target = model_path.parent, model_path.name
        save_alone(*target, [], None, fingerprint(model), extra=extra)

    saved_by_first(program_peers(), model_path.parent, model_path.name, save)
    return names


def holds_model(dirname: str) -> bool:
    """Return whether `save_inference_model` has saved into this directory, by default names."""
    return (Path(dirname) / MODEL).exists()


def load_inference_model(
    dirname: str | None,
    executor: object,
    model_filename: str | bytes | None = None,
    params_filename: str | bytes | None = None,
    pserver_endpoints: Sequence[str] | None = None,
    *,
    rewrite: Rewrite = list,
) -> list[Any]:
    """Return [program, names to feed, Variables to fetch] of a saved model; load its parameters.

    Without a ``dirname`` the other two are not names of files, but what these hold (bytes).

    Also of a model that Fluid has saved, if all its operators are known here, or ``rewrite``
    replaces them: see `program_desc.read_program`.
    ``pserver_endpoints`` is accepted and not needed: the model has no operators of servers. Rows of
    distributed tables are looked up where the files have them, which must stay there, unchanged.

    Examples:
        >>> import tempfile
        >>> out = fluid.layers.fc(fluid.data("x", [None, 3]), 1)
        >>> exe = fluid.Executor()
        >>> results = exe.run(fluid.default_startup_program())
        >>> directory = tempfile.mkdtemp()
        >>> names = fluid.io.save_inference_model(directory, ["x"], [out], exe)
        >>> program, feeds, fetches = fluid.io.load_inference_model(directory, exe)
        >>> feeds
        ['x']
    """
    if dirname is None:
        return _load_from_bytes(executor, model_filename, params_filename)
    if isinstance(model_filename, bytes) or isinstance(params_filename, bytes):
        raise CheckpointError(
            "load_inference_model: the model is given as bytes; dirname must be None then, "
            f"got {dirname!r}"
        )
    path = checked_path("dirname", dirname) / (model_filename or MODEL)
    if path.is_file() and not is_checkpoint(path):
        extra: Any = read_program(read_whole(path, MAX_MODEL), str(path), rewrite)
    else:
        with Checkpoint(path) as checkpoint:
            extra = checkpoint.facts.extra
    if not isinstance(extra, dict) or not {"program", "feed", "fetch"} <= extra.keys():
        raise CheckpointError(f"{path}: holds no inference model")
    program = from_data(extra["program"], str(path))
    block = program.global_block()
    try:
        feeds = [str(block.var(name).name) for name in extra["feed"]]
        fetches = [block.var(name) for name in extra["fetch"]]
    except (GraphError, TypeError) as error:
        raise CheckpointError(f"{path}: malformed names to feed or fetch: {error}") from None
    _look_up_in_files(program, Path(dirname) / (params_filename or MANIFEST))
    if not program_peers().trains_in(global_scope()):
        _look_up_here(program)
    if any(is_persistable(var) for var in program.list_vars()):
        load_vars(executor, dirname, program, None, is_persistable, params_filename)
    return [program, feeds, fetches]


def _load_from_bytes(executor: object, *contents: Any) -> list[Any]:
    """Like `load_inference_model`, of a model and its parameters, each one file."""
    for content in contents:
        if not isinstance(content, bytes):
            raise CheckpointError(
                "load_inference_model: without a dirname, model_filename and params_filename are "
                f"the contents of two files, as bytes; got {type(content).__name__}"
            )
    with temporary_folder() as directory:
        for name, content in zip(("model", "params"), contents, strict=True):
            (directory / name).write_bytes(content)
        return load_inference_model(str(directory), executor, "model", "params")


def _look_up_in_files(program: Program, manifest: Path) -> None:
    """Make look-ups in distributed tables read their rows from the model's files."""
    tables = tables_looked_up(program)
    if not tables:
        return
    with Checkpoint(manifest) as checkpoint:
        rows = {name: SavedRows(checkpoint, name) for name in sorted(tables)}
    for block in program.blocks:
        for i, op in enumerate(block.ops):
            if is_distributed_lookup(op):
                var = block.var(op.input("W")[0])
                stored = rows[var.name]
                if var.shape[1:] != (stored.dim,):
                    raise CheckpointError(
                        f"{manifest}: table {var.name!r} has rows of {stored.dim} elements, the "
                        f"model looks up rows of {var.shape[1:]}"
                    )
                block.ops[i] = _saved_lookup(op, stored)
    for name in tables:
        program.global_block().remove_var(name)
    program.touch()


def _look_up_here(program: Program) -> None:
    """Redirect look-ups to this process's arrays, also those of tables on servers."""
    for block in program.blocks:
        for op in block.ops:
            if op.type in LOOKUPS:
                op.attrs.update(is_sparse=False, remote_prefetch=False)


def _saved_lookup(op: Operator, rows: SavedRows) -> Operator:
    attrs = {
        "table": rows.name,
        "width": rows.dim,
        "padding_idx": op.attrs.get("padding_idx", NO_PADDING),
        "last_is_one": op.type == "lookup_table",
        "rows": rows,
    }
    slots = {"Ids": op.input("Ids")}, {"Out": op.output("Out")}
    return Operator(op.block, "lookup_saved_rows", *slots, attrs)


def pruned(
    program: Program, feeds: Sequence[str], targets: Sequence[Variable]
) -> tuple[Program, list[str]]:
    """Return a Program of just what computes the targets, and what it calls them.

    GraphError if a target needs data that is not fed.
    """
    model = program.clone(for_test=True)
    block = model.global_block()
    needed = cut_to(model, [target.name for target in targets], feeds)
    asking = next((op for op in block.ops if op.type in ASKING), None)
    if asking is not None:
        raise GraphError(
            f"save_inference_model: operator {asking.type!r} asks servers for rows: give the "
            "program that was transpiled, not what get_trainer_program() has made of it"
        )
    missing = sorted(n for n in needed if not _has_value(model, n))
    if missing:
        raise GraphError(
            f"save_inference_model: {', '.join(t.name for t in targets)} cannot be computed from "
            f"{', '.join(feeds) or 'nothing'}: {', '.join(missing)} would have to be fed too"
        )
    names = []
    with program_guard(model, Program()):
        for number, target in enumerate(targets):
            result = block.var(target.name)
            if result.dtype != "bool":
                result = scale(result, 1.0, name=TARGET.format(number))
            names.append(result.name)
    model.touch()
    return model, names


def _has_value(program: Program, name: str) -> bool:
    var = program.global_block().find_var(name)
    return var is not None and is_persistable(var)


name_arguments_in(__name__)
