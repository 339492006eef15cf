# ruff: noqa: F401 - what is imported here is what is offered
"""``paddle.static``: programs, and what runs, saves and loads them."""

from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.parallel_executor import ParallelExecutor
from hpcdist.executor.scope import Scope, global_scope, scope_guard
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy
from hpcdist.fluid.compat.core import cpu_places, cuda_places
from hpcdist.fluid.compat.housekeeping import device_guard, name_scope
from hpcdist.fluid.compat.paddle2.metric import accuracy, auc
from hpcdist.fluid.compat.paddle2.param_attr import WeightNormParamAttr
from hpcdist.fluid.compat.paddle2.static import amp, io, nn
from hpcdist.fluid.compat.paddle2.static.executor import StaticExecutor as Executor
from hpcdist.fluid.compat.paddle2.static.input import InputSpec, data
from hpcdist.fluid.compat.paddle2.static.io import (
    deserialize_persistables,
    deserialize_program,
    load,
    load_from_file,
    load_inference_model,
    load_program_state,
    load_vars,
    normalize_program,
    save,
    save_inference_model,
    save_to_file,
    save_vars,
    serialize_persistables,
    serialize_program,
    set_program_state,
)
from hpcdist.fluid.compat.public_names import imported as _imported
from hpcdist.fluid.contrib.rows import ctr_metric_bundle
from hpcdist.fluid.layers import Print, create_global_var, create_parameter, py_func
from hpcdist.fluid.optimizer import ExponentialMovingAverage
from hpcdist.graph import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
)
from hpcdist.graph.autodiff.backward import append_backward, gradients
from hpcdist.graph.variable import Variable

__all__ = _imported(globals(), ["amp", "io", "nn"])
