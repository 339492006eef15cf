"""The graph: Programs of operators over named variables. No arrays here."""

from hpcdist.graph.block import Block
from hpcdist.graph.lod import Lod
from hpcdist.graph.names import GRAD_SUFFIX, grad_name
from hpcdist.graph.op_role import ROLE_ATTR, ROLE_VAR_ATTR, OpRole
from hpcdist.graph.operator import Operator
from hpcdist.graph.program import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
)
from hpcdist.graph.registry import GradOp, Meta, define, lookup
from hpcdist.graph.variable import Parameter, Variable

__all__ = [
    "GRAD_SUFFIX",
    "ROLE_ATTR",
    "ROLE_VAR_ATTR",
    "Block",
    "GradOp",
    "Lod",
    "Meta",
    "OpRole",
    "Operator",
    "Parameter",
    "Program",
    "Variable",
    "default_main_program",
    "default_startup_program",
    "define",
    "grad_name",
    "lookup",
    "program_guard",
]
