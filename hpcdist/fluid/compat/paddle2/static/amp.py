"""``paddle.static.amp``: mixed precision, Fluid's."""

from hpcdist.fluid.optimizer import mixed_precision
from hpcdist.fluid.optimizer.mixed_precision import AutoMixedPrecisionLists, decorate

bf16 = mixed_precision
CustomOpLists = AutoMixedPrecisionLists

__all__ = ["AutoMixedPrecisionLists", "CustomOpLists", "bf16", "decorate"]
