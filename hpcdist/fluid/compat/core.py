"""Fluid's module ``core``: element types, places and scopes, and what the machine can do."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

from hpcdist.base import settings
from hpcdist.base.errors import EOFException, HpcdistError
from hpcdist.executor.backend import CPUPlace, CUDAPinnedPlace, CUDAPlace, selected_gpus
from hpcdist.executor.scope import Scope
from hpcdist.executor.scope_rows import SelectedRowsHandle as SelectedRows
from hpcdist.fluid.io.descs import VarDesc
from hpcdist.graph import op_role
from hpcdist.graph.dtypes import VarType
from hpcdist.graph.lod_tensor import LoDTensor, LoDTensorArray
from hpcdist.graph.names import EMPTY, GRAD_SUFFIX
from hpcdist.graph.op_role import DEVICE_ATTR, ROLE_ATTR, ROLE_VAR_ATTR
from hpcdist.graph.operator import NAMESCOPE

EnforceNotMet = HpcdistError  # what Fluid raises from its depths


class op_proto_and_checker_maker:
    """What the attributes that all operators have are called."""

    class OpRole:
        """The roles of operators under Fluid's names; each is an integer."""

        Forward, Backward = op_role.OpRole.FORWARD, op_role.OpRole.BACKWARD
        Optimize, LRSched = op_role.OpRole.OPTIMIZE, op_role.OpRole.LR_SCHED
        RPC, Dist, Loss = op_role.OpRole.RPC, op_role.OpRole.DIST, op_role.OpRole.LOSS

    @staticmethod
    def kOpRoleAttrName() -> str:
        """Return the name of the attribute that says why an operator is there."""
        return ROLE_ATTR

    @staticmethod
    def kOpRoleVarAttrName() -> str:
        """Return the name of that which says for which parameter and gradient."""
        return ROLE_VAR_ATTR

    @staticmethod
    def kOpNameScopeAttrName() -> str:
        """Return the name of that which says where `name_scope` was; it is not kept here."""
        return NAMESCOPE

    @staticmethod
    def kOpDeviceAttrName() -> str:
        """Return the name of that which says on which device `device_guard` puts it."""
        return DEVICE_ATTR


def kEmptyVarName() -> str:
    """Return the name that stands in a slot for no variable."""
    return EMPTY


def kGradVarSuffix() -> str:
    """Return how names of gradients end."""
    return GRAD_SUFFIX


grad_var_suffix, empty_var_name = kGradVarSuffix, kEmptyVarName


def is_compiled_with_cuda() -> bool:
    """Return whether GPU kernels can be had: cupy is installed."""
    return importlib.util.find_spec("cupy") is not None


def get_cuda_device_count() -> int:
    """Return the number of GPUs this process sees; 0 without cupy, CUDA's libraries or a driver."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        return 0
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """Return a place for each of these GPUs; by default those of FLAGS_selected_gpus, or all."""
    ids = selected_gpus() or range(get_cuda_device_count()) if device_ids is None else device_ids
    return [CUDAPlace(i) for i in ids]


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """Return ``device_count`` CPU places, by default as many as CPU_NUM says (1)."""
    count = settings.CPU_NUM.read() if device_count is None else device_count
    return [CPUPlace()] * count


__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "LoDTensor",
    "LoDTensorArray",
    "Scope",
    "SelectedRows",
    "VarDesc",
    "VarType",
    "cpu_places",
    "cuda_places",
    "get_cuda_device_count",
    "is_compiled_with_cuda",
]
