"""Fluid's module ``layers.device``."""

from __future__ import annotations

from hpcdist.executor.backend import CPUPlace, CUDAPlace
from hpcdist.fluid.compat.core import cpu_places, cuda_places, is_compiled_with_cuda

__all__ = ["get_places"]


def get_places(
    device_count: int | None = None, device_type: str | None = None
) -> list[CPUPlace] | list[CUDAPlace]:
    """Return places, by default those of all GPUs, or of the host where there is none."""
    kind = device_type or ("cuda" if is_compiled_with_cuda() else "cpu")
    if kind.lower() == "cpu":
        return cpu_places(device_count)
    return cuda_places(None if not device_count else range(device_count))
