"""Whether there is a GPU to test on."""

from __future__ import annotations

import os

import pytest

SHARE_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"


def missing() -> str:
    """Return why no GPU can be used here, or an empty string."""
    try:
        import cupy
    except ImportError as error:
        return f"cupy cannot be imported: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU: {error}"
    return "" if count else "no GPU: cupy sees none"


def count() -> int:
    """Return how many GPUs this process sees."""
    import cupy

    found: int = cupy.cuda.runtime.getDeviceCount()
    return found


def needs_nccl_for(ranks: int) -> None:
    """Skip a test whose ranks NCCL cannot have on the GPUs that are there."""
    from cupy.cuda import nccl

    from hpcdist.comm.nccl_communicator import SHARED_GPU_FROM

    if not nccl.available:
        pytest.skip("cupy finds no NCCL")
    version = nccl.get_version()
    shared = os.environ.get(SHARE_VARIABLE) == "1" and version >= SHARED_GPU_FROM
    if ranks > count() and not shared:
        pytest.skip(
            f"{ranks} ranks on {count()} GPUs need {SHARE_VARIABLE}=1 and NCCL {SHARED_GPU_FROM}, "
            f"this is {version}"
        )
