"""``paddle.linalg``: products and norms."""

from hpcdist.fluid.compat.paddle2.composed import matmul, norm

__all__ = ["matmul", "norm"]
