"""Whether there is a GPU to test on."""

from __future__ import annotations


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
