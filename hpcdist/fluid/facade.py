"""What scripts find in ``hpcdist``: its public names, imported when the first of them is used."""

import hpcdist.runtime.programs  # noqa: F401  # before the first step, and what is set
from hpcdist import checkpoint, data, runtime, transpiler
from hpcdist.base.errors import HpcdistError
from hpcdist.base.settings import get_flags, set_flags
from hpcdist.base.trace.metric_log import log_metrics
from hpcdist.base.trace.progress import progress
from hpcdist.data import reader
from hpcdist.data.reader import batch
from hpcdist.executor.backend import CPUPlace, CUDAPinnedPlace, CUDAPlace, place
from hpcdist.executor.compiled_program import CompiledProgram
from hpcdist.executor.executor import Executor
from hpcdist.executor.parallel_executor import ParallelExecutor
from hpcdist.executor.scope import Scope, global_scope, scope_guard
from hpcdist.executor.strategies import BuildStrategy, ExecutionStrategy
from hpcdist.fluid import (
    clip,
    contrib,
    dataset,
    initializer,
    io,
    layers,
    metrics,
    nets,
    optimizer,
    regularizer,
)
from hpcdist.fluid.clip import set_gradient_clip
from hpcdist.fluid.compat import (
    average,
    compiler,
    core,
    framework,
    parallel_executor,
    param_attr,
)
from hpcdist.fluid.compat.core import cpu_places, cuda_places, is_compiled_with_cuda
from hpcdist.fluid.compat.eager import enabled as in_dygraph_mode
from hpcdist.fluid.compat.housekeeping import (
    cuda_pinned_places,
    device_guard,
    name_scope,
    require_version,
)
from hpcdist.fluid.data_feeder import DataFeeder
from hpcdist.fluid.io import load, load_program_state, save, set_program_state
from hpcdist.fluid.layers.checks import checked as _checked
from hpcdist.fluid.layers.embedding import embedding_v2 as _embedding
from hpcdist.fluid.layers.embedding import one_hot_v2 as _one_hot
from hpcdist.fluid.layers.param_attr import ParamAttr, WeightNormParamAttr
from hpcdist.fluid.multi_slot import DataFeedDesc, DatasetFactory, InMemoryDataset, QueueDataset
from hpcdist.graph import (
    Program,
    default_main_program,
    default_startup_program,
    program_guard,
)
from hpcdist.graph import names as unique_name
from hpcdist.graph.autodiff import backward
from hpcdist.graph.autodiff.backward import append_backward, gradients
from hpcdist.graph.lod_tensor import (
    LoDTensor,
    LoDTensorArray,
    create_lod_tensor,
    create_random_int_lodtensor,
)
from hpcdist.graph.variable import Parameter, Variable
from hpcdist.ps.row_policy import ClickScore, RowPolicy
from hpcdist.runtime import is_first, is_server, rank
from hpcdist.runtime.batches.uneven_batches import even_batches
from hpcdist.runtime.tables.prefetch import rows_ahead
from hpcdist.transpiler import (
    DistributeTranspiler,
    DistributeTranspilerConfig,
    memory_optimize,
    release_memory,
)

Tensor = LoDTensor

embedding, one_hot = _checked("embedding_v2", _embedding), _checked("one_hot_v2", _one_hot)

__all__ = [
    "BuildStrategy",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "ClickScore",
    "CompiledProgram",
    "DataFeedDesc",
    "DataFeeder",
    "DatasetFactory",
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "ExecutionStrategy",
    "Executor",
    "HpcdistError",
    "InMemoryDataset",
    "LoDTensor",
    "LoDTensorArray",
    "ParallelExecutor",
    "ParamAttr",
    "Parameter",
    "Program",
    "QueueDataset",
    "RowPolicy",
    "Scope",
    "Tensor",
    "Variable",
    "WeightNormParamAttr",
    "append_backward",
    "average",
    "backward",
    "batch",
    "checkpoint",
    "clip",
    "compiler",
    "contrib",
    "core",
    "cpu_places",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "cuda_pinned_places",
    "cuda_places",
    "data",
    "dataset",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "embedding",
    "even_batches",
    "framework",
    "get_flags",
    "global_scope",
    "gradients",
    "in_dygraph_mode",
    "initializer",
    "io",
    "is_compiled_with_cuda",
    "is_first",
    "is_server",
    "layers",
    "load",
    "load_program_state",
    "log_metrics",
    "memory_optimize",
    "metrics",
    "name_scope",
    "nets",
    "one_hot",
    "optimizer",
    "parallel_executor",
    "param_attr",
    "place",
    "program_guard",
    "progress",
    "rank",
    "reader",
    "regularizer",
    "release_memory",
    "require_version",
    "rows_ahead",
    "runtime",
    "save",
    "scope_guard",
    "set_flags",
    "set_gradient_clip",
    "set_program_state",
    "transpiler",
    "unique_name",
]
