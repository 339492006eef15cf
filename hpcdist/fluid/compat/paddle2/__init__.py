"""Names of Paddle 2.6 for static programs: found under ``--as-paddle`` only.

A module here is the one of that name under ``paddle``; docs/paddle2.md tells what differs. A
function is a line of a table (`declare`), or composed of others; what is missing is refused by name
(`paddle2_names`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import GraphError
from hpcdist.executor.backend import CPUPlace, CUDAPlace, Place
from hpcdist.fluid.compat.core import is_compiled_with_cuda
from hpcdist.fluid.compat.paddle2 import methods, tensor
from hpcdist.fluid.compat.paddle2.objects import load, save
from hpcdist.fluid.compat.paddle2.param_attr import ParamAttr
from hpcdist.fluid.compat.paddle2.tensor import *  # noqa: F403
from hpcdist.fluid.layers import create_parameter
from hpcdist.graph.lod_tensor import LoDTensor
from hpcdist.graph.program import default_main_program, default_startup_program
from hpcdist.graph.variable import Variable

Tensor = Variable
bool, float16, float32, float64 = "bool", "float16", "float32", "float64"
int8, int16, int32, int64, uint8 = "int8", "int16", "int32", "int64", "uint8"
dtype = str

_place: list[Place] = []  # what `set_device` has chosen


def enable_static() -> None:
    """Add Paddle 2's methods to Variables; programs are always static here."""
    methods.install()


def disable_static(place: object = None) -> None:
    """Refuse: nothing runs but Programs."""
    raise GraphError(
        "paddle.disable_static: hpcdist runs static programs only: build one with "
        "paddle.static.data and layers, and run it with paddle.static.Executor"
    )


def in_dynamic_mode() -> Any:
    """Return False."""
    return False


def seed(seed: int) -> None:
    """Start the random numbers of both default programs from ``seed``."""
    default_main_program().random_seed = default_startup_program().random_seed = int(seed)


def set_device(device: str) -> Place:
    """Return the place that ``device`` names: 'cpu', 'gpu' or 'gpu:1'; Executors are given it."""
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind not in ("cpu", "gpu") or (number and not number.isdigit()):
        raise GraphError(f"paddle.set_device: expected 'cpu', 'gpu' or 'gpu:0', got {device!r}")
    place = CPUPlace() if kind == "cpu" else CUDAPlace(int(number or 0))
    _place[:] = [place]
    return place


def chosen_place() -> Place:
    """Return the place that `set_device` has chosen, a CPU at first."""
    return _place[0] if _place else CPUPlace()


def get_device() -> str:
    """Return the device set by `set_device`: 'cpu' at first."""
    place = chosen_place()
    return f"gpu:{place.device_id}" if isinstance(place, CUDAPlace) else "cpu"


def _not_compiled(what: str) -> Any:
    def function(*args: object) -> Any:
        """Return False: there are no kernels for it."""
        return False

    function.__name__ = f"is_compiled_with_{what}"
    return function


is_compiled_with_xpu = _not_compiled("xpu")
is_compiled_with_ipu = _not_compiled("ipu")
is_compiled_with_rocm = _not_compiled("rocm")
is_compiled_with_cinn = _not_compiled("cinn")
is_compiled_with_custom_device = _not_compiled("custom_device")


def is_compiled_with_distribute() -> Any:
    """Return True: that is what hpcdist is for."""
    return True


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Stop gradients of what is appended inside."""
    block = default_main_program().current_block()
    before = set(block.vars)
    yield
    for name in set(block.vars) - before:
        block.vars[name].stop_gradient = True


__all__ = [
    "CPUPlace",
    "CUDAPlace",
    "LoDTensor",
    "ParamAttr",
    "Tensor",
    "bool",
    "create_parameter",
    "disable_static",
    "dtype",
    "enable_static",
    "float16",
    "float32",
    "float64",
    "get_device",
    "in_dynamic_mode",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_compiled_with_cinn",
    "is_compiled_with_cuda",
    "is_compiled_with_custom_device",
    "is_compiled_with_distribute",
    "is_compiled_with_ipu",
    "is_compiled_with_rocm",
    "is_compiled_with_xpu",
    "load",
    "no_grad",
    "save",
    "seed",
    "set_device",
    "uint8",
    *tensor.__all__,
]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
