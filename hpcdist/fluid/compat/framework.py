# ruff: noqa: F401 - what is imported here is what is offered
"""Fluid's module ``framework``: the graph under the names that scripts import it by."""

from hpcdist.fluid.compat.eager import enabled as in_dygraph_mode
from hpcdist.fluid.compat.housekeeping import (
    cuda_pinned_places,
    device_guard,
    name_scope,
    require_version,
)
from hpcdist.fluid.compat.public_names import imported as _imported
from hpcdist.graph import dtypes
from hpcdist.graph import names as unique_name
from hpcdist.graph.block import Block
from hpcdist.graph.dtypes import is_float as dtype_is_floating
from hpcdist.graph.names import EMPTY as EMPTY_VAR_NAME
from hpcdist.graph.names import GRAD_SUFFIX, grad_name
from hpcdist.graph.names import grad_name as grad_var_name
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
    switch_main_program,
    switch_startup_program,
)
from hpcdist.graph.variable import Parameter, Variable

GRAD_VAR_SUFFIX = GRAD_SUFFIX
# Marks of Fluid's that no name has here, for scripts that tell names apart by them.
TEMP_VAR_NAME, ZERO_VAR_SUFFIX, CONTROL_DEP_VAR_PREFIX = "@TEMP@", "@ZERO", "@DEPENDENCY"


def convert_np_dtype_to_dtype_(np_dtype: dtypes.DTypeLike) -> dtypes.ElementType:
    """Return an element type by its name, of which ``int()`` gives Fluid's number."""
    return dtypes.ElementType(dtypes.canonical(np_dtype))


def _get_var(name: str, program: Program | None = None) -> Variable:
    """Return a variable of the global block of a Program, by default of the main program."""
    return (program or default_main_program()).global_block().var(name)


__all__ = _imported(globals(), ["unique_name"])
