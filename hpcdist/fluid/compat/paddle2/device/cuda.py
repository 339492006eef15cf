"""``paddle.device.cuda``: the GPUs of this process."""

from hpcdist.fluid.compat.core import cuda_places, is_compiled_with_cuda

__all__ = ["device_count"]


def device_count() -> int:
    """Return how many GPUs this process sees."""
    return len(cuda_places()) if is_compiled_with_cuda() else 0
