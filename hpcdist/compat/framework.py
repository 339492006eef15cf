"""Fluid's module ``framework``: the graph under the names that scripts import it by."""

from hpcdist.graph import names as unique_name
from hpcdist.graph.block import Block
from hpcdist.graph.names import GRAD_SUFFIX, grad_name
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

__all__ = [
    "GRAD_SUFFIX",
    "Block",
    "Operator",
    "Parameter",
    "Program",
    "Variable",
    "default_main_program",
    "default_startup_program",
    "grad_name",
    "program_guard",
    "switch_main_program",
    "switch_startup_program",
    "unique_name",
]
