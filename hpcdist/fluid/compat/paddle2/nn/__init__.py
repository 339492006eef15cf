"""``paddle.nn``: what static programs use of it."""

from hpcdist.fluid.clip import GradientClipByGlobalNorm as ClipGradByGlobalNorm
from hpcdist.fluid.clip import GradientClipByNorm as ClipGradByNorm
from hpcdist.fluid.clip import GradientClipByValue as ClipGradByValue

__all__ = ["ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue"]
