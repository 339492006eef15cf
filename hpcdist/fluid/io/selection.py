"""Which variables of a Program are saved or loaded, and in which format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hpcdist.base.device import on_host
from hpcdist.base.errors import CheckpointError, GraphTypeError
from hpcdist.executor.merging import merge_state
from hpcdist.executor.scope import Scope, global_scope
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.program import Program, default_main_program
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.runtime.kept.variables import state_of_tables

FORMATS = ("hdf5", "fluid", "pickle")

_default = FORMATS[0]

Predicate = Callable[[Variable], bool]


def is_parameter(var: object) -> bool:
    """Return whether a variable is a parameter."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Return whether a variable outlives a run and has a value to be saved."""
    return var.persistable and var.type in (VarType.LOD_TENSOR, VarType.SELECTED_ROWS)


def is_belong_to_optimizer(var: Variable) -> bool:
    """Return whether a variable is optimizer state, a learning rate or a counter."""
    return is_persistable(var) and not is_parameter(var) and not var.is_data


def get_program_parameter(program: Program) -> list[Variable]:
    """Return the parameters of a Program, as a list of Variables in their order in it."""
    return [var for var in program.list_vars() if is_parameter(var)]


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """Return the variables of a Program that `save_persistables` saves.

    What several steps have merged, to update together, is a part of a step, and none of a model.
    """
    merged = merge_state(program)
    persistent = filter(is_persistable, program.list_vars())
    return [var for var in persistent if var.name not in merged]


def get_parameter_value(para: Variable, executor: object) -> np.ndarray:
    """Return the value of a parameter: an array of its shape and dtype."""
    if not is_parameter(para):
        raise GraphTypeError(f"get_parameter_value: expected a parameter, got {para!r}")
    return np.array(array_in(global_scope(), para.name))


def get_parameter_value_by_name(
    name: str, executor: object, program: Program | None = None
) -> np.ndarray:
    """Return the value of a parameter of a Program, by its name."""
    var = checked_program("program", program).global_block().var(name)
    return get_parameter_value(var, executor)


# -- what is asked for -----------------------------------------------------------------------------
def checked_program(function: str, value: object) -> Program:
    """Return ``value`` as a Program, by default the main one; GraphTypeError names ``function``."""
    program = default_main_program() if value is None else getattr(value, "program", value)
    if not isinstance(program, Program):
        raise GraphTypeError(f"{function}: expected a Program, got {type(value).__name__}")
    return program


def chosen_variables(
    program: Program, vars: Sequence[Any] | None, predicate: Predicate | None
) -> list[Variable]:
    """Return the variables that are asked for, each once, without what tables hold with rows."""
    of_tables = state_of_tables(program)
    if vars is None:
        variables = get_program_persistable_vars(program)
        if predicate not in (None, is_persistable):
            variables = [var for var in program.list_vars() if predicate(var)]
    else:
        block = program.global_block()
        variables = [block.var(v) if isinstance(v, str) else v for v in vars]
    return list({var.name: var for var in variables if var.name not in of_tables}.values())


def save_as(format: str) -> None:
    """From now on, save in this format whatever can be, if a call does not say another one."""
    global _default
    _default = format


def checked_format(format: str | None, compression: str | None, tables: Iterable[str]) -> str:
    """Return the format to save in; CheckpointError if what is asked for cannot be.

    ``tables``: the distributed ones among what is saved.
    """
    if format is not None and format not in FORMATS:
        raise CheckpointError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    tables = sorted(tables)
    if format is None:
        return "hdf5" if tables or compression is not None else _default
    if format != "hdf5" and compression is not None:
        raise CheckpointError("Fluid's files cannot be compressed: leave compression out")
    if format != "hdf5" and tables:
        raise CheckpointError(
            f"Fluid's files cannot hold the rows of {', '.join(tables)}, a table of any ids: save "
            "in HDF5, or only the other variables, by save_vars"
        )
    return format


def array_in(scope: Scope, name: str) -> np.ndarray:
    """Return a variable's value in host memory; CheckpointError if the scope has none."""
    array = scope.array_of(name)
    if array is None:
        raise CheckpointError(
            f"variable {name!r} has no value in this scope: run the startup program first"
        )
    return on_host(array)
