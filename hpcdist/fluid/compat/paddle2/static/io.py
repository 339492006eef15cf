"""``paddle.static.io``: what is saved and loaded, by the prefix of its files' paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcdist.base.errors import GraphError, GraphTypeError
from hpcdist.fluid.compat.paddle2.static.operators import in_words_of_fluid
from hpcdist.fluid.compat.paddle2.static.written import in_words_of_paddle
from hpcdist.fluid.io import (
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
from hpcdist.graph.program import Program, program_of
from hpcdist.graph.variable import Variable
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


def _listed(value: Any) -> list[Variable]:
    many = list(value) if isinstance(value, (list, tuple)) else [value]
    if not many or not all(isinstance(one, Variable) for one in many):
        raise GraphTypeError(
            f"paddle.static.save_inference_model: expected Variables, got {value!r}"
        )
    return many


__all__ = [
    "Program",
    "Variable",
    "is_belong_to_optimizer",
    "is_parameter",
    "is_persistable",
    "load",
    "load_inference_model",
    "load_program_state",
    "load_vars",
    "save",
    "save_inference_model",
    "save_vars",
    "set_program_state",
]
