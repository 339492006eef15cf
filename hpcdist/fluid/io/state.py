"""``fluid.save`` and its kin: a program's parameters and optimizer state under one prefix."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.checks import checked_path
from hpcdist.base.errors import CheckpointError, GraphAssertionError, GraphError, GraphTypeError
from hpcdist.base.keywords import name_arguments_in
from hpcdist.base.warned import warn
from hpcdist.checkpoint.checkpoint import Checkpoint, is_checkpoint
from hpcdist.checkpoint.divided import Combined
from hpcdist.checkpoint.fluid_files import tensor_of, tensors_of
from hpcdist.checkpoint.layout import MANIFEST, name_of, path_of
from hpcdist.checkpoint.pickled import read_state
from hpcdist.checkpoint.ranks import saved_by_first
from hpcdist.executor.merging import begin_to_merge
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.fluid.io.load_variables import load_vars
from hpcdist.fluid.io.program_data import to_data
from hpcdist.fluid.io.save_alone import save_alone
from hpcdist.fluid.io.selection import (
    checked_format,
    get_program_persistable_vars,
    is_parameter,
    is_persistable,
)
from hpcdist.fluid.io.variables import save_vars, set_on_servers
from hpcdist.graph.program import Program
from hpcdist.graph.variable import Variable
from hpcdist.runtime.kept.description import fingerprint
from hpcdist.runtime.kept.divisions import left_to_first
from hpcdist.runtime.kept.peers import program_peers
from hpcdist.runtime.kept.variables import state_of_tables
from hpcdist.transpiler.sharded_updates import not_here
from hpcdist.transpiler.table_metadata import tables_looked_up

logger = logging.getLogger("hpcdist.io")
PARAMS, OPTIMIZER, MODEL = ".pdparams", ".pdopt", ".pdmodel"


def save(
    program: Program,
    model_path: str,
    *,
    format: str | None = None,
    of_none: Collection[str] = (),
) -> None:
    """Save parameters (``model_path.pdparams``), all else that is kept (``.pdopt``), the program.

    In HDF5, each with its data beside it. With ``format="pickle"``, the default under
    ``--as-paddle`` for what is no table, values as Fluid and Paddle 2.6.2 save and load them, those
    of ``of_none`` without dimensions. Of a job, trainer 0 saves, and takes from servers what only
    they have.
    """
    directory, name = _split(model_path)
    of_optimizer = _of_optimizer(program)
    kept = [var.name for var in get_program_persistable_vars(program)]
    tables = tables_looked_up(program).intersection(kept)
    how = "hdf5" if checked_format(format, None, tables) == "hdf5" else "pickle"
    # The optimizer's first: what is refused of it leaves nothing half saved.
    kept_beside = program, of_optimizer, None, name + OPTIMIZER
    save_vars(None, str(directory), *kept_beside, format=how, of_none=of_none)
    save_vars(None, str(directory), program, None, is_parameter, name + PARAMS, format=how)

    def save_model() -> None:
        extra = {"program": to_data(program)}
        save_alone(directory, name + MODEL, [], None, fingerprint(program), extra=extra)

    saved_by_first(program_peers(), directory, name + MODEL, save_model)


def load(
    program: Program,
    model_path: str,
    executor: object = None,
    var_list: Sequence[Variable] | None = None,
) -> None:
    """Load what `save` has saved, here or in Fluid: parameters, and what is kept besides.

    ``model_path`` may also be what `save_vars` and its kin have saved: a directory, or a file that
    holds ``var_list``; then ``executor`` is asked for, as in Fluid. Raises CheckpointError, and
    nothing has changed, if a variable is missing or of another shape or dtype. Pickled files are
    read without running any code. Steps are merged anew from here on.
    """
    _load(program, model_path, executor, var_list)
    begin_to_merge(program, global_scope())


def _load(
    program: Program, model_path: str, executor: object, var_list: Sequence[Variable] | None
) -> None:
    prefix = _prefix(model_path)
    params, optimizer = Path(f"{prefix}{PARAMS}"), Path(f"{prefix}{OPTIMIZER}")
    if not params.exists():
        logger.warning("%s not found: loading what save_vars has saved", params)
        _load_saved_vars(program, Path(model_path), executor, var_list)
        return
    of_optimizer = _of_optimizer(program)
    if of_optimizer and not optimizer.exists():
        raise CheckpointError(
            f"{optimizer}: missing; the program keeps {of_optimizer[0].name!r} and others"
        )
    if is_checkpoint(params) or program_peers().servers:
        directory = str(params.parent)
        load_vars(executor, directory, program, None, is_parameter, params.name)
        if of_optimizer:
            load_vars(executor, directory, program, of_optimizer, None, optimizer.name)
        return
    state = load_program_state(str(prefix))
    elsewhere = not_here(program)
    variables = [*(var for var in program.list_vars() if is_parameter(var)), *of_optimizer]
    variables = [var for var in variables if var.name not in elsewhere]
    for var in variables:
        if var.name not in state:
            raise CheckpointError(f"{prefix}: has no variable {var.name!r}")
    values = {var.name: state[var.name] for var in variables}
    for name, how in left_to_first(program, program_peers().trainer).items():
        if name in values:
            values[name] = Combined((name,), how, holds=False).of([values[name]])
    _assign(values, str(prefix), global_scope())


def load_program_state(
    model_path: str, var_list: Sequence[Variable] | None = None
) -> dict[str, np.ndarray]:
    """Load the arrays that `save`, or `save_vars` and its kin, have saved, by name.

    Not the rows of distributed tables, which no array may hold.
    ``var_list`` chooses variables of what `save_vars` has saved; it must name all those in a file
    that Fluid's has combined.
    """
    prefix = _prefix(model_path)
    params, optimizer = Path(f"{prefix}{PARAMS}"), Path(f"{prefix}{OPTIMIZER}")
    if not params.exists():
        if not all(isinstance(var, Variable) for var in var_list or ()):
            raise GraphTypeError(f"var_list: expected Variables, got {var_list!r}")
        saved = _saved_vars(Path(model_path), var_list)
        names = saved.keys() if var_list is None else {var.name for var in var_list}
        return {name: array for name, array in saved.items() if name in names}
    state = _state(params)
    return {**state, **_state(optimizer)} if optimizer.exists() else state


def set_program_state(
    program: Program, state_dict: Mapping[str, Any], *, scope: Scope | None = None
) -> None:
    """Give the variables that a Program keeps their values in ``state_dict``, arrays by name.

    After the startup program. Raises GraphAssertionError, and nothing has changed, if one has
    another shape or dtype. Warns of values that no variable takes. What other trainers hold of the
    optimizer's state is left to them. In a job with servers every trainer of a plain script calls
    this with the same values, which servers have before the next step; CheckpointError for rows of
    distributed tables.
    """
    names = {var.name for var in program.list_vars() if is_persistable(var)}
    elsewhere = not_here(program)
    names -= tables_looked_up(program) | state_of_tables(program) | elsewhere
    scope, peers = scope or global_scope(), program_peers()
    lacking = {name for name in names if scope.array_of(name) is None}
    there: dict[str, np.ndarray] = {}
    if peers.trains_in(scope):
        tables = tables_looked_up(program).intersection(state_dict)
        if tables or not peers.shares_batches:
            raise CheckpointError(
                f"set_program_state: servers keep {min(tables, default='the parameters')}: set "
                "all values in one process, then fluid.save them there and fluid.load them here"
            )
        there = {name: np.asarray(state_dict[name]) for name in lacking.intersection(state_dict)}
        names -= lacking
    elif lacking:
        raise GraphAssertionError(
            f"variable {min(lacking)!r} has no value: run the startup program"
        )
    set_on_servers(peers, program, there)
    _assign({n: np.asarray(a) for n, a in state_dict.items() if n in names}, "state_dict", scope)
    unused = sorted(set(state_dict) - names - elsewhere - set(there))
    if unused:
        warn(f"the program keeps none of these variables: {', '.join(unused)}")


def _of_optimizer(program: Program) -> list[Variable]:
    """Return the variables that Fluid takes for an optimizer's: persistable, no parameter."""
    return [v for v in get_program_persistable_vars(program) if not is_parameter(v)]


def _split(model_path: str) -> tuple[Path, str]:
    checked_path("model_path", model_path)
    path = str(model_path)
    name = path.rpartition("/")[2]
    if not name:
        raise GraphAssertionError(
            f"model_path: expected dirname/file_prefix, got {path!r}: the prefix is empty"
        )
    return Path(path).parent, name


def _prefix(model_path: str) -> str:
    checked_path("model_path", model_path)
    path = str(model_path)
    for suffix in (PARAMS, OPTIMIZER, MODEL):
        path = path.removesuffix(suffix)
    return path


def _state(path: Path) -> dict[str, np.ndarray]:
    if not is_checkpoint(path):
        return read_state(path)
    with Checkpoint(path) as saved:
        return {name: saved.read(name) for name in saved.variables}


def _assign(state: Mapping[str, np.ndarray], source: str, scope: Scope) -> None:
    state = dict(state)
    for name, array in state.items():
        current = scope.array_of(name)
        if current is not None and {current.shape, array.shape} == {(), (1,)}:
            # Paddle 2.6.2 has rates without dimensions.
            state[name] = array = array.reshape(current.shape)
        if current is not None and (current.shape, current.dtype) != (array.shape, array.dtype):
            raise GraphAssertionError(
                f"{source}: {name!r} is {array.dtype}{list(array.shape)}, but the program has "
                f"{current.dtype}{list(current.shape)}"
            )
    for name, array in state.items():
        scope.var(name).get_tensor().set(array)


def _load_saved_vars(program: Program, path: Path, executor: object, var_list: Any) -> None:
    if executor is None:
        raise GraphError(
            f"executor is required when loading what save_vars has saved, and there is no "
            f"{_prefix(str(path))}{PARAMS}"
        )
    if path.is_dir():
        names = [v.name for v in program.list_vars() if is_persistable(v)]
        if not (path / MANIFEST).exists():  # Fluid's files
            names = [name for name in names if (path / path_of(name)).is_file()]
        load_vars(executor, str(path), program, names)
    elif path.is_file():
        if var_list is None:
            raise GraphError(f"var_list is required when loading from a single file: {path}")
        load_vars(executor, str(path.parent), program, var_list, None, path.name)
    else:
        raise CheckpointError(f"{path}: there is no such file or directory, nor {path}{PARAMS}")


def _saved_vars(path: Path, var_list: Sequence[Variable] | None) -> dict[str, np.ndarray]:
    manifest = path / MANIFEST if path.is_dir() else path
    if is_checkpoint(manifest):
        return _state(manifest)
    if path.is_dir():
        files = [str(f.relative_to(path)) for f in sorted(path.rglob("*")) if f.is_file()]
        return {name_of(file): tensor_of(path, file).read() for file in files}
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file or directory, nor {path}{PARAMS}")
    if var_list is None:
        raise GraphError(f"var_list is required when loading from a single file: {path}")
    tensors = tensors_of(path.parent, path.name, len(var_list))
    names = sorted(var.name for var in var_list)
    return {name: tensor.read() for name, tensor in zip(names, tensors)}


name_arguments_in(__name__)
