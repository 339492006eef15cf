"""Clips of ``paddle.nn``: Fluid's, by the parameters of Paddle 2."""

from __future__ import annotations

from hpcdist.base.errors import GraphError
from hpcdist.fluid import clip as fluid
from hpcdist.fluid.compat.paddle2 import declare
from hpcdist.fluid.compat.paddle2.kinds import Unsigned


class ClipGradByValue(fluid.GradientClipByValue):
    """Cut every element to [min, max]; ``min`` is ``-max`` by default."""

    def __init__(self, max: float, min: float | None = None) -> None:
        super().__init__(max, min)
        if self.min > self.max:
            raise GraphError(
                f"paddle.nn.ClipGradByValue: expected min up to max, got {min} and {max}"
            )


class ClipGradByNorm(fluid.GradientClipByNorm):
    """Shrink each gradient to the norm ``clip_norm`` if it is longer."""

    def __init__(self, clip_norm: Unsigned) -> None:
        super().__init__(clip_norm)


class ClipGradByGlobalNorm(fluid.GradientClipByGlobalNorm):
    """Multiply all gradients by c / max(c, their common norm).

    ``auto_skip_clip`` changes nothing: where Paddle skips the product, its factor is 1.
    """

    def __init__(
        self, clip_norm: Unsigned, group_name: str = "default_group", auto_skip_clip: bool = False
    ) -> None:
        super().__init__(clip_norm, group_name)


declare.check_constructors("paddle.nn", globals())
