"""``paddle.static``: programs, and what runs them."""

from hpcdist.autodiff.backward import append_backward, gradients
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.executor import Executor
from hpcdist.executor.parallel_executor import ParallelExecutor
from hpcdist.executor.scope import global_scope, scope_guard
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy
from hpcdist.fluid.compat.core import cpu_places, cuda_places
from hpcdist.fluid.layers import accuracy, auc, create_global_var, create_parameter
from hpcdist.fluid.layers.io import data_v2 as data
from hpcdist.graph import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
)
from hpcdist.graph.variable import Variable

__all__ = [
    "BuildStrategy",
    "CompiledProgram",
    "ExecutionStrategy",
    "Executor",
    "ParallelExecutor",
    "Program",
    "Variable",
    "accuracy",
    "append_backward",
    "auc",
    "cpu_places",
    "create_global_var",
    "create_parameter",
    "cuda_places",
    "data",
    "default_main_program",
    "default_startup_program",
    "global_scope",
    "gradients",
    "program_guard",
    "scope_guard",
]
