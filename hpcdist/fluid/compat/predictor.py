"""Fluid's predictors: ``core.create_paddle_predictor`` runs a saved model by an Executor.

What a configuration says of memory, threads, passes and engines changes no value: the executor
compiles the model as any Program. A GPU is where `CUDAPlace` is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.base.checks import Refused
from hpcdist.base.errors import FeedError, GraphTypeError
from hpcdist.executor.backend import CPUPlace, CUDAPlace
from hpcdist.executor.executor import Executor
from hpcdist.executor.scope import Scope, scope_guard
from hpcdist.fluid.compat.public_names import public
from hpcdist.fluid.io.model import load_inference_model
from hpcdist.graph.lod_tensor import LoDTensor


class PaddleDType(Enum):
    """Element types of what predictors take and give."""

    FLOAT32 = "float32"
    INT64 = "int64"
    INT32 = "int32"


class AnalysisConfig:
    """Where a model lies, and how it is to be run.

    ``AnalysisConfig(directory)``, or the files of the Program and of all parameters. How often
    and whereby it is made fast is accepted, and left to the executor.
    """

    class Precision(Enum):
        """What engines may compute with; here it is what the model says."""

        Float32 = 0
        Int8 = 1
        Half = 2

    enable_tensorrt_engine = enable_lite_engine = enable_quantizer = Refused(
        "the executor computes what the model says, in its own precision"
    )
    set_model_buffer = Refused("set_model takes files")

    def __init__(self, model: str = "", params_file: str = "") -> None:
        self._directory = self._program = self._params = ""
        self.set_model(model, params_file)
        self._gpu: int | None = None
        self._by_name = False

    def set_model(self, model: str, params_file: str = "") -> None:
        """Say where the model lies: a directory, or its two files."""
        self._directory = "" if params_file else str(model)
        self._program, self._params = (str(model), str(params_file)) if params_file else ("", "")

    def set_prog_file(self, file: str) -> None:
        """Say which file holds the Program."""
        self._program = str(file)

    def set_params_file(self, file: str) -> None:
        """Say which file holds all parameters."""
        self._params = str(file)

    def model_dir(self) -> str:
        """Return the directory of the model, "" if its files were named."""
        return self._directory

    def prog_file(self) -> str:
        """Return the file of the Program, "" if a directory was named."""
        return self._program

    def params_file(self) -> str:
        """Return the file of the parameters, "" if a directory was named."""
        return self._params

    def enable_use_gpu(self, memory_pool_init_size_mb: int = 100, device_id: int = 0) -> None:
        """Run on a GPU."""
        self._gpu = device_id

    def disable_gpu(self) -> None:
        """Run on the CPU."""
        self._gpu = None

    def use_gpu(self) -> bool:
        """Return whether it is to run on a GPU."""
        return self._gpu is not None

    def gpu_device_id(self) -> int:
        """Return which GPU."""
        return self._gpu or 0

    def switch_specify_input_names(self, x: bool = True) -> None:
        """Make `run` take its inputs by name instead of in order."""
        self._by_name = bool(x)

    def _accept(self, *args: Any, **kwargs: Any) -> None:
        """Accept what changes no value."""

    switch_ir_optim = switch_ir_debug = switch_use_feed_fetch_ops = _accept
    set_cpu_math_library_num_threads = _accept
    enable_memory_optim = enable_mkldnn = enable_profile = disable_glog_info = _accept
    set_mkldnn_cache_capacity = set_mkldnn_op = set_optim_cache_dir = delete_pass = _accept

    def _place(self) -> CPUPlace | CUDAPlace:
        return CPUPlace() if self._gpu is None else CUDAPlace(self._gpu)

    def _files(self) -> tuple[str, str | None, str | None]:
        """Return the arguments of `load_inference_model`: directory, and names of files in it."""
        if self._directory:
            return self._directory, None, None
        directory = Path(self._program).parent
        # Relative to the Program's directory, or what is absolute as it is.
        return str(directory), Path(self._program).name, str(Path(self._params).absolute())


class PaddleBuf:
    """The numbers of a PaddleTensor, without their shape."""

    def __init__(self, numbers: Any = ()) -> None:
        self._array = np.asarray(numbers).reshape(-1)
        if self._array.dtype == np.float64:
            self._array = self._array.astype("float32")  # as Fluid takes Python's numbers

    def tolist(self) -> list[Any]:
        """Return the numbers."""
        return self._array.tolist()

    float_data = int64_data = int32_data = tolist

    def length(self) -> int:
        """Return how many bytes they take."""
        return self._array.nbytes

    def empty(self) -> bool:
        """Return whether there are none."""
        return not self._array.size


class PaddleTensor:
    """A value that a predictor is given, or gives: numbers, their shape, and sequences."""

    def __init__(self, data: Any = None, name: str = "") -> None:
        array = None if data is None else np.asarray(data)
        self.name = name
        self.shape: Sequence[int] = [] if array is None else list(array.shape)
        self.lod: list[list[int]] = []
        self.data = PaddleBuf(() if array is None else array)
        self.dtype = PaddleDType.FLOAT32
        if array is not None and array.dtype.name in ("int64", "int32"):
            self.dtype = PaddleDType(array.dtype.name)

    def as_ndarray(self) -> np.ndarray:
        """Return the value as an array."""
        return self.data._array.astype(self.dtype.value).reshape(self.shape)


class ZeroCopyTensor:
    """An input or output of a predictor, which keeps its value from run to run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tensor = LoDTensor()

    def copy_from_cpu(self, data: Any) -> None:
        """Set the value."""
        lod = self._tensor.lod()
        self._tensor = LoDTensor(np.array(data))
        self._tensor.set_lod(lod)

    def copy_to_cpu(self) -> np.ndarray:
        """Return the value as an array; FeedError if there is none yet."""
        return np.array(self._tensor)

    def reshape(self, shape: Sequence[int]) -> None:
        """Accept the shape of what will be set: its own shape counts."""

    def shape(self) -> list[int]:
        """Return the value's shape."""
        return self._tensor.shape()

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Group the value's rows by offsets, level by level."""
        self._tensor.set_lod(lod)

    def lod(self) -> list[list[int]]:
        """Return the offsets of its sequences."""
        return self._tensor.lod()

    def type(self) -> PaddleDType:
        """Return its element type."""
        return PaddleDType(self._tensor._dtype())


class PaddlePredictor:
    """A saved model, with separate variables, that runs what it is given."""

    def __init__(self, config: AnalysisConfig) -> None:
        self._config = config
        self._scope, self._executor = Scope(), Executor(config._place())
        directory, program, params = config._files()
        with scope_guard(self._scope):
            self._program, self._feeds, self._targets = load_inference_model(
                directory, self._executor, program, params
            )
        self._inputs = {name: ZeroCopyTensor(name) for name in self._feeds}
        self._outputs = {target.name: ZeroCopyTensor(target.name) for target in self._targets}

    def get_input_names(self) -> list[str]:
        """Return the names of the feeds, in order."""
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        """Return the names of the outputs, in order."""
        return list(self._outputs)

    def get_input_tensor(self, name: str) -> ZeroCopyTensor:
        """Return the tensor of something that is fed; FeedError if it is not."""
        return _named(self._inputs, name, "input")

    def get_output_tensor(self, name: str) -> ZeroCopyTensor:
        """Return the tensor of something that is computed; FeedError if it is not."""
        return _named(self._outputs, name, "output")

    def get_input_tensor_shape(self) -> dict[str, list[int]]:
        """Return the shapes of what is fed, -1 where the batch size goes."""
        block = self._program.global_block()
        return {name: list(block.var(name).shape) for name in self._inputs}

    def zero_copy_run(self) -> bool:
        """Run the model on its input tensors, into its output tensors; return True."""
        feed = {name: tensor._tensor for name, tensor in self._inputs.items()}
        missing = [name for name, tensor in feed.items() if not tensor._is_initialized()]
        if missing:
            raise FeedError(f"the predictor's inputs {missing} have no value: copy_from_cpu first")
        for tensor, value in zip(self._outputs.values(), self._computed(feed)):
            tensor._tensor = value
        return True

    def run(self, inputs: Sequence[PaddleTensor], batch_size: int = -1) -> list[PaddleTensor]:
        """Run the model on inputs, in the order of `get_input_names`.

        Their names count after ``switch_specify_input_names``, and only then, as in Fluid.
        """
        if len(inputs) != len(self._inputs):
            raise FeedError(f"expected {len(self._inputs)} inputs {self._feeds}, got {len(inputs)}")
        feed = {}
        for name, tensor in zip(self._inputs, inputs):
            name = tensor.name if self._config._by_name else name
            if name not in self._inputs:
                raise FeedError(f"the model has no input {name!r}: {self._feeds}")
            value = LoDTensor(tensor.as_ndarray())
            value.set_lod(tensor.lod)
            feed[name] = value
        results = []
        for name, value in zip(self._outputs, self._computed(feed)):
            results.append(PaddleTensor(np.asarray(value), name))
            results[-1].lod = value.lod()
        return results

    def clone(self) -> PaddlePredictor:
        """Return another predictor of the same model."""
        return type(self)(self._config)

    def _computed(self, feed: Mapping[str, LoDTensor]) -> list[Any]:
        return self._executor.run(
            self._program,
            feed=feed,
            fetch_list=self._targets,
            scope=self._scope,
            return_numpy=False,
        )


AnalysisPredictor = PaddlePredictor


def create_paddle_predictor(config: AnalysisConfig) -> PaddlePredictor:
    """Load the model that a configuration names."""
    if not isinstance(config, AnalysisConfig):
        raise GraphTypeError(f"expected an AnalysisConfig, got {type(config).__name__}")
    return PaddlePredictor(config)


def _named(tensors: Mapping[str, ZeroCopyTensor], name: str, kind: str) -> ZeroCopyTensor:
    if name not in tensors:
        raise FeedError(f"the model has no {kind} {name!r}: {list(tensors)}")
    return tensors[name]


__all__ = public(globals())
