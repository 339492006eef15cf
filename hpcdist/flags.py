"""Fluid's global flags, in the environment, where they are read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hpcdist.errors import GraphError, GraphTypeError

# With Fluid 1.8.5's defaults, whose types are those of the values.
_COUNT = {
    "FLAGS_cpu_deterministic": False,
    "FLAGS_cudnn_deterministic": False,
    "FLAGS_fuse_parameter_memory_size": -1.0,
    "FLAGS_fuse_parameter_groups_size": 1,
}
# What tunes Fluid's memory, threads and kernels: kept, and without effect.
_TUNING = {
    "FLAGS_allocator_strategy": "auto_growth",
    "FLAGS_conv_workspace_size_limit": 512,
    "FLAGS_cudnn_batchnorm_spatial_persistent": False,
    "FLAGS_cudnn_exhaustive_search": False,
    "FLAGS_eager_delete_tensor_gb": 0.0,
    "FLAGS_fast_eager_deletion_mode": True,
    "FLAGS_fraction_of_cpu_memory_to_use": 1.0,
    "FLAGS_fraction_of_gpu_memory_to_use": 0.92,
    "FLAGS_init_allocated_mem": False,
    "FLAGS_initial_cpu_memory_in_mb": 500,
    "FLAGS_inner_op_parallelism": 0,
    "FLAGS_memory_fraction_of_eager_deletion": 1.0,
    "FLAGS_paddle_num_threads": 1,
    "FLAGS_sync_nccl_allreduce": True,
    "FLAGS_use_pinned_memory": True,
    "FLAGS_use_system_allocator": False,
}
_KNOWN: dict[str, Any] = {**_COUNT, **_TUNING}


def set_flags(flags: Mapping[str, Any]) -> None:
    """Set flags by name, for what begins later in this process; on every rank alike.

    Those that count say how gradients are summed: ``FLAGS_fuse_parameter_memory_size`` (MiB) and
    ``_groups_size``, ``FLAGS_cpu_deterministic`` and ``FLAGS_cudnn_deterministic``. Those that
    tune Fluid's memory, threads and kernels are kept without effect. ValueError for others,
    TypeError for a value that does not fit; nothing is set then.
    """
    if not isinstance(flags, dict):
        raise GraphTypeError(f"set_flags: expected a dict of flags, got {flags!r}")
    found = {name: _text(name, value) for name, value in flags.items()}
    os.environ.update(found)


def get_flags(flags: str | Sequence[str]) -> dict[str, Any]:
    """Return flags by name, given one name or several; ValueError for one that is not known."""
    if not isinstance(flags, (str, list, tuple)):
        raise GraphTypeError(f"get_flags: expected a name or a list of names, got {flags!r}")
    return {name: _value(name) for name in ([flags] if isinstance(flags, str) else flags)}


def _default(name: str) -> Any:
    if name not in _KNOWN:
        raise GraphError(f"there is no flag {name!r}; the flags are {', '.join(sorted(_KNOWN))}")
    return _KNOWN[name]


def _text(name: str, value: Any) -> str:
    """Return a value as the environment has it."""
    default = _default(name)
    fits: Any = {float: (int, float), bool: (bool, int)}.get(type(default), type(default))
    if not isinstance(value, fits) or (isinstance(value, bool) and not isinstance(default, bool)):
        raise GraphTypeError(f"{name}: expected {type(default).__name__}, got {value!r}")
    return str(int(value) if isinstance(default, bool) else value)


def _value(name: str) -> Any:
    default, text = _default(name), os.environ.get(name, "")
    if not text:
        return default
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "on")
    try:
        return type(default)(text)
    except ValueError:
        raise GraphError(
            f"{name}: expected {type(default).__name__} in the environment, got {text!r}"
        ) from None
