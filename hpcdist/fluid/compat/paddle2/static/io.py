"""``paddle.static.io``: what is saved and loaded, by the prefix of its files' paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcdist.base.errors import CheckpointError, GraphError, GraphTypeError
from hpcdist.base.temporary import temporary_folder
from hpcdist.checkpoint.files import open_plain
from hpcdist.checkpoint.fluid_files import encoded
from hpcdist.checkpoint.write import write_bytes
from hpcdist.fluid.compat.paddle2.static.operators import in_words_of_fluid
from hpcdist.fluid.compat.paddle2.static.written import in_words_of_paddle
from hpcdist.fluid.compat.public_names import public
from hpcdist.fluid.io import (  # noqa: F401 - some are only offered
    is_belong_to_optimizer,
    is_parameter,
    is_persistable,
    load,
    load_program_state,
    load_vars,
    save_vars,
    set_program_state,
    state,
)
from hpcdist.fluid.io import model as fluid
from hpcdist.fluid.io.program_desc import parsed_program, write_program
from hpcdist.fluid.io.variables import values_of
from hpcdist.graph.program import Program, default_main_program, program_of
from hpcdist.graph.variable import Variable
from hpcdist.runtime.kept.peers import program_peers
from hpcdist.transpiler.table_metadata import tables_looked_up

MODEL, PARAMETERS = ".pdmodel", ".pdiparams"


def save(program: Program, model_path: str, protocol: int = 4, **configs: Any) -> None:
    """Save parameters (``.pdparams``) and all else that is kept (``.pdopt``) as 2.6.2 does.

    With distributed tables in HDF5: see `hpcdist.fluid.io.save`. ``protocol``: any of 2, 3 and 4
    gives files of protocol 4.
    """
    if protocol not in (2, 3, 4):
        raise GraphError(f"paddle.static.save: protocol: expected 2, 3 or 4, got {protocol!r}")
    if configs:
        raise GraphTypeError(f"paddle.static.save: no parameter {sorted(configs)}")
    ops = program.global_block().ops
    rates = {name for op in ops for name in op.inputs.get("LearningRate", [])}
    state.save(program, model_path, of_none=rates)  # that have no dimension there


def save_inference_model(
    path_prefix: str,
    feed_vars: Variable | list[Variable],
    fetch_vars: Variable | list[Variable],
    executor: Any,
    **kwargs: Any,
) -> None:
    """Save what computes ``fetch_vars`` from ``feed_vars``: files ``<path_prefix>.pdmodel`` and
    ``.pdiparams``, as 2.6.2 does; with distributed tables, or ``format="hdf5"``, in HDF5.

    ``program``: the one that is pruned, by default that of ``fetch_vars``. CheckpointError naming
    an operator that 2.6.2 does not have.
    """
    feeds = [] if feed_vars in ([], ()) else _listed(feed_vars)
    fetches = _listed(fetch_vars)
    program = kwargs.pop("program", None) or program_of(fetches[0])
    format = kwargs.pop("format", "hdf5" if tables_looked_up(program) else "fluid")
    unknown = set(kwargs) - {"clip_extra", "legacy_format"}
    if unknown:
        raise GraphTypeError(f"paddle.static.save_inference_model: no parameter {sorted(unknown)}")
    path = Path(path_prefix)
    fluid.save_inference_model(
        str(path.parent),
        [var.name for var in feeds],
        fetches,
        executor,
        program,
        model_filename=path.name + MODEL,
        params_filename=path.name + PARAMETERS,
        format=format,
        rewrite=in_words_of_paddle,
    )


def load_inference_model(path_prefix: str, executor: Any, **kwargs: Any) -> list[Any]:
    """Return [Program, names of what is fed, Variables to be fetched] of a saved model."""
    path = Path(path_prefix)
    model = kwargs.pop("model_filename", None) or path.name + MODEL
    parameters = kwargs.pop("params_filename", None) or path.name + PARAMETERS
    if kwargs:
        raise GraphTypeError(f"paddle.static.load_inference_model: no parameter {sorted(kwargs)}")
    directory = path if (path / model).is_file() else path.parent
    names = executor, model, parameters
    return list(fluid.load_inference_model(str(directory), *names, rewrite=in_words_of_fluid))


# -- as bytes --------------------------------------------------------------------------------------
def normalize_program(
    program: Program,
    feed_vars: Variable | list[Variable],
    fetch_vars: Variable | list[Variable],
    **kwargs: Any,
) -> Program:
    """Return the Program of just what computes ``fetch_vars`` from ``feed_vars``, for inference."""
    return _normalized("normalize_program", feed_vars, fetch_vars, program, kwargs)[0]


def serialize_program(
    feed_vars: Variable | list[Variable], fetch_vars: Variable | list[Variable], **kwargs: Any
) -> bytes:
    """Return the bytes of the ``.pdmodel`` of `save_inference_model`; ``program``: as there."""
    where, program = "serialize_program", kwargs.pop("program", None)
    model, names = _normalized(where, feed_vars, fetch_vars, program, kwargs)
    feeds = [var.name for var in _listed(feed_vars, where)]
    return write_program(model, feeds, names, in_words_of_paddle)


def serialize_persistables(
    feed_vars: Variable | list[Variable],
    fetch_vars: Variable | list[Variable],
    executor: Any,
    **kwargs: Any,
) -> bytes | None:
    """Return the bytes of the ``.pdiparams`` of `save_inference_model`; None if nothing is kept.

    Values that only servers have are read there. CheckpointError for distributed tables.
    """
    where, given = "serialize_persistables", kwargs.pop("program", None)
    model, _ = _normalized(where, feed_vars, fetch_vars, given, kwargs)
    names = [var.name for var in model.list_vars() if is_persistable(var)]
    program = given or program_of(_listed(fetch_vars, where)[0])
    if tables := tables_looked_up(program).intersection(names):
        raise CheckpointError(
            f"paddle.static.{where}: {min(tables)!r} is a distributed table: use "
            "save_inference_model, which writes its rows"
        )
    arrays = values_of(program_peers(), program, names)
    parts = (part for name in sorted(arrays) for part in encoded(arrays[name]))
    return b"".join(parts) if arrays else None


def deserialize_program(data: bytes) -> Program:
    """Return the Program of `serialize_program`; CheckpointError if the bytes are none."""
    return parsed_program(_bytes("deserialize_program", data), "data", in_words_of_fluid)


def deserialize_persistables(program: Program, data: bytes | None, executor: Any) -> None:
    """Give what ``program`` keeps its values in the bytes of `serialize_persistables`.

    CheckpointError if they do not fit.
    """
    if data is None and not any(map(is_persistable, program.list_vars())):
        return
    with temporary_folder() as directory:
        write_bytes(directory / "data", _bytes("deserialize_persistables", data))
        load_vars(executor, str(directory), program, None, is_persistable, "data")


def save_to_file(path: str, content: bytes) -> None:
    """Write bytes into a file, which is complete, or as it was before."""
    write_bytes(Path(path), _bytes("save_to_file", content))


def load_from_file(path: str) -> bytes:
    """Return the content of a file."""
    with open_plain(Path(path)) as file:
        return bytes(file.readall())


def _bytes(where: str, data: Any) -> bytes:
    if isinstance(data, bytes):
        return data
    raise GraphTypeError(f"paddle.static.{where}: expected bytes, got a {type(data).__name__}")


def _normalized(
    where: str, feed_vars: Any, fetch_vars: Any, program: Program | None, options: dict[str, Any]
) -> tuple[Program, list[str]]:
    """Return the Program that is saved, and what it calls its results."""
    unknown = set(options) - {"legacy_format", "skip_prune_program"}
    if unknown or options.get("skip_prune_program"):
        raise GraphTypeError(f"paddle.static.{where}: no parameter {sorted(unknown or options)}")
    feeds, fetches = _listed(feed_vars, where), _listed(fetch_vars, where)
    program = default_main_program() if program is None else program
    if not isinstance(program, Program):
        raise GraphTypeError(f"paddle.static.{where}: expected a Program, got {program!r:.80}")
    return fluid.pruned(program, [var.name for var in feeds], fetches)


def _listed(value: Any, where: str = "save_inference_model") -> list[Variable]:
    many = list(value) if isinstance(value, (list, tuple)) else [value]
    if not many or not all(isinstance(one, Variable) for one in many):
        raise GraphTypeError(f"paddle.static.{where}: expected Variables, got {value!r}")
    return many


_OF_FLUID = [
    "is_belong_to_optimizer", "is_parameter", "is_persistable", "load", "load_program_state",
    "load_vars", "save_vars", "set_program_state",
]  # fmt: skip
__all__ = public(globals(), [*_OF_FLUID, "Program", "Variable"])
