"""Fluid's module ``core``: element types, places and scopes, and what the machine can do."""

from __future__ import annotations

import importlib.util

from hpcdist.errors import HpcdistError
from hpcdist.executor.backend import CPUPlace, CUDAPlace
from hpcdist.executor.scope import Scope
from hpcdist.graph.dtypes import VarType

EnforceNotMet = HpcdistError  # what Fluid raises from its depths


class VarDesc:
    """Holds ``VarDesc.VarType``, as Fluid has it."""

    VarType = VarType


def is_compiled_with_cuda() -> bool:
    """Tell whether GPU kernels can be had: cupy is installed."""
    return importlib.util.find_spec("cupy") is not None


def get_cuda_device_count() -> int:
    """Return the number of GPUs this process sees; 0 without cupy or without a driver."""
    if not is_compiled_with_cuda():
        return 0
    import cupy

    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


__all__ = [
    "CPUPlace",
    "CUDAPlace",
    "EnforceNotMet",
    "Scope",
    "VarDesc",
    "VarType",
    "get_cuda_device_count",
    "is_compiled_with_cuda",
]
