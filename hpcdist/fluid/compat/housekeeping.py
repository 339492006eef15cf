"""Utilities of Fluid's scripts: versions, name scopes, devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hpcdist.base.errors import GraphAssertionError, GraphError, GraphTypeError, LaunchError
from hpcdist.base.warned import warn
from hpcdist.fluid.compat.core import CUDAPinnedPlace, cuda_places, is_compiled_with_cuda
from hpcdist.fluid.compat.version import full_version
from hpcdist.graph.program import default_main_program

__all__ = ["cuda_pinned_places", "device_guard", "name_scope", "require_version"]

_VERSION = re.compile(r"\d+(\.\d+){0,3}")
_DEVICE = re.compile(r"(cpu|gpu(:\d+)?)?")


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Refuse a script that asks for other versions of Fluid than 1.8.5: LaunchError."""
    arguments = {"min_version": min_version}
    if max_version is not None:
        arguments["max_version"] = max_version
    for name, version in arguments.items():
        if not isinstance(version, str):
            raise GraphTypeError(f"require_version: {name} must be a string, got {version!r}")
        if not _VERSION.fullmatch(version):
            raise GraphError(f"require_version: {name}={version!r}: expected one like '1.5.2.0'")
    version_here = _parts(full_version)
    if version_here < _parts(min_version) or (
        max_version is not None and version_here > _parts(max_version)
    ):
        to = f" to {max_version}" if max_version is not None else " or higher"
        raise LaunchError(
            f"the script requires Fluid {min_version}{to}; hpcdist is compatible with "
            f"{full_version}"
        )


def _parts(version: str) -> list[int]:
    parts = [int(part) for part in version.split(".")]
    return parts + [0] * (4 - len(parts))


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Name a group of operators, for pictures of graphs; variables' names do not follow it."""
    if not prefix:
        raise GraphAssertionError("name_scope: prefix can not be empty")
    yield


@contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Mark the operators inside: those of ``"gpu:0"``, ``"gpu:1"``, ... may form pipeline stages.

    Otherwise nothing follows: a Program runs at its executor's place.
    """
    if device is not None and not (isinstance(device, str) and _DEVICE.fullmatch(device)):
        raise GraphError(f"device_guard: expected 'cpu', 'gpu', 'gpu:0' or None, got {device!r}")
    if device == "gpu" and not is_compiled_with_cuda():
        warn("device_guard('gpu'): there is no GPU, the executor's place decides")
    program = default_main_program()
    before, program.current_device = program.current_device, device or ""
    try:
        yield
    finally:
        program.current_device = before


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """Return places in host memory, by default one for each GPU; they compute as CPUPlace does."""
    if not is_compiled_with_cuda():
        raise GraphAssertionError("cuda_pinned_places: no GPU kernels here: cupy is not installed")
    count = len(cuda_places()) if device_count is None else device_count
    return [CUDAPinnedPlace()] * count
