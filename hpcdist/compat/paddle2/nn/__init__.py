"""``paddle.nn``: what static programs use of it."""

from hpcdist.clip import GradientClipByGlobalNorm as ClipGradByGlobalNorm
from hpcdist.clip import GradientClipByNorm as ClipGradByNorm
from hpcdist.clip import GradientClipByValue as ClipGradByValue

__all__ = ["ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue"]
