"""``paddle.device``: which device computes."""

from hpcdist.fluid.compat.core import is_compiled_with_cuda
from hpcdist.fluid.compat.paddle2 import get_device, set_device
from hpcdist.fluid.compat.paddle2.device import cuda

__all__ = ["cuda", "get_device", "is_compiled_with_cuda", "set_device"]
