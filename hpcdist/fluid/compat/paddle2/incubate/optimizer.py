"""``paddle.incubate.optimizer``: what averages parameters over steps."""

from hpcdist.fluid.compat.paddle2.incubate import LookAhead, ModelAverage

__all__ = ["LookAhead", "ModelAverage"]
